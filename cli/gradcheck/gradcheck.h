// Every derivative of attention is compared with differences of what it is the derivative of, in f64, on the library's own
// kernels: backward, forward mode, their duality, double backward. Not: options and printing (cmd_gradcheck.cc).
#pragma once

#include <string>
#include <vector>

#include "qkv/attention.h"

namespace qkv::cli {

struct GradcheckSizes {
  Index batch = 2, num_heads = 4, num_kv_heads = 2, q_len = 6, kv_len = 6, head_dim = 4, v_head_dim = 3;
};

/// One tensor of one check: the element that comes closest to its bound, or lies farthest beyond it.
struct GradcheckRow {
  std::string check, tensor;
  Index elements = 0;
  double error = 0, bound = 0;
  bool holds = true;  ///< of every element
};

/// Everything that moves. What options.bias, options.sinks and options.position_bias see, where they are given, lies here.
struct GradcheckInput {
  Tensor<double> q, k, v;   ///< [B, H, Tq, D], [B, Hkv, Tk, D], [B, Hkv, Tk, Dv]
  Tensor<double> dout;      ///< [B, H, Tq, Dv]
  Tensor<double> dlse;      ///< [B, H, Tq]
  Tensor<double> bias;      ///< [B|1, H|1, Tq|1, Tk|1], or of no rank
  Tensor<double> sinks;     ///< [H], or of no rank
  Tensor<double> position;  ///< [rows, H] of a table, [1, H] of ALiBi's slopes, or of no rank
  AttentionOptions options;
};

/// Random numbers in [-1, 1) of the sizes; no bias, no options.
GradcheckInput gradcheck_input(const GradcheckSizes& sizes, std::uint64_t seed);
/// Random numbers in [-1, 1). Streams of one seed are independent; those below 20 belong to gradcheck_input, from 100 on to
/// run_gradcheck.
Tensor<double> random_tensor(std::vector<Index> sizes, std::uint64_t seed, std::uint32_t stream);

/// All checks. `seed` draws the directions. UsageError where an empty row is NaN, which has no derivative.
std::vector<GradcheckRow> run_gradcheck(GradcheckInput& input, std::uint64_t seed, Context& context);

}  // namespace qkv::cli

// One problem of attention with its tensors, for the cases: made and run.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"
#include "qkv/attention.h"

namespace qkv::cli {

inline constexpr double kMemoryBytes = 512.0 * 1024 * 1024;  ///< what the peak of reading reads

/// Options of a problem besides q, k, v and causal.
enum class Extra {
  kNone,
  kDropout,     ///< p = 0.1
  kBias,        ///< [1, H, Tq, Tk], with its gradient
  kWindow,      ///< each query sees itself and the 127 before it
  kKeyLengths,  ///< of sequence b: Tk (b + 1) / B
};

struct AttentionShape {
  Index batch = 1, num_heads = 1;
  Index num_kv_heads = 0;  ///< 0: as num_heads
  Index q_len = 0, kv_len = 0, head_dim = 0;
  bool causal = false;  ///< the last query sees the last key
  Extra extra = Extra::kNone;

  Index kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  /// "B1 H8 S1024 D64 causal"
  std::string text() const;
  /// 4 B H Tq Tk D, halved when causal.
  double forward_flops() const;
};

template <class T> struct AttentionProblem {
  using Sum = Accumulator<T>;

  AttentionShape shape;
  std::vector<Tensor<T>> keys, values;  // copies of [B, Hkv, Tk, D], read in turn
  Tensor<T> q, out, dout, dq, dk, dv;   // [B, H, Tq, D]; dk, dv [B, Hkv, Tk, D]
  Tensor<Sum> lse, bias, dbias;         // [B, H, Tq]; [1, H, Tq, Tk]
  AttentionOptions options;
  std::size_t turn = 0;

  /// The gradients are made when they are wanted.
  AttentionProblem(const AttentionShape& shape, bool gradients, std::size_t copies = 1);

  const Tensor<T>& k() const { return keys[turn]; }
  const Tensor<T>& v() const { return values[turn]; }
  /// On the next copy of keys and values: one that no cache holds any more, when there are enough of them.
  void forward(Context& context);
  void backward(Context& context);
  AttentionPlan plan(Context& context) const { return attention_plan(q, k(), v(), options, context); }
};

/// "tiled, avx512, 128 queries x 128 keys; not avx2: slower than avx512"
std::string kernel_text(const AttentionPlan& plan);

}  // namespace qkv::cli

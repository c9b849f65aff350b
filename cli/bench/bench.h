// The measurements of `qkv bench`: the machine's peaks and the cases, in groups of one file each. Flops count useful
// work: 4 B H Tq Tk D forward, halved when causal, 2.5 times that backward (Dao 2023, its benchmark); with a window or
// key lengths 4 D for each live pair.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "qkv/context.h"
#include "qkv/tensor.h"

namespace qkv::cli {

/// A case with its tensors made. Without `plain` it is compared with the peak of its type's multiply-adds, or of
/// reading where that is the tighter limit; f16's is f32's; bf16's is that of bf16 products, or f32's where there are
/// none.
struct Prepared {
  std::function<void()> run{};
  std::function<void()> plain{};  ///< the plain kernel for the same live tiles, measured in alternation
  double plain_share = 1;         ///< live tiles of the case as a share of the plain run's
  double flops = 0;               ///< useful flops of a run
  double bytes = 0;               ///< what a run must read from memory; 0 where caches hold it
  std::string kernel{};           ///< the chosen kernel and why
};

struct BenchCase {
  std::string name{};
  std::string group{};  ///< also a suite
  std::string shape{};
  std::string type = "f32";
  double goal = 0;  ///< the fraction that is aimed at; 0: none (docs/dev/performance.md says which are reached)
  std::function<Prepared(Context&)> prepare{};
};

std::vector<BenchCase> attention_cases();         ///< forward, backward, bf16, decode, options, weights
std::vector<BenchCase> layer_cases();             ///< layers, lm
std::vector<BenchCase> linear_attention_cases();  ///< linattn
std::vector<BenchCase> form_cases();              ///< caches, ragged

/// Uniform numbers.
template <class T> Tensor<T> uniform_tensor(Random& random, std::vector<Index> sizes, double from = -1, double to = 1) {
  Tensor<T> x(std::move(sizes));
  for (T& value : x.span()) value = static_cast<T>(static_cast<float>(from + (to - from) * random.uniform()));
  return x;
}

}  // namespace qkv::cli

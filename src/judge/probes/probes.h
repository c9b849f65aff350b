// How probes are made: numbers that float32 holds exactly, sizes from a Sizes, metadata as docs/practice.md lists it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "judge/task.h"

namespace qkv::judge {

/// Random arrays, the same on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : bits_(seed + 0x9e3779b97f4a7c15U) {}
  /// Uniform with this standard deviation, in multiples of 2^-12: exact in float32.
  Array array(Shape shape, double deviation = 1);
  Index below(Index n) { return static_cast<Index>(bits_() % static_cast<std::uint64_t>(n)); }

 private:
  std::mt19937_64 bits_;
};

struct Lengths {
  Index batch, queries, keys;
};

/// The probes of one task: its numbers are drawn one after the other.
struct ProbeMaker {
  const Task& task;
  Sizes s;
  Draw draw;

  /// `call` is forward, gradient, twice, training, evaluation, steps, train-steps.
  Probe start(std::string_view name, std::string_view call = "forward") const;
  /// q [B, H, Tq, d], k, v [B, H, Tk, d]. Scores before the scale have a deviation of `spread` sqrt(d).
  Probe attention(std::string_view name, Lengths n, double spread = 2, double spread_of_keys = 1);
  /// A matrix of a layer; of E rows and a factor of 1 it keeps the size of numbers.
  Array weight(Index rows, Index columns, double factor = 1);
  /// Draws until no row's largest score lies where exp overflows in float32 or float64 (88.7, 709.8): there NaN,
  /// infinity and numbers would depend on the order of operations.
  Probe clear_of_overflow(const std::function<Probe()>& drawn) const;
  /// A mask [B, Tq, Tk], in the task's own shape.
  Probe with_mask(Probe probe, const Array& mask) const;
  /// The same; every other query sees the key alone whose score is the lowest of its row.
  Probe with_low_mask(Probe probe, Array mask) const;

  /// Of 0 and 1: batch b sees its first keys only, fewer for later b; all rows alike.
  Array padding_mask(Lengths n) const;
  /// Random, at least one key a row, no two batches or rows alike where there is room.
  Array pair_mask(Lengths n);
  /// The same, and row 1 of batch 0 sees nothing.
  Array empty_row_mask(Lengths n);
};

/// The same probe, to be answered by the second of two calls.
Probe called_twice(Probe probe);

/// Of these sizes and whole numbers of one digit: a counter-example that a pencil can compute, no more (small.cc).
std::vector<Probe> small_probes(const Task& task, Sizes sizes);

// functions.cc: of q, k and v; layers.cc; text.cc: of a task that has them in tasks.txt.
std::vector<Probe> function_probes(ProbeMaker& make);
std::vector<Probe> layer_probes(ProbeMaker& make);
std::vector<Probe> cache_probes(ProbeMaker& make);
std::vector<Probe> lm_probes(ProbeMaker& make);
std::vector<Probe> text_probes(ProbeMaker& make);

}  // namespace qkv::judge

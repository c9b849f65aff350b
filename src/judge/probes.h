// How probes are made: numbers that float32 holds exactly, sizes from a Sizes, metadata as docs/practice.md lists it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
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

/// `call` is forward, gradient, twice, training, evaluation, steps, train-steps.
Probe start_probe(std::string_view task, std::string_view name, std::string_view call, const Sizes& sizes);

/// The same probe, to be answered by the second of two calls.
Probe called_twice(Probe probe);

/// Draws until no row's largest score lies where exp overflows in float32 or float64 (88.7, 709.8): there NaN, infinity and numbers
/// would depend on the order of operations. `textbook` makes "scores".
Probe clear_of_overflow(const Textbook& textbook, const std::function<Probe()>& draw);

/// [B, Tq, Tk] of 0/1: batch b sees its first keys only, fewer for later b; all rows alike.
Array padding_mask(Index batch, Index queries, Index keys);
/// [B, Tq, Tk] of 0/1, random, at least one key a row, no two batches or rows alike where there is room.
Array pair_mask(Draw& draw, Index batch, Index queries, Index keys);
/// The same, and row 1 of batch 0 sees nothing.
Array empty_row_mask(Draw& draw, Index batch, Index queries, Index keys);

}  // namespace qkv::judge

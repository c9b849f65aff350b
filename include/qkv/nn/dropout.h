// Dropout on a layer's output (residual dropout), counter-based: forward and backward are the same multiplication.
// Philox 4x32-10, counter = (t, e/8, b, 0) for token t of its sequence, feature e, sequence number b; feature e reads
// the 16-bit half e%8; key = seed ^ 0x9E3779B97F4A7C15, so that one seed serves this and the dropout on attention
// weights without repeating numbers. Dropped iff half < round(p * 65536); kept ones are scaled by 65536 / (65536 -
// round(p * 65536)).
#pragma once

#include <span>

#include "qkv/attention.h"

namespace qkv::inline v0::nn {

/// y [B, T, E] = x * factor: a dropped NaN stays NaN, as in PyTorch. y may be x. An inactive dropout copies.
/// `tokens` [T]: the number t of each token in its sequence; empty: 0, 1, ... ShapeError, OptionError as for
/// attention's dropout, where it is active.
QKV_API void apply_dropout(View<const float, 3> x, View<float, 3> y, const Dropout& dropout,
    Context& context = Context::default_context(), std::span<const Index> tokens = {});
QKV_API void apply_dropout(View<const BFloat16, 3> x, View<BFloat16, 3> y, const Dropout& dropout,
    Context& context = Context::default_context(), std::span<const Index> tokens = {});

}  // namespace qkv::inline v0::nn

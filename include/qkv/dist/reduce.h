// Sums over ranks, the same bits on every rank and in every run: the ranks' numbers are added in f64, in order of
// ranks, and rounded once. Not: the sum of one machine, whose order of addition is another.
#pragma once

#include <span>

#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

/// values[i] = sum over ranks of values[i]. Collective; every rank gives as many. Each rank sums a slice and sends it
/// to all: a rank sends and receives 2 (P - 1) / P of its numbers. Throws TransportError.
QKV_API void reduce_sum(Transport& transport, std::span<float> values);
QKV_API void reduce_sum(Transport& transport, std::span<double> values);

}  // namespace qkv::inline v0::dist

// Dropout's rule written from its definition (qkv::Dropout): which half of Philox's words decides a weight.
#pragma once

#include <cmath>

#include "core/philox.h"
#include "qkv/attention.h"
#include "reference/attention.h"

namespace qkv::test {

/// 0, or 65536 / (65536 - t) with t = round(p * 65536), for the weight (b, h, i, j).
inline double dropout_factor(const Dropout& dropout, Index num_heads, Index b, Index h, Index i, Index j) {
  const auto threshold = static_cast<std::uint32_t>(std::lround(dropout.p * 65536));
  const PhiloxWords words = philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j / 8),
                                           static_cast<std::uint32_t>((dropout.first_sequence + b) * num_heads + h), 0},
      philox_key(dropout.seed));
  const std::uint32_t word = words[static_cast<std::size_t>(j % 8 / 2)];
  const std::uint32_t half = j % 2 == 0 ? word & 0xFFFF : word >> 16;
  return half < threshold ? 0.0 : 65536.0 / (65536.0 - threshold);
}

/// The oracle's dropout; none when it is not active.
inline reference::Factor factor_of(const Dropout& dropout, Index num_heads) {
  if (!dropout.active()) return {};
  return [=](Index b, Index h, Index i, Index j) { return dropout_factor(dropout, num_heads, b, h, i, j); };
}

}  // namespace qkv::test

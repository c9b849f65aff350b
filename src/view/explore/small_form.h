// The small form of the explorer's file, read and checked: q, k and how they are multiplied.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "qkv/state_dict.h"

namespace qkv::inline v0::view {

struct SmallForm {
  const AnyTensor *q = nullptr, *k = nullptr;  ///< [H, Tq, D], [Hkv, Tk, D]: of the StateDict that was read
  Tensor<float> lse, sinks, alibi, relative;   ///< [H, Tq], [H], [H], [H, 2 R + 1]; empty where they are not given
  double scale = 0, softcap = 0;
  bool causal = false;
  std::optional<std::pair<Index, Index>> window;  ///< -1: no limit
  Index offset = 0;
  std::string title = "attention", name = "attention";

  Index num_heads() const { return q->sizes[0]; }
  Index num_kv_heads() const { return k->sizes[0]; }
  Index q_len() const { return q->sizes[1]; }
  Index kv_len() const { return k->sizes[1]; }
  Index head_dim() const { return q->sizes[2]; }
};

inline constexpr const char* kOfHeads = "explorer_of_heads";

/// Throws OptionError for a tensor, key or value that the form does not have, ShapeError for sizes that do not fit.
SmallForm read_small_form(const StateDict& heads);

}  // namespace qkv::inline v0::view

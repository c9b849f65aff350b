// Outputs that a forward call asks for, and whether it may.
#pragma once

#include <algorithm>

#include "attention/call/memory_checks.h"

namespace qkv::inline v0 {

/// False for a default-constructed view, true for a view of a tensor without elements.
inline bool is_asked_for(const AnyView& x) {
  return x.data != nullptr || std::ranges::any_of(x.sizes, [](Index size) { return size != 0; });
}

/// Throws OptionError if no output is requested, or lse or lse_low without out.
inline void check_asked_for(
    const char* function, const Problem& p, const Outputs& outputs, const AttentionOptions& options) {
  const bool out = is_asked_for(outputs.out), lse = is_asked_for(outputs.lse), weights = is_asked_for(outputs.weights);
  const bool captures = written_results(options.capture, false) != nullptr;
  const bool empty = p.batch * p.num_heads * p.q_len == 0;
  check<OptionError>(out || weights || captures || lse || empty, function,
      "at least one output must be requested: give .out, .weights or a capture of weights");
  check<OptionError>(out || !lse || empty, function, "lse is computed with out: give .out too");
  check<OptionError>(
      out || !is_asked_for(outputs.lse_low) || empty, function, "lse_low is computed with out: give .out too");
}

/// Throws ShapeError unless outputs are null or have the call's sizes, or where one shares memory with another tensor.
inline void check_outputs_of(
    const char* function, const Problem& p, const Outputs& outputs, const CaptureResult* results = nullptr) {
  if (is_asked_for(outputs.out)) check_sizes(function, "out", outputs.out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  if (is_asked_for(outputs.weights)) {
    check_sizes(function, "weights", outputs.weights, p.batch, p.num_heads, p.q_len, p.kv_len);
  }
  for (const auto& [name, x] : {std::pair{"lse", &outputs.lse}, std::pair{"lse_low", &outputs.lse_low}}) {
    check<ShapeError>(x->is_null() || x->has_sizes(p.batch, p.num_heads, p.q_len), function, name,
        " must be [B, H, Tq] or null: got ", *x, " for q ", p.q);
  }
  const NamedBox boxes[] = {
      {"out", outputs.out}, {"lse", outputs.lse}, {"lse_low", outputs.lse_low}, {"weights", outputs.weights}};
  check_memory(function, p, p.mask.node, boxes, {}, results);
}

}  // namespace qkv::inline v0

// Which outputs a forward call asks for, and whether it may.
#pragma once

#include <algorithm>

#include "attention/call/problem.h"
#include "core/check.h"

namespace qkv::inline v0 {

/// False for a default-constructed view, true for a view of a tensor without elements.
template <class T, int Rank>
bool is_asked_for(const View<T, Rank>& view) {
  return view.data() != nullptr || std::ranges::any_of(view.sizes(), [](Index size) { return size != 0; });
}

/// Throws OptionError if no output is requested, or lse without out.
template <class T, class Outputs>
void check_asked_for(const char* function, const Problem<T>& p, const Outputs& outputs, const AttentionOptions& options) {
  const bool out = is_asked_for(outputs.out), lse = is_asked_for(outputs.lse), weights = is_asked_for(outputs.weights);
  const bool looks = options.capture.result != nullptr && options.capture.what->of != CaptureOf::kGradient;
  const bool empty = p.batch * p.num_heads * p.q_len == 0;
  check<OptionError>(out || weights || looks || lse || empty, function,
                     "at least one output must be requested: give .out, .weights or a capture of weights");
  check<OptionError>(out || !lse || empty, function, "lse is computed with out: give .out too");
}

/// Throws ShapeError unless `numbers` are null or one for each row.
template <class T>
void check_row_numbers(const char* function, const Problem<T>& p, const char* name, const View<Accumulator<T>, 3>& numbers) {
  const typename View<T, 3>::Sizes rows{p.batch, p.num_heads, p.q_len};
  check<ShapeError>(numbers.is_null() || numbers.sizes() == rows, function, name, " must be [B, H, Tq] or null: got ", numbers,
                    " for q ", p.q);
}

/// Throws ShapeError unless out, lse and lse_low are null or have the call's sizes.
template <class T>
void check_sizes_of(const char* function, const Problem<T>& p, const AttentionOutputs<T>& outputs) {
  if (is_asked_for(outputs.out)) check_sizes(function, "out", outputs.out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check_row_numbers(function, p, "lse", outputs.lse);
  check_row_numbers(function, p, "lse_low", outputs.lse_low);
}

}  // namespace qkv::inline v0

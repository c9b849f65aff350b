// How entries are written: edits of one stage.
#pragma once

#include <utility>

#include "judge/entry.h"
#include "judge/tasks/steps.h"

namespace qkv::judge {

inline Edit before(std::string_view stage, Step step) { return {Where::kBefore, stage, std::move(step)}; }
inline Edit instead(std::string_view stage, Step step) { return {Where::kInstead, stage, std::move(step)}; }
inline Edit after(std::string_view stage, Step step) { return {Where::kAfter, stage, std::move(step)}; }

/// Edits without a number.
inline std::function<Edits(double)> always(Edits edits) {
  return [edits = std::move(edits)](double) { return edits; };
}
inline std::function<Edits(double)> always(Edit edit) { return always(Edits{std::move(edit)}); }

}  // namespace qkv::judge

// How entries are written: edits of one stage.
#pragma once

#include <utility>

#include "judge/entry.h"
#include "judge/tasks/steps.h"

namespace qkv::judge {

inline Edit before(std::string_view stage, Step step) { return {Where::kBefore, stage, std::move(step)}; }
inline Edit instead(std::string_view stage, Step step) { return {Where::kInstead, stage, std::move(step)}; }
inline Edit after(std::string_view stage, Step step) { return {Where::kAfter, stage, std::move(step)}; }

// Steps as data: which array becomes what.
inline Step becomes(const char* name, Array (*rule)(const Array&)) {
  return [=](Work& work) { work[name] = rule(work.at(name)); };
}
inline Array transposed_square(const Array& a) {
  need(a.size(-1) == a.size(-2));
  return transpose(a);
}
/// Each number divided by the sum of its row.
inline Array over_row_sum(const Array& a) {
  return zip(a, sum(a, -1), [](Number x, Number total) { return x / total; });
}
/// to += what, of the same shape.
inline Step adds(const char* to, const char* what) {
  return [=](Work& work) {
    need(work.at(to).shape == work.at(what).shape);
    work[to] = work.at(to) + work.at(what);
  };
}
/// to = from, of the same shape.
inline Step takes(const char* to, const char* from) {
  return [=](Work& work) {
    need(work.at(to).shape == work.at(from).shape);
    work[to] = work.at(from);
  };
}
inline Step both(Step one, Step other) {
  return [one = std::move(one), other = std::move(other)](Work& work) { one(work), other(work); };
}

}  // namespace qkv::judge

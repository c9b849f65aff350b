// An entry of the catalogue: a mistake, or a convention (right, in another legal spelling), as edits of the textbook.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "judge/task.h"

namespace qkv::judge {

/// Where it shows: in what a call computes, or only in gradients, in training mode, in a second call, in returned weights.
enum class Shows { kForward, kGradient, kTraining, kTwice, kWeights };

struct Entry {
  using Numbers = std::function<std::vector<double>(const Probe&)>;

  /// `says` in one sentence, "{}" for a family's number; `hint` points without giving it away; `term` of the formula: projection,
  /// heads, scores, scale, mask, softmax, values, output, ...; `parts`: a task with one of them has the entry.
  Entry(std::string_view i, std::string_view s, std::string_view h, std::string_view t, std::vector<std::string_view> p,
        std::function<Edits(double number)> e)
      : id(i), says(s), hint(h), term(t), parts(std::move(p)), edits(std::move(e)) {}
  Entry(std::string_view i, std::string_view s, std::string_view h, std::string_view t, std::vector<std::string_view> p,
        Edits e)
      : Entry(i, s, h, t, std::move(p), [all = std::move(e)](double) { return all; }) {}
  Entry(std::string_view i, std::string_view s, std::string_view h, std::string_view t, std::vector<std::string_view> p, Edit e)
      : Entry(i, s, h, t, std::move(p), Edits{std::move(e)}) {}

  /// Conventions of a group exclude one another; mistakes of one are never paired.
  Entry in(std::string_view name) const { return with(&Entry::group, name); }
  /// Right, in another legal spelling.
  Entry convention_of(std::string_view name) const { return in(name).with(&Entry::convention, true); }
  /// A convention that the probes' metadata demand, never tried.
  Entry given_of(std::string_view name) const { return convention_of(name).with(&Entry::given, true); }
  /// A family's numbers: windows; scales and fills are then fitted between these by the answer.
  Entry tried(Numbers family) const { return with(&Entry::numbers, std::move(family)); }
  Entry fitted_to(Numbers family) const { return tried(std::move(family)).with(&Entry::fitted, true); }
  Entry shown(Shows where) const { return with(&Entry::shows, where); }
  /// It says itself what a row gives that sees nothing.
  Entry fixing_empty_rows() const { return with(&Entry::fixes_empty_rows, true); }

  std::string_view id, says, hint, term;
  std::vector<std::string_view> parts;
  std::function<Edits(double number)> edits;
  bool convention = false, given = false, fitted = false, fixes_empty_rows = false;
  std::string_view group;
  Numbers numbers;
  Shows shows = Shows::kForward;

 private:
  template <class T>
  Entry with(T Entry::*member, std::type_identity_t<T> value) const {
    Entry out = *this;
    out.*member = std::move(value);
    return out;
  }
};

/// Every entry, conventions first.
const std::vector<Entry>& catalogue();
/// The first entry of this id; nullptr when there is none.
const Entry* find_entry(std::string_view id);
/// Whether the task has a part that the entry is about.
bool applies(const Entry& entry, const Task& task);

// catalogue/*.cc
std::vector<Entry> projection_entries();
std::vector<Entry> head_entries();
std::vector<Entry> score_entries();
std::vector<Entry> mask_entries();
std::vector<Entry> softmax_entries();
std::vector<Entry> value_entries();
std::vector<Entry> gradient_entries();
std::vector<Entry> cache_entries();
std::vector<Entry> rope_entries();
std::vector<Entry> flash_entries();
std::vector<Entry> linear_entries();
std::vector<Entry> backward_entries();
std::vector<Entry> dropout_entries();
std::vector<Entry> lm_entries();

}  // namespace qkv::judge

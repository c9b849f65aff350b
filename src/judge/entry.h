// An entry of the catalogue: a mistake, or a convention (right, in another legal spelling), as edits of the textbook.
// In text/*.txt:
//
//   * TERM; in PARTS; ...     what the entries that follow share, with the edits below it
//   [ID] SAYS                 one sentence, "{}" for a family's number
//   in PARTS; group G; ...    what is another for this one
//   ? HINT                    points without giving it away; as a property, hint NAME: what `hint NAME: ...` says, the
//                             last property of the first that has it
//   before|instead|after STAGE | STEP       an edit (language.h); a line that starts with blanks goes on
//   or SAYS                   the same mistake in another way, in other words; with an edit for SAYS in the same
//
// in PARTS: a task with one of them has the entry. group G: conventions of one exclude one another, mistakes of one are
// never paired. convention: right, in another legal spelling. given: one that the probes' metadata or a caller demands,
// never tried. tried, fitted LIST: a family's numbers; fitted: between these, by the answer. says empty rows: what a
// row gives that sees nothing, so that `instead empty |` goes with it. rare: never one of three. some LIST: one entry
// for each part of the list; `some` in a line is its words, {of} in the sentence says them. shows forward, gradient,
// training, twice, weights: where it shows. twin P: what is written with `~` is of two parts of a textbook, one whose
// stages and arrays start with P: the entry is of both, of the first, of the second; not second alone: without the
// last.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "judge/task.h"
#include "judge/text/language.h"

namespace qkv::judge {

/// Where it shows: in what a call computes, or only in gradients, in training mode, in a second call, in returned
/// weights.
enum class Shows { kForward, kGradient, kTraining, kTwice, kWeights };

struct Entry {
  struct Line {
    Where where;
    std::string stage;
    std::vector<Statements> steps;
  };

  /// `term` of the formula: projection, heads, scores, scale, mask, softmax, values, output, ...
  std::string_view id, hint, term;
  std::string says;
  std::vector<std::string_view> parts;
  std::string_view group;
  bool convention = false, given = false, fitted = false, fixes_empty_rows = false, rare = false, some = false;
  Shows shows = Shows::kForward;
  std::function<std::vector<double>(const Probe&)> numbers;  ///< of a family
  std::vector<Line> lines;

  /// The family's numbers; 0 where it is none.
  std::vector<double> tried(const Probe& probe) const { return numbers ? numbers(probe) : std::vector<double>{0}; }
  /// With the family's number.
  Edits edits(double number) const;
};

/// Texts of entries, in the order in which they are read.
inline constexpr const char* kMistakes[] = {"mistakes-attention.txt", "mistakes-weights.txt", "mistakes-calls.txt",
    "mistakes-backward.txt", "mistakes-training.txt", "mistakes-layers.txt", "mistakes-parts.txt"};
/// Of a line that ends with "hint NAME: TEXT", NAME and TEXT; `line` keeps what is not TEXT. Nothing of other lines.
std::pair<std::string_view, std::string_view> cut_hint(std::string_view& line);
/// Every entry, conventions first.
const std::vector<Entry>& catalogue();
/// The first entry of this id; nullptr when there is none.
const Entry* find_entry(std::string_view id);
/// Whether the task has a part that the entry is about.
bool applies(const Entry& entry, const Task& task);

}  // namespace qkv::judge

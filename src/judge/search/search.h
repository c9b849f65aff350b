// Searches for entries of the catalogue that, alone or together, explain a code's output.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "judge/entry.h"
#include "judge/search/match.h"

namespace qkv::judge {

/// An entry with a family's number.
struct Choice {
  const Entry* entry = nullptr;
  double number = 0;
};
using Choices = std::vector<Choice>;

/// A probe and the arrays answered to it, by name.
struct Case {
  const Probe* probe = nullptr;
  std::vector<std::pair<std::string, Given>> answers;
};

/// The case judged as float32: parts of a float64 computation often are.
void widen(Case& one);

/// Whether the work has the case's answers; `weight`: matches().
bool gives(const Work& work, const Case& one, Index* weight = nullptr);

/// Entries of the catalogue that apply to a task and show in a forward call.
std::vector<const Entry*> entries_of(const Task& task, bool conventions, Shows shows = Shows::kForward);

/// The task's textbook with these choices; nothing when it lacks a stage that they edit.
std::optional<Textbook> textbook_with(const Task& task, const Choices& choices);
/// Runs it; nothing when a step does not allow these shapes.
std::optional<Work> run_with(
    const Task& task, const Choices& choices, const Probe& probe, const Work* frozen = nullptr);

using GradientDifference = std::pair<std::string, Difference>;  ///< of the input or parameter that is called so
/// The first gradient of the case (answers "d_NAME") that is not the derivative of sum(out dout) within its bound, at
/// most 48 elements of each array being compared (gradient.cc).
std::optional<GradientDifference> gradient_difference(const Task& task, const Choices& choices, const Case& one);

/// Every set of `size` mistakes that explains the case on a textbook, none of them fitted and no two of one group, in
/// each order in which two of them edit one stage; until `found` says that it has enough (combinations.cc).
void each_of(std::size_t size, const Textbook& textbook, const std::vector<const Entry*>& mistakes, const Case& one,
    const std::function<bool(const Choices&)>& found);

class Search {
 public:
  /// `cases` are ordered from the cheapest to the dearest; `given` choices hold whatever else is tried (a class without
  /// W_o).
  Search(const Task& task, std::vector<Case> cases, const Choices& given = {});

  bool explains(const Choices& choices) const;
  bool explains_one(const Choices& choices, const Case& one, Index* weight = nullptr) const;
  /// The first legal spelling that explains every answer.
  std::optional<Choices> right() const;

  struct Found {
    Choices spelling;                        ///< conventions it goes with
    std::vector<std::vector<Choice>> wrong;  ///< mistakes, each with the entries that are the same function
  };
  std::optional<Found> one() const;
  /// Two or three, fewest first. `small`: cases that need not be explained; three are searched on the first of them
  /// that shows something, which is quick.
  std::optional<Found> several(const std::vector<Case>& small) const;

  /// Of mistakes that were found with wider bounds, the choices that explain the answers within these; all of them
  /// where none does.
  Found narrowed(Found found) const;

  /// The same with every case widened.
  Search as_float32() const;
  bool all_float64() const;

 private:
  struct Explained {
    double number;         ///< of a family, otherwise 0
    std::size_t spelling;  ///< index in spellings_
  };
  /// Whether the entry explains everything together with `others`, in any spelling.
  std::optional<Explained> explained_by(const Entry& entry, const Choices& others) const;
  /// The numbers of a fitted family that bring the first answer that depends on it nearest.
  std::vector<double> fitted(const Entry& entry, const Choices& rest) const;
  bool is_explained(const Case& one) const;
  const Case* unexplained() const;
  std::optional<Found> with_fitted() const;
  bool is_left_out(const Entry& entry) const;
  Found same_as(const Choices& choices, const Choices& spelling) const;
  double distance(const Choices& choices, const Case& one) const;

  const Task& task_;
  std::vector<Case> cases_;
  std::vector<Choices> spellings_;
  std::vector<const Entry*> mistakes_;
};

}  // namespace qkv::judge

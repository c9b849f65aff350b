// Sets of mistakes that explain one case, by depth-first search over the textbook's stages: all sets that begin alike
// share what the stages before their next mistake computed.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "judge/search/search.h"
#include "judge/text/language.h"

namespace qkv::judge {
namespace {

struct Alternative {
  Choice choice;
  Edits edits;
  std::size_t first;  ///< stage that it edits
};
using Chosen = std::vector<const Alternative*>;

class Combinations {
 public:
  Combinations(const Textbook& textbook, const Case& one, const std::function<bool(const Choices&)>& found)
      : textbook_(textbook), one_(one), found_(found), begins_(textbook.size()) {}

  void add(const Entry& entry) {
    for (const double number : entry.tried(*one_.probe)) {
      Alternative next{{&entry, number}, entry.edits(number), textbook_.size()};
      if (next.edits.empty() || !fits(textbook_, next.edits)) continue;
      for (const Edit& edit : next.edits) {
        const auto stage = std::ranges::find(textbook_, edit.stage, &Stage::name);
        next.first = std::min(next.first, static_cast<std::size_t>(stage - textbook_.begin()));
      }
      begins_[next.first].push_back(std::move(next));
    }
  }

  /// Chooses what begins at this stage, `left` times at most, and goes on to the next.
  void from(std::size_t stage, Work work, const Chosen& chosen, std::size_t left) {
    if (left > 0) {
      if (stage == textbook_.size()) return;
      for (const Alternative& next : begins_[stage]) {
        if (enough_) return;
        if (!std::ranges::all_of(chosen, [&](const Alternative* one) { return joins(next, *one); })) continue;
        Chosen more = chosen;
        more.push_back(&next);
        from(stage, work, more, left - 1);
      }
    }
    if (enough_) return;
    if (left > 0) {
      if (step(stage, work, chosen)) from(stage + 1, std::move(work), chosen, left);
    } else if (steps(stage, work, chosen)) {
      end(work, chosen);
    }
  }

 private:
  /// Order counts where both edit one stage in the same way; otherwise the earlier of the catalogue comes first.
  static bool joins(const Alternative& later, const Alternative& earlier) {
    const Entry &a = *later.choice.entry, &b = *earlier.choice.entry;
    if (a.id == b.id || (!a.group.empty() && a.group == b.group)) return false;
    if (later.first != earlier.first || &earlier < &later) return true;
    return std::ranges::any_of(later.edits, [&](const Edit& one) {
      return std::ranges::any_of(
          earlier.edits, [&](const Edit& other) { return one.stage == other.stage && one.where == other.where; });
    });
  }

  /// False where it does not allow these shapes.
  bool step(std::size_t stage, Work& work, const Chosen& chosen) const {
    Stage one = textbook_[stage];
    for (const Alternative* each : chosen) {
      for (const Edit& edit : each->edits) {
        if (edit.stage == one.name) apply(one, edit);
      }
    }
    try {
      if (!one.only || one.only(work)) run(one, work);
    } catch (const NotApplicable&) {
      return false;
    }
    return true;
  }
  bool steps(std::size_t stage, Work& work, const Chosen& chosen) const {
    while (stage < textbook_.size() && step(stage, work, chosen)) ++stage;
    return stage == textbook_.size();
  }

  /// Rounds after the first, and the answers.
  void end(Work& work, const Chosen& chosen) {
    double rounds = 1;
    for (double round = 1;; ++round) {
      if (work.has("rounds")) rounds = work.at("rounds")[0].value;
      if (round >= rounds) break;
      if (!begins(work)) return;
      work["round"] = constant(round);
      if (!steps(0, work, chosen)) return;
    }
    if (!gives(work, one_)) return;
    Choices choices;
    for (const Alternative* one : chosen) choices.push_back(one->choice);
    enough_ = found_(choices);
  }

  /// Of calls one after another: whether the outputs so far are those of the answer.
  bool begins(const Work& work) const {
    const auto& [name, given] = one_.answers.front();
    if (name != "out" || !work.has("joined")) return true;
    const Array& out = work.at("joined");
    const bool part = given.values.rank() == out.rank() && given.values.size(1) >= out.size(1);
    return !part || matches(out, {slice(given.values, 1, 0, out.size(1)), given.unit, given.largest});
  }

  const Textbook& textbook_;
  const Case& one_;
  const std::function<bool(const Choices&)>& found_;
  std::vector<std::vector<Alternative>> begins_;  ///< by the first stage that they edit
  bool enough_ = false;
};

}  // namespace

void each_of(std::size_t size, const Textbook& textbook, const std::vector<const Entry*>& mistakes, const Case& one,
    const std::function<bool(const Choices&)>& found) {
  Combinations sets(textbook, one, found);
  for (const Entry* entry : mistakes) {
    if (!entry->fitted) sets.add(*entry);
  }
  const Range range(one.answers.front().second.largest);
  Work work(*one.probe);
  work["round"] = constant(0);
  sets.from(0, std::move(work), {}, size);
}

}  // namespace qkv::judge

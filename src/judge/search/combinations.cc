#include "judge/search/combinations.h"

#include <algorithm>

#include "judge/text/language.h"

namespace qkv::judge {

Combinations::Combinations(Textbook textbook, const std::vector<const Entry*>& mistakes, const Case& one)
    : textbook_(std::move(textbook)), one_(one), begins_(textbook_.size()) {
  for (const Entry* entry : mistakes) {
    if (entry->fitted) continue;
    for (const double number : entry->numbers ? entry->numbers(*one.probe) : std::vector<double>{0}) {
      Alternative next{{entry, number}, entry->edits(number), {}, textbook_.size()};
      if (!fits(textbook_, next.edits)) continue;
      for (const Edit& edit : next.edits) {
        next.at.push_back(
            static_cast<std::size_t>(std::ranges::find(textbook_, edit.stage, &Stage::name) - textbook_.begin()));
        next.first = std::min(next.first, next.at.back());
      }
      if (!next.at.empty()) alternatives_.push_back(std::move(next));
    }
  }
  for (const Alternative& alternative : alternatives_) begins_[alternative.first].push_back(&alternative);
}

void Combinations::each_of(std::size_t size, const std::function<bool(const Choices&)>& found) {
  const Range range(one_.answers.front().second.largest);
  found_ = &found, enough_ = false;
  Work work(*one_.probe);
  work["round"] = constant(0);
  from(0, work, {}, size);
}

/// Order counts where both edit one stage in the same way; otherwise the earlier of the catalogue comes first.
bool Combinations::joins(const Alternative& later, const Alternative& earlier) {
  const Entry &a = *later.choice.entry, &b = *earlier.choice.entry;
  if (a.id == b.id || (!a.group.empty() && a.group == b.group)) return false;
  if (later.first != earlier.first || &earlier < &later) return true;
  for (std::size_t i = 0; i < later.at.size(); ++i) {
    for (std::size_t j = 0; j < earlier.at.size(); ++j) {
      if (later.at[i] == earlier.at[j] && later.edits[i].where == earlier.edits[j].where) return true;
    }
  }
  return false;
}

/// Chooses what begins at this stage, `left` times at most, and goes on to the next.
void Combinations::from(std::size_t stage, const Work& before, const Chosen& chosen, std::size_t left) {
  if (left > 0) {
    if (stage == textbook_.size()) return;
    for (const Alternative* next : begins_[stage]) {
      if (enough_) return;
      if (!std::ranges::all_of(chosen, [&](const Alternative* one) { return joins(*next, *one); })) continue;
      Chosen more = chosen;
      more.push_back(next);
      from(stage, before, more, left - 1);
    }
  }
  if (enough_) return;
  Work work = before;
  if (left > 0) {
    if (step(stage, work, chosen)) from(stage + 1, work, chosen, left);
    return;
  }
  for (; stage < textbook_.size(); ++stage) {
    if (!step(stage, work, chosen)) return;
  }
  end(work, chosen);
}

/// False where it does not allow these shapes.
bool Combinations::step(std::size_t stage, Work& work, const Chosen& chosen) const {
  const Stage& one = textbook_[stage];
  const Step* own = &one.step;
  std::vector<const Step*> before, after;
  for (const Alternative* chosen_one : chosen) {
    for (std::size_t i = 0; i < chosen_one->at.size(); ++i) {
      if (chosen_one->at[i] != stage) continue;
      const Edit& edit = chosen_one->edits[i];
      if (edit.where == Where::kInstead) own = &edit.step;
      if (edit.where == Where::kBefore) before.insert(before.begin(), &edit.step);
      if (edit.where == Where::kAfter) after.push_back(&edit.step);
    }
  }
  try {
    if (one.only && !one.only(work)) return true;
    for (const Step* next : before) (*next)(work);
    (*own)(work);
    for (const Step* next : after) (*next)(work);
  } catch (const NotApplicable&) {
    return false;
  }
  return true;
}

/// Rounds after the first, and the answers.
void Combinations::end(Work& work, const Chosen& chosen) {
  ++ends;
  double rounds = 1;
  for (double round = 1;; ++round) {
    if (work.has("rounds")) rounds = work.at("rounds")[0].value;
    if (round >= rounds) break;
    work["round"] = constant(round);
    for (std::size_t stage = 0; stage < textbook_.size(); ++stage) {
      if (!step(stage, work, chosen)) return;
    }
  }
  if (!std::ranges::all_of(one_.answers,
          [&](const auto& answer) { return work.has(answer.first) && matches(work.at(answer.first), answer.second); }))
    return;
  Choices choices;
  for (const Alternative* one : chosen) choices.push_back(one->choice);
  enough_ = (*found_)(choices);
}

}  // namespace qkv::judge

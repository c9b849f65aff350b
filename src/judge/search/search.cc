#include "judge/search/search.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "judge/evidence.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Choices joined(Choices a, const Choices& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool names_empty_rows(const Choices& spelling) {
  return std::ranges::any_of(spelling, [](const Choice& choice) { return choice.entry->group == "empty row"; });
}

/// Combinations of conventions, at most one of a group; the empty one first.
std::vector<Choices> legal_spellings(const Task& task) {
  std::map<std::string_view, std::vector<const Entry*>> groups;
  for (const Entry* entry : entries_of(task, true)) {
    if (!entry->given) groups[entry->group].push_back(entry);
  }
  std::vector<Choices> out = {{}};
  for (const auto& [group, entries] : groups) {
    const std::size_t before = out.size();
    for (const Entry* entry : entries) {
      for (std::size_t i = 0; i < before; ++i) out.push_back(joined(out[i], {{entry, 0}}));
    }
  }
  std::ranges::stable_sort(out, {}, &Choices::size);
  return out;
}

}  // namespace

bool gives(const Work& work, const Case& one, Index* weight) {
  return std::ranges::all_of(one.answers, [&](const auto& answer) {
    return work.has(answer.first) && matches(work.at(answer.first), answer.second, weight);
  });
}

std::vector<const Entry*> entries_of(const Task& task, bool conventions, Shows shows) {
  std::vector<const Entry*> out;
  for (const Entry& entry : catalogue()) {
    if (entry.convention == conventions && entry.shows == shows && applies(entry, task)) out.push_back(&entry);
  }
  return out;
}

std::optional<Textbook> textbook_with(const Task& task, const Choices& choices) {
  Textbook textbook = task.textbook;
  for (const Choice& choice : choices) {
    const Edits edits = choice.entry->edits(choice.number);
    if (!fits(textbook, edits)) return std::nullopt;
    textbook = edited(std::move(textbook), edits);
  }
  return textbook;
}

std::optional<Work> run_with(const Task& task, const Choices& choices, const Probe& probe, const Work* frozen) {
  const std::optional<Textbook> textbook = textbook_with(task, choices);
  if (!textbook) return std::nullopt;
  try {
    return run(*textbook, probe, frozen);
  } catch (const NotApplicable&) {
    return std::nullopt;
  }
}

Search::Search(const Task& task, std::vector<Case> cases, const Choices& given)
    : task_(task), cases_(std::move(cases)), spellings_(legal_spellings(task)), mistakes_(entries_of(task, false)) {
  // What does not apply to the first case explains nothing, with whatever else.
  for (const Entry* entry : entries_of(task, true)) {
    if (cases_.empty() || entry->given || run_with(task, {{entry, 0}}, *cases_.front().probe)) continue;
    std::erase_if(spellings_, [&](const Choices& spelling) {
      return std::ranges::any_of(spelling, [&](const Choice& choice) { return choice.entry == entry; });
    });
  }
  for (Choices& spelling : spellings_) spelling.insert(spelling.begin(), given.begin(), given.end());
}

bool Search::explains_one(const Choices& choices, const Case& one, Index* weight) const {
  const Range range(one.answers.front().second.largest);
  const std::optional<Work> work = run_with(task_, choices, *one.probe);
  return work && gives(*work, one, weight);
}

bool Search::explains(const Choices& choices) const {
  Index weight = 0;
  const auto explained = [&](const Case& one) { return explains_one(choices, one, &weight); };
  return std::ranges::all_of(cases_, explained) && weight >= 0;
}

void widen(Case& one) {
  for (auto& [name, given] : one.answers) given.unit = std::max(given.unit, 0x1p-24);
}

Search Search::as_float32() const {
  Search out = *this;
  std::ranges::for_each(out.cases_, widen);
  return out;
}

bool Search::all_float64() const {
  return std::ranges::all_of(cases_, [](const Case& one) { return one.answers.front().second.unit < 0x1p-24; });
}

std::optional<Choices> Search::right() const {
  const auto found = std::ranges::find_if(spellings_, [this](const Choices& spelling) { return explains(spelling); });
  return found == spellings_.end() ? std::nullopt : std::optional(*found);
}

double Search::distance(const Choices& choices, const Case& one) const {
  const Range range(one.answers.front().second.largest);
  const std::optional<Work> work = run_with(task_, choices, *one.probe);
  if (!work) return kInfinity;
  double worst = 0;
  for (const auto& [name, given] : one.answers) {
    if (!work->has(name) || work->at(name).count() != given.values.count()) return kInfinity;
    for (Index i = 0; i < given.values.count(); ++i) {
      const double apart = std::fabs(work->at(name)[i].value - given.values[i].value);
      worst = apart <= worst ? worst : apart;  // NaN counts as the worst
    }
  }
  if (std::isnan(worst)) return kInfinity;
  return worst;
}

std::vector<double> Search::fitted(const Entry& entry, const Choices& rest) const {
  std::vector<double> undecided;
  for (const Case& one : cases_) {
    const std::vector<double> numbers = entry.numbers(*one.probe);
    const auto at = [&](double number) { return distance(joined(rest, {{&entry, number}}), one); };
    const double some = at(numbers[numbers.size() / 3]);
    const auto shows = [&](double number) { return at(number) != some; };
    if (some < kInfinity && !shows(numbers.front()) && !shows(numbers[numbers.size() / 2]) && !shows(numbers.back()))
      continue;  // it does not show here
    std::vector<double> far(numbers.size());
    std::ranges::transform(numbers, far.begin(), at);
    const auto best = static_cast<std::size_t>(std::ranges::min_element(far) - far.begin());
    if (!(far[best] < kInfinity)) continue;
    if (explains_one(joined(rest, {{&entry, numbers[best]}}), one)) {
      undecided.push_back(numbers[best]);  // as good as its neighbours: another case decides
      continue;
    }
    // Golden-section search between the neighbours of the best candidate.
    double low = numbers[best > 0 ? best - 1 : 0], high = numbers[std::min(best + 1, numbers.size() - 1)];
    constexpr double kRatio = 0.6180339887498949;
    double a = high - kRatio * (high - low), b = low + kRatio * (high - low), at_a = at(a), at_b = at(b);
    for (int step = 0; step < 64; ++step) {
      if (step == 12 && std::min(at_a, at_b) > far[best] / 4)
        return {};  // an explanation would be 300 times as near by now
      if (at_a <= at_b) {
        high = b, b = a, at_b = at_a, a = high - kRatio * (high - low), at_a = at(a);
      } else {
        low = a, a = b, at_a = at_b, b = low + kRatio * (high - low), at_b = at(b);
      }
    }
    const double middle = (low + high) / 2;
    return {std::strtod(number_text(middle, "%.4g").c_str(), nullptr), middle};
  }
  return undecided;
}

std::optional<Search::Explained> Search::explained_by(const Entry& entry, const Choices& others) const {
  const auto tried = [&](double number, const Choices& spelling) {
    return explains(joined(spelling, joined(others, {{&entry, number}})));
  };
  const auto fixes = [](const Choice& choice) { return choice.entry->fixes_empty_rows; };
  const bool fixed = entry.fixes_empty_rows || std::ranges::any_of(others, fixes);
  if (!entry.fitted) {
    const std::vector<double> numbers = entry.tried(*cases_.back().probe);
    for (std::size_t i = 0; i < spellings_.size(); ++i) {
      if (fixed && names_empty_rows(spellings_[i])) continue;
      for (const double number : numbers) {
        if (tried(number, spellings_[i])) return Explained{number, i};
      }
    }
    return std::nullopt;
  }
  for (const Choices& base : spellings_) {
    if (names_empty_rows(base)) continue;  // a number shows in rows that see something
    for (const double number : fitted(entry, joined(base, others))) {
      for (std::size_t i = 0; i < spellings_.size(); ++i) {
        if (tried(number, spellings_[i])) return Explained{number, i};
      }
    }
  }
  return std::nullopt;
}

std::optional<Search::Found> Search::one() const {
  for (const bool fitted : {false, true}) {
    std::map<std::size_t, std::vector<Choice>> by_spelling;
    for (const Entry* entry : mistakes_) {
      if (entry->fitted != fitted) continue;
      if (const auto how = explained_by(*entry, {})) by_spelling[how->spelling].push_back({entry, how->number});
    }
    if (!by_spelling.empty()) return Found{spellings_[by_spelling.begin()->first], {by_spelling.begin()->second}};
  }
  return std::nullopt;
}

/// By the textbook, in any spelling.
bool Search::is_explained(const Case& one) const {
  return std::ranges::any_of(spellings_, [&](const Choices& spelling) { return explains_one(spelling, one); });
}

/// The cheapest case that the textbook does not explain, of those that tell mistakes apart.
const Case* Search::unexplained() const {
  constexpr Index kTelling = 24;
  const Case* last = nullptr;
  for (const Case& one : cases_) {
    if (is_explained(one)) continue;
    last = &one;
    if (one.answers.front().second.values.count() >= kTelling) break;
  }
  return last;
}

/// Of a task with many mistakes a rare one is named alone, or in a pair without a fitted number.
bool Search::is_left_out(const Entry& entry) const {
  constexpr std::size_t kMany = 80;
  return entry.rare && mistakes_.size() > kMany;
}

std::optional<Search::Found> Search::several(const std::vector<Case>& small) const {
  const Case* one = unexplained();
  const std::optional<Textbook> textbook = textbook_with(task_, spellings_.front());
  if (one == nullptr || !textbook) return std::nullopt;
  const bool many_spellings = spellings_.size() > 8;  // what is searched with each of them takes too long
  for (std::size_t size = 2; size <= (many_spellings ? 2 : 3); ++size) {
    std::vector<const Entry*> tried = mistakes_;
    if (size == 3) {  // some 30,000 sets
      std::erase_if(tried, [&](const Entry* entry) { return entry->numbers || is_left_out(*entry); });
      const auto shows = std::ranges::find_if(small, [&](const Case& quick) { return !is_explained(quick); });
      one = shows == small.end() ? one : &*shows;
    }
    std::optional<Found> found;
    each_of(size, *textbook, tried, *one, [&](const Choices& choices) {
      const auto spelling =
          std::ranges::find_if(spellings_, [&](const Choices& with) { return explains(joined(with, choices)); });
      if (spelling != spellings_.end()) found = same_as(choices, *spelling);
      return found.has_value();
    });
    if (!found && size == 2 && !many_spellings && !task_.has("cache")) found = with_fitted();
    if (found) return found;
  }
  return std::nullopt;
}

/// Two, of which one is a family that is fitted to what the other leaves.
std::optional<Search::Found> Search::with_fitted() const {
  for (const Entry* family : mistakes_) {
    if (!family->fitted) continue;
    for (const Entry* entry : mistakes_) {
      if (entry->fitted || is_left_out(*entry) || (!entry->group.empty() && entry->group == family->group)) continue;
      for (const double number : entry->tried(*cases_.back().probe)) {
        const Choice one{entry, number};
        if (const std::optional<Explained> how = explained_by(*family, {one}))
          return same_as({one, {family, how->number}}, spellings_[how->spelling]);
      }
    }
  }
  return std::nullopt;
}

/// Each choice with the entries that are the same function beside the others.
Search::Found Search::same_as(const Choices& choices, const Choices& spelling) const {
  Found found{spelling, {}};
  for (std::size_t n = 0; n < choices.size(); ++n) {
    std::vector<Choice>& same = found.wrong.emplace_back(1, choices[n]);
    for (const Entry* entry : mistakes_) {
      Choices others = choices;
      others[n] = {entry, 0};
      const bool named = std::ranges::any_of(choices, [&](const Choice& one) { return one.entry->id == entry->id; });
      if (!entry->numbers && !named && explains(joined(spelling, others))) same.push_back({entry, 0});
    }
  }
  return found;
}

Search::Found Search::narrowed(Found found) const {
  for (std::size_t n = 0; n < found.wrong.size(); ++n) {
    std::vector<Choice> kept;
    for (const Choice& one : found.wrong[n]) {
      Choices choices = found.spelling;
      for (std::size_t other = 0; other < found.wrong.size(); ++other)
        choices.push_back(other == n ? one : found.wrong[other].front());
      if (explains(choices)) kept.push_back(one);
    }
    if (!kept.empty()) found.wrong[n] = std::move(kept);
  }
  return found;
}

}  // namespace qkv::judge

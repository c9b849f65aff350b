#include "judge/judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "judge/dropout.h"
#include "judge/evidence.h"
#include "judge/search/search.h"

namespace qkv::judge {
namespace {

/// Calls after one another, training and gradients are judged once the plain calls are right.
bool is_forward(const Probe& probe) {
  return !probe.call("gradient") && !probe.call("twice") && !probe.call("training") && !probe.call("evaluation");
}

class Trial {
 public:
  Trial(const Task& task, const std::vector<StateDict>& probes, const std::vector<Answer>& answers, bool pairs)
      : task_(task), pairs_(pairs) {
    finding_.task = task_.name;
    const auto causal = [](const StateDict& probe) { return value_of(probe.metadata, "causal") == "1"; };
    if (task_.has("bidirectional") && std::ranges::any_of(probes, causal)) {
      std::ranges::replace(task_.parts, std::string_view("bidirectional"), std::string_view("causal"));
      task_.parts.push_back("corner");
      own_causal_ = true;
    }
    probes_.reserve(probes.size());
    for (const StateDict& state : probes) {
      probes_.push_back(to_probe(state));
      check_probe(task, probes_.back());
    }
    for (std::size_t i = 0; i < probes_.size(); ++i)
      judge_probe(probes_[i], i < answers.size() ? &answers[i] : nullptr);
    const auto cost = [](const Case& one) { return one.probe->count(); };
    for (std::vector<Case>* cases : {&forward_, &with_weights_}) std::ranges::stable_sort(*cases, {}, cost);
    if (!probes_.empty() && probes_.front().text("without") == "output") {
      const Entry* entry = find_entry("without-output-projection");
      if (applies(*entry, task)) given_.push_back({entry, 0});
    }
  }

  Finding finding() {
    if (forward_.empty()) return ended("failed");
    if (const std::string same = everywhere(forward_); !same.empty()) {
      finding_.evidence = "The output is " + same + " in every probe: it does not depend on the input.\n";
      return ended("unknown");
    }
    const Search exact(task_, forward_, given_), wide = exact.as_float32();
    std::optional<Choices> spelling = exact.right();
    std::optional<Search::Found> found;
    if (!spelling) found = exact.one();
    const bool as_float32 = !spelling && !found && exact.all_float64();
    if (as_float32) spelling = wide.right();
    if (as_float32 && spelling) {
      for (std::vector<Case>* cases : {&forward_, &with_weights_, &later_, &by_hand_})
        std::ranges::for_each(*cases, widen);
      const Apart far = apart(task_, *spelling, forward_);
      finding_.notes.push_back("it differs from float64 by up to " + number_text(far.most, "%.1e") +
                               ": float32 somewhere, or a small number that is added");
      // A chain as long as attention's takes a twentieth of its bound.
      if (far.share > 0.125 && task_.has("softmax") && !task_.has("positioned")) return ended("unknown");
    }
    finding_.outputs_right = spelling.has_value();
    if (!spelling) {
      if (!found) found = wide.one();
      if (!found && pairs_) {
        found = wide.several(by_hand_);
        if (found) found = exact.narrowed(*std::move(found));
      }
      name_mistakes(found);
    } else if (all_errors_ > 0) {
      return ended("failed");
    } else {
      conventions(*spelling);
      if (own_causal_)
        finding_.conventions.push_back(
            {"causal-unasked", "It hides the future by itself; the task does not ask for that."});
      refine(*spelling);
      if (finding_.verdict.empty()) other_sizes(*spelling);
    }
    const std::size_t before = finding_.checks.size();
    for (const Case& one : forward_) check(one, spelling.value_or(Choices{}));
    const std::span<const Check> compared(finding_.checks.data() + before, forward_.size());
    if (finding_.verdict == "unknown")
      std::ranges::copy(situation(compared, forward_), std::back_inserter(finding_.notes));
    if (!finding_.verdict.empty()) return ended(finding_.verdict);
    return ended(finding_.conventions.empty() ? "right" : "convention");
  }

 private:
  void judge_probe(const Probe& probe, const Answer* answer) {
    const std::string name = probe.text("name");
    const auto text = [&](const char* key) { return value_of(answer->tensors.metadata, key); };
    const bool small = !probe.text("small").empty();
    if (small && answer != nullptr && !text("error").empty() && failed_small_.empty())
      failed_small_ = {name, text("error"), text("traceback")};
    if (small && (answer == nullptr || answer->tensors.entries().empty())) return;
    if (answer == nullptr || answer->missing) {
      if (is_forward(probe)) error(probe, "there is no answer", "");
      return;
    }
    if (!text("error").empty()) return error(probe, text("error"), text("traceback"));
    if (!text("skipped").empty()) {
      finding_.checks.push_back({name, true, "not asked: " + text("skipped"), false});
      return;
    }
    Case one{&probe, {}};
    const Task& whole = *find_task(task_.name);
    const auto in = [](const auto& names, std::string_view one_name) {
      return std::ranges::find(names, one_name) != names.end();
    };
    for (const StateDict::Entry& entry : answer->tensors.entries()) {
      if (!is_step(entry.name) && (in(task_.answers, entry.name) || !in(whole.answers, entry.name)))
        one.answers.emplace_back(entry.name, to_given(entry.tensor));
    }
    const bool others = one.answers.empty() && !answer->tensors.entries().empty();
    // What only several calls show is asked of a task's first function.
    if (others || (!is_forward(probe) && task_.answers.front() != whole.answers.front())) return;
    if (!is_forward(probe)) {
      if (!text("traceback").empty()) fails_ = text("traceback");
      later_.push_back(std::move(one));
      return;
    }
    // Compared: the task's own names; weights are compared later.
    Case asked{&probe, {}};
    for (auto& [key, given] : one.answers) {
      if (in(task_.answers, key)) asked.answers.emplace_back(key, given);
    }
    if (small) return by_hand_.push_back(std::move(asked));
    if (asked.answers.empty()) return error(probe, "the answer lacks '" + std::string(task_.answers.front()) + "'", "");
    forward_.push_back(std::move(asked));
    with_weights_.push_back(std::move(one));
  }

  void error(const Probe& probe, const std::string& says, const std::string& traceback) {
    if (is_forward(probe)) ++errors_;
    ++all_errors_;
    failures_.push_back({probe.text("name"), false, says});
    if (finding_.traceback.empty()) finding_.traceback = traceback;
  }

  /// The first failure is the last check: what is said first of a judgement that failed.
  Finding ended(const std::string& verdict) {
    finding_.verdict = verdict;
    std::ranges::reverse(failures_);
    std::ranges::move(failures_, std::back_inserter(finding_.checks));
    return std::move(finding_);
  }

  void conventions(const Choices& spelling) {
    for (const Choice& choice : spelling) {
      if (choice.entry->convention) add_convention(*choice.entry);
    }
  }

  void add_convention(const Entry& entry) {
    if (std::ranges::find(finding_.conventions, entry.id, &Convention::id) != finding_.conventions.end()) return;
    finding_.conventions.push_back({std::string(entry.id), std::string(entry.says)});
  }

  void add_mistake(const std::vector<Choice>& same, std::string evidence) {
    const Entry& entry = *same.front().entry;
    Mistake mistake{std::string(entry.id), {}, with_number(entry.says, same.front().number), std::string(entry.hint),
        std::move(evidence), std::string(entry.term), std::string(task_.formula(entry.term).read),
        entry.edits(same.front().number)};
    for (const Choice& choice : same) {
      const std::string id(choice.entry->id);
      if (id != mistake.id && std::ranges::find(mistake.same_as, id) == mistake.same_as.end())
        mistake.same_as.push_back(id);
    }
    finding_.mistakes.push_back(std::move(mistake));
    finding_.verdict = "wrong";
  }

  /// An entry found without the search, by the evidence as it stands.
  void add_named(std::string_view id) {
    if (const Entry* entry = find_entry(id)) return add_mistake({{entry, 0}}, finding_.evidence);
    finding_.verdict = "unknown";
  }

  /// The smallest case that is wrong, as numbers: of those for a pencil one that the mistakes explain, if any is named.
  std::string counter_example(const Choices& spelling, const std::optional<Search::Found>& found) const {
    Choices all = spelling;
    for (std::size_t n = 0; found && n < found->wrong.size(); ++n) all.push_back(found->wrong[n].front());
    std::vector<const Case*> cases;
    for (const Case& one : by_hand_) {
      const std::optional<Work> work = run_with(task_, all, *one.probe);
      if (!found || (work && gives(*work, one))) cases.push_back(&one);
    }
    for (const Case& one : forward_) cases.push_back(&one);
    for (const Case* one : cases) {
      const std::optional<Work> work = run_with(task_, spelling, *one->probe);
      for (const auto& [name, given] : one->answers) {
        if (!work || !work->has(name)) continue;
        if (const auto at = difference(work->at(name), given))
          return heading(*one->probe) + row_text(name, work->at(name), given, *at);
      }
    }
    return "";
  }

  void name_mistakes(const std::optional<Search::Found>& found) {
    const Choices spelling = found ? found->spelling : Choices{};
    finding_.evidence = counter_example(spelling, found);
    if (found) {
      conventions(spelling);
      for (const std::vector<Choice>& same : found->wrong) add_mistake(same, finding_.evidence);
    } else if (errors_ > 0) {
      finding_.verdict = "failed";
    } else {
      // Output that is random in evaluation is no textbook's.
      for (const Case& one : later_) {
        if (one.probe->call("evaluation")) training(one, spelling);
      }
      if (finding_.verdict.empty()) finding_.verdict = "unknown";
    }
  }

  /// Properties that outputs do not show.
  void refine(const Choices& spelling) {
    for (const Case& one : later_) {
      if (one.probe->call("twice")) twice(one, spelling);
    }
    weights(spelling);
    for (const Case& one : later_) {
      if (one.probe->call("gradient")) gradient(one, spelling);
      if (one.probe->call("training") || one.probe->call("evaluation")) training(one, spelling);
    }
  }

  /// Right at one size: numbers for a pencil have others. What they show together with the rest is named first.
  void other_sizes(const Choices& spelling) {
    for (Case& one : by_hand_) {  // beside float32, what is added lest a sum be 0 is no size
      for (auto& [name, given] : one.answers) given.unit = given.unit < 0x1p-24 ? given.unit : 0x1p-11;
    }
    const auto right = [&](const Case& one) {
      const std::optional<Work> work = run_with(task_, spelling, *one.probe);
      return work && gives(*work, one);
    };
    if (const std::string unheeded = probes_.front().text("unheeded"); !unheeded.empty()) {
      finding_.evidence = unheeded + "\n";
      const std::string as = probes_.front().text("unheeded_as");
      return add_named(as.empty() ? "size-not-followed" : as);
    }
    const auto wrong = std::ranges::find_if_not(by_hand_, right);
    if (wrong == by_hand_.end() && failed_small_.empty()) {
      if (!by_hand_.empty()) finding_.checks.push_back({"other sizes", true, "the textbook's numbers"});
      return;
    }
    if (failed_small_.empty()) {
      std::vector<Case> all = forward_;
      std::ranges::copy(by_hand_, std::back_inserter(all));
      const Search search(task_, std::move(all), given_);
      if (search.right()) return;
      if (const std::optional<Search::Found> found = search.one()) return name_mistakes(found);
      finding_.evidence = counter_example(spelling, std::nullopt);
    } else {
      finding_.evidence = failed_small_[0] + ": " + failed_small_[1] + "\n";
      finding_.traceback = failed_small_[2];
    }
    finding_.checks.push_back({"other sizes", false, "right at the first sizes only"});
    add_named("size-not-followed");
  }

  void weights(const Choices& spelling) {
    bool averaged = false;
    for (const Case& one : with_weights_) {
      const auto given = std::ranges::find(one.answers, "weights", &std::pair<std::string, Given>::first);
      const std::optional<Work> work = run_with(task_, spelling, *one.probe);
      if (given == one.answers.end() || !work || !work->has("weights")) continue;
      const Array& expected = work->at("weights");
      if (matches(expected, given->second)) continue;
      if (expected.size(1) > 1 && matches(mean(expected, 1), given->second)) {
        averaged = true;
        continue;
      }
      const auto at = difference(expected, given->second);
      finding_.evidence = heading(*one.probe) + row_text("weights", expected, given->second, at.value_or(Difference{}));
      add_named(are_scores(*work, given->second) ? "weights-are-scores" : "");
      finding_.checks.push_back({"returned weights", false, "differ from the weights that the output was made with"});
      return;
    }
    if (averaged) add_convention(*find_entry("weights-averaged"));
  }

  void gradient(const Case& one, const Choices& spelling) {
    if (!std::ranges::any_of(one.answers, [](const auto& answer) { return answer.first.starts_with("d_"); })) return;
    const std::optional<GradientDifference> wrong = gradient_difference(task_, spelling, one);
    finding_.checks.push_back({"gradients", !wrong,
        wrong ? "d" + wrong->first + ": expected " + number_text(wrong->second.expected) + ", got " +
                    number_text(wrong->second.got)
              : "of x and of every parameter"});
    if (!wrong || !finding_.verdict.empty()) return;
    finding_.evidence = finding_.checks.back().detail + "\n";
    std::vector<Choice> same;
    for (const Entry* entry : entries_of(task_, false, Shows::kGradient)) {
      Choices with = spelling;
      with.push_back({entry, 0});
      if (textbook_with(task_, with) && !gradient_difference(task_, with, one)) same.push_back({entry, 0});
    }
    if (same.empty()) {
      finding_.verdict = "unknown";
    } else {
      add_mistake(same, finding_.evidence);
    }
  }

  /// The second of two calls; `changed_`: inputs after one; `apart_`: keys and values of their own; `finite_`: a bias;
  /// `masked_`: with the mask of the first; `later_`, `alone_`: after fewer tokens, sequences; `other_`: another mask.
  void twice(const Case& one, const Choices& spelling) {
    static constexpr std::array<std::string_view, 3> kCalls[] = {
        {"changed_", "inputs-changed", "the call changes its input "},
        {"apart_", "inputs-exchanged", "keys and values of their own give another output"},
        {"finite_", "bias-scaled", "a bias of any numbers gives another output"},
        {"half_", "fill-beyond-half", "NaN in float16"},
        {"", "state-left-behind", "the second call with the same input gives another output"},
        {"masked_", "inputs-changed", "the call changes its mask"},
        {"later_", "state-left-behind", "after a call with a token fewer it gives another output, or fails"},
        {"alone_", "state-left-behind", "after a call with one sequence it gives another output, or fails"},
        {"other_", "other-mask", "keys that its other mask hides change the output"}};
    const std::optional<Work> work = run_with(task_, spelling, *one.probe);
    for (const auto& [mark, id, says] : kCalls) {
      for (const auto& [name, given] : one.answers) {
        const std::string of = name.substr(name.starts_with(mark) ? mark.size() : 0);
        const bool input = mark == "changed_";
        if (!name.starts_with(mark) || !(input || (work && work->has(of) && of != "weights"))) continue;
        const Array& expected = input ? one.probe->at(of) : work->at(of);
        if (matches(expected, given)) continue;
        const bool fails = !fails_.empty() && std::isnan(given.values[0].value);
        finding_.checks.push_back(
            {mark == "half_" ? "float16" : "called twice", false, std::string(says) + (input ? of : "")});
        if (!finding_.verdict.empty()) return;
        finding_.evidence = row_text(of, expected, given, *difference(expected, given));
        if (fails) finding_.evidence = std::string(says) + "\n", finding_.traceback = fails_;
        return add_named(id);
      }
    }
    finding_.checks.push_back({"called twice", true, "the same output"});
  }

  void training(const Case& one, const Choices& spelling) {
    const std::optional<Work> work = run_with(task_, spelling, *one.probe);
    const auto out = std::ranges::find(one.answers, "out", &std::pair<std::string, Given>::first);
    if (!work || out == one.answers.end()) return;
    const DropoutFinding drops = judge_dropout(*work, out->second.values, out->second.unit);
    // After a layer's output projection dropout may be the residual's.
    const bool right = drops.right || (drops.id == "dropout-on-output" && task_.has("output"));
    finding_.checks.push_back({one.probe->text("name"), right, drops.detail});
    if (right && !drops.id.empty()) add_convention(*find_entry(drops.id));
    if (right || !finding_.verdict.empty() || (drops.id.empty() && !finding_.evidence.empty())) return;
    finding_.evidence = drops.detail + "\n";
    add_named(drops.id);
  }

  void check(const Case& one, const Choices& spelling) {
    const std::optional<Work> work = run_with(task_, spelling, *one.probe);
    Check check{one.probe->text("name"), true, sizes_text(*one.probe)};
    for (const auto& [name, given] : one.answers) {
      if (!work || !work->has(name)) continue;
      if (const auto at = difference(work->at(name), given)) {
        check.ok = false;
        check.detail = name + ": expected " + number_text(at->expected) + ", got " + number_text(at->got) +
                       " (rounding explains " + number_text(at->bound, "%.1e") + ")";
        if (std::isnan(at->expected) && std::isnan(at->got)) {  // numbers would agree: it is the shape
          check.detail = row_text(name, work->at(name), given, *at);
          check.detail.pop_back();  // its line's end
        }
      }
    }
    finding_.checks.push_back(std::move(check));
  }

  Task task_;  ///< its parts are those of the probes: an owner may be causal where the task is not
  Finding finding_;
  Choices given_;  ///< what the object lacks
  std::vector<Probe> probes_;
  std::vector<Case> forward_, with_weights_, later_, by_hand_;
  std::vector<Check> failures_;
  std::string fails_;                      ///< the traceback of a call after one of another size
  std::vector<std::string> failed_small_;  ///< of the first that failed at other sizes: probe, error, traceback
  int errors_ = 0, all_errors_ = 0;        ///< of forward calls; of all
  bool own_causal_ = false, pairs_ = true;
};

}  // namespace

Finding judge_together(
    const Task& task, const std::vector<StateDict>& probes, const std::vector<Answer>& answers, bool pairs) {
  return Trial(task, probes, answers, pairs).finding();
}

}  // namespace qkv::judge

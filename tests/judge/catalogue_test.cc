// Every entry of the catalogue, computed by its own edited textbook and rounded to float32, is named again: nothing
// hides behind another entry, nothing right is called wrong, and of functions beside layers no two entries are one but
// those that a table declares. Spellings by people are in wrong/ and right/ (corpus.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "judge/evidence.h"
#include "judge/report.h"
#include "judge/search/search.h"
#include "support/part.h"

namespace qkv::judge {
namespace {

/// Answers of code with these choices in float32; forward calls alone.
bool judged(
    const Task& task, const Choices& choices, std::uint64_t seed, Finding& finding, bool* everywhere = nullptr) {
  std::vector<StateDict> probes;
  std::vector<Answer> answers;
  for (const Probe& probe : task.probes(task.sizes, seed)) {
    if (probe.call("gradient") || probe.call("twice") || probe.call("training") || probe.call("evaluation")) continue;
    // float32 leaves a block's large scores no digit.
    const bool wide = task.has("block");
    const Range range(wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max());
    const std::optional<Work> work = run_with(task, choices, probe);
    if (!work && everywhere != nullptr) *everywhere = false;
    if (!work) continue;
    Answer answer;
    for (const std::string_view name : task.answers) {
      if (!work->has(name)) continue;
      const Array& array = work->at(name);
      Tensor<float> rounded(array.shape);
      for (Index i = 0; i < array.count(); ++i) rounded.data()[i] = static_cast<float>(array[i].value);
      answer.tensors.add(std::string(name), wide ? to_tensor(array) : any_tensor(rounded));
    }
    probes.push_back(to_state(probe));
    answers.push_back(std::move(answer));
  }
  if (answers.empty()) return false;
  finding = judge(task.name, probes, answers);
  return true;
}

/// Ids of which two are the same function in a task, in alphabetical order.
const std::set<std::pair<std::string, std::string>> kSame = {
    {"scale-1-over-d", "scale-twice"},
    {"fill-small", "fill-zero"},
    {"fill-small", "mask-multiplies-scores"},
    {"fill-zero", "mask-multiplies-scores"},
    {"v-uses-k-weights", "values-from-keys"},  // no biases
    {"linear-causal-ignored", "no-causal"},
    {"rope-direction-reversed", "rope-sine-cosine-exchanged"},  // in attention: both turn by a constant minus the angle
    {"flash-delta-of-weights", "flash-lse-again"},              // but for rounding out and lse
    {"t5-not-used", "t5-sign"},  // all keys of the past have one bias: a softmax does not see it
    {"sampling-top-p-short", "sampling-top-p-short-but-one"},  // where no token alone has more than p
    // Up to what float32 rounds, or in what one of two functions gives.
    {"lm-gradient-not-averaged", "lm-loss-sum"},
    {"norm-eps-ignored", "norm-eps-missing"},
    {"mask-after-softmax", "mask-after-softmax-filled"},
};

std::set<std::string> names(const Mistake& mistake) {
  std::set<std::string> out(mistake.same_as.begin(), mistake.same_as.end());
  out.insert(mistake.id);
  return out;
}

TEST(Catalogue, TheTextbookIsRight) {
  for (const Task& task : tasks()) {
    Finding finding;
    ASSERT_TRUE(judged(task, {}, 1, finding)) << task.name;
    EXPECT_EQ(finding.verdict, "right") << task.name << "\n" << finding.evidence;
  }
}

/// In the first task that has it, and in some of the others: most tasks share the mistakes of the formula.
TEST(Catalogue, EveryMistakeIsNamed) {
  std::map<const Entry*, std::size_t> tried;
  for (const Task& task : tasks()) {
    for (const Entry* entry : entries_of(task, false)) {
      constexpr std::size_t kStep = 5;
      if (tried[entry]++ % kStep != 0 && !test::all_cases()) continue;
      const Probe probe = task.probes(task.sizes, 3).front();
      std::vector<double> numbers = entry->numbers ? entry->numbers(probe) : std::vector<double>{0};
      const double number =
          entry->fitted ? (numbers[numbers.size() / 3] + numbers[numbers.size() / 3 + 1]) / 2 : numbers.front();
      Finding finding;
      if (!run_with(task, {{entry, number}}, probe)) continue;  // the task's shapes do not allow it
      bool everywhere = true;
      if (!judged(task, {{entry, number}}, 3, finding, &everywhere)) continue;  // no probe has shapes for it
      if (finding.right() && !everywhere)
        continue;  // it shows where a person's code would stop with an error of shapes
      EXPECT_EQ(finding.mistakes.size(), 1U) << task.name << ": " << entry->id << " " << finding.verdict << "\n"
                                             << finding.evidence;
      if (finding.mistakes.empty()) continue;
      const Mistake& named = finding.mistakes.front();
      EXPECT_TRUE(names(named).contains(std::string(entry->id)))
          << task.name << ": " << entry->id << " is named " << named.id;
      for (const std::string& other : task.has("layer") ? std::vector<std::string>() : named.same_as)
        EXPECT_TRUE(kSame.contains(std::minmax(named.id, other))) << task.name << ": " << named.id << " is " << other;
      // Which tensors, where the entry is of some.
      if (entry->some && named.id == entry->id) {
        EXPECT_EQ(named.says, entry->says) << task.name << ": " << entry->id;
      }
    }
  }
}

/// The finding where every probe's output is the textbook's, changed.
Finding judged_changed(const char* name, const std::function<void(Array&, const Probe&)>& change) {
  const Task& task = *find_task(name);
  std::vector<StateDict> probes;
  std::vector<Answer> answers;
  for (const Probe& probe : task.probes(task.sizes, 1)) {
    Array out = run(task.textbook, probe).at("out");
    change(out, probe);
    answers.emplace_back().tensors.add("out", to_tensor(out));
    probes.push_back(to_state(probe));
  }
  return judge(name, probes, answers);
}

TEST(Catalogue, UnexplainedSaysInWhichSituation) {
  const auto note = [](const char* name, bool (*wrong)(const Probe&)) {
    const Finding finding = judged_changed(name, [&](Array& out, const Probe& probe) {
      for (Index i = 0; wrong(probe) && i < out.count(); ++i)
        out[i] = out[i] + Number(0.01 * static_cast<double>(i % 7));
    });
    EXPECT_EQ(finding.verdict, "unknown");
    return finding.notes.empty() ? std::string() : finding.notes.front();
  };
  EXPECT_TRUE(note("sdpa", [](const Probe& p) { return p.has("mask"); }).starts_with("right without a mask"));
  EXPECT_TRUE(
      note("flash", [](const Probe& p) { return p.text("causal") == "1"; }).starts_with("right without the causal"));
  EXPECT_TRUE(
      note("causal", [](const Probe& p) { return p.at("q").shape != p.at("k").shape; }).starts_with("right with as"));
  EXPECT_EQ(note("sdpa", [](const Probe&) { return true; }), "");
}

TEST(Catalogue, AnOutputThatIsTheSameEverywhereNamesNoMistake) {
  for (const char* name : {"mha", "v3", "sdpa"}) {
    for (const double everywhere : {std::numeric_limits<double>::quiet_NaN(), 0.0}) {
      const Finding finding =
          judged_changed(name, [&](Array& out, const Probe&) { out = Array(out.shape, everywhere); });
      EXPECT_EQ(finding.verdict, "unknown");
      EXPECT_TRUE(
          finding.evidence.starts_with("The output is " + std::string(everywhere == 0 ? "0" : "NaN") + " everywhere"));
    }
  }
}

TEST(Catalogue, WhatAProgramSkipsIsSaid) {
  const auto first = [](const std::function<bool(const Probe&)>& skips) {
    std::vector<StateDict> probes;
    std::vector<Answer> answers;
    for (const Probe& probe : find_task("sdpa")->probes(find_task("sdpa")->sizes, 1)) {
      Answer& answer = answers.emplace_back();
      const bool later = probe.call("gradient") || probe.call("twice");
      if (later || skips(probe))
        answer.tensors.metadata["skipped"] = "no";
      else
        answer.tensors.add("out", to_tensor(run(find_task("sdpa")->textbook, probe).at("out")));
      probes.push_back(to_state(probe));
    }
    Subject subject;
    subject.task = "sdpa";
    const Finding finding = judge_readings(subject, probes, [&](std::size_t) { return std::move(answers); });
    return report(
        finding, false, {[](auto text) { return std::string(text); }, [](auto text) { return std::string(text); }});
  };
  EXPECT_TRUE(first([](const Probe& p) { return p.has("mask"); }).starts_with("right\n"));
  EXPECT_TRUE(first([](const Probe& p) {
    return p.has("mask") || p.text("name") == "one token";
  }).starts_with("right, as far as asked: one token was never tried\n"));
  const std::string one = first([](const Probe& p) { return p.text("name") != "plain"; });
  EXPECT_TRUE(one.starts_with("right, as far as asked: ") && one.find("1 check: plain") != std::string::npos) << one;
}

/// Whether parameters are read as they are meant, outputs say.
TEST(Catalogue, AReadingWhoseOutputsAreRightIsTheOne) {
  const Task& task = *find_task("sdpa");
  std::vector<StateDict> probes;
  for (const Probe& probe : task.probes(task.sizes, 1)) probes.push_back(to_state(probe));
  Subject subject;
  subject.task = task.name;
  subject.assignments.resize(2);
  const Finding finding = judge_readings(subject, probes, [&](std::size_t reading) {
    std::vector<Answer> answers;
    for (const StateDict& state : probes) {
      const Probe probe = to_probe(state);
      StateDict& answer = answers.emplace_back().tensors;
      if (probe.call("gradient") || probe.call("twice")) {
        answer.metadata["error"] = "no gradient";
        continue;
      }
      Array out = run(task.textbook, probe).at("out");
      for (Number& x : out.data) x.value += static_cast<double>(reading);
      answer.add("out", to_tensor(out));
    }
    return answers;
  });
  EXPECT_EQ(finding.reading, 0U) << finding.verdict;
  EXPECT_EQ(finding.verdict, "failed");
}

TEST(Catalogue, EverySentenceAndHintIsChineseToo) {
  for (const Entry& entry : catalogue()) {
    for (const std::string& text : {with_number(entry.says, -0.25), std::string(entry.hint)}) {
      const std::string said = chinese().said(text);
      EXPECT_TRUE(text.empty() || said != text) << entry.id << ": " << text;
      EXPECT_EQ(said.find('{'), std::string::npos) << said;
    }
  }
  const Entry* split = find_entry("split-without-transpose");
  EXPECT_TRUE(chinese().said(split->says).starts_with("q、k 和 v 只用 view(B, H, L, d) 拆头")) << split->says;
}

TEST(Catalogue, PairsAreNamedInFull) {
  int pairs = 0, named = 0;
  std::uint64_t state = 7;
  const auto below = [&state](std::size_t n) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(state >> 33U) % n;
  };
  while (pairs < 50) {
    const Task& task = *find_task(below(2) == 0 ? "mha" : "v3");
    const std::vector<const Entry*> entries = entries_of(task, false);
    const Entry *a = entries[below(entries.size())], *b = entries[below(entries.size())];
    const Probe probe = task.probes(task.sizes, 3).front();
    if (a->numbers || b->numbers || a->id == b->id || (!a->group.empty() && a->group == b->group)) continue;
    if (!run_with(task, {{a, 0}, {b, 0}}, probe)) continue;
    Finding finding;
    if (!judged(task, {{a, 0}, {b, 0}}, 5, finding) || finding.right() || finding.mistakes.size() == 1)
      continue;  // one of them suffices
    ++pairs;
    const auto found = [&](const Entry* entry) {
      return std::ranges::any_of(
          finding.mistakes, [&](const Mistake& m) { return names(m).count(std::string(entry->id)) > 0; });
    };
    const bool both = found(a) && found(b);
    named += both;
    if (!both) {
      std::cout << task.name << ": " << a->id << " + " << b->id << " is " << finding.verdict;
      for (const Mistake& mistake : finding.mistakes) std::cout << " " << mistake.id;
      std::cout << "\n";
    }
  }
  EXPECT_GE(named, 48);
}

}  // namespace
}  // namespace qkv::judge

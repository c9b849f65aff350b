// Functions of one task are programs of their own: each is judged by its own answers.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "judge/judge.h"
#include "judge/task.h"
#include "judge/text/language.h"

namespace qkv::judge {
namespace {

std::ptrdiff_t gravity(const Finding& finding) {
  constexpr std::array<std::string_view, 5> kOrder = {"right", "convention", "unknown", "wrong", "failed"};
  return std::ranges::find(kOrder, finding.verdict) - kOrder.begin();
}

template <class T> void add(std::vector<T>& to, const std::vector<T>& more, std::string T::*name) {
  for (const T& one : more) {
    if (std::ranges::find(to, one.*name, name) == to.end()) to.push_back(one);
  }
}

/// Of what one function cannot tell apart, the entry that changes least: what another function shows is right.
void narrow(Mistake& one, const Task& task) {
  const auto entry = [&](std::string_view id) {
    return std::ranges::find_if(catalogue(), [&](const Entry& each) { return each.id == id && applies(each, task); });
  };
  for (std::string& id : one.same_as) {
    if (entry(id)->lines.size() >= entry(one.id)->lines.size()) continue;
    std::swap(one.id, id);
    one.says = entry(one.id)->says, one.hint = entry(one.id)->hint;
  }
}

void add(Finding& to, const Finding& one) {
  if (gravity(one) > gravity(to)) to.verdict = one.verdict, to.evidence = one.evidence, to.traceback = one.traceback;
  add(to.mistakes, one.mistakes, &Mistake::id);
  add(to.conventions, one.conventions, &Convention::id);
  std::erase_if(to.checks, [&](const Check& check) {
    const auto same = std::ranges::find(one.checks, check.name, &Check::name);
    return check.ok && same != one.checks.end() && (!same->ok || same->asked);
  });
  add(to.checks, one.checks, &Check::name);
}

}  // namespace

Finding judge(
    std::string_view name, const std::vector<StateDict>& probes, const std::vector<Answer>& answers, bool pairs) {
  default_sizes(name);  // throws for an unknown one
  Task task = *find_task(name);
  if (task.probe_lines.empty() || task.functions.size() < 2) return judge_together(task, probes, answers, pairs);
  std::optional<Finding> all;
  for (const std::string_view returns : task.returns) {
    task.answers = words_of(returns);
    Finding one = judge_together(task, probes, answers, pairs);
    if (one.verdict == "failed" && std::ranges::all_of(one.checks, &Check::ok)) continue;  // no such function
    if (all) {
      if (all->right()) std::ranges::for_each(one.mistakes, [&](Mistake& each) { narrow(each, task); });
      add(*all, one);
    } else {
      all = std::move(one);
    }
  }
  return all ? *std::move(all) : judge_together(*find_task(name), probes, answers, pairs);
}

}  // namespace qkv::judge

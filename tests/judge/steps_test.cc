// Steps that programs of any language add to their answers: the first that is not right is said.
#include <gtest/gtest.h>

#include "judge/judge.h"
#include "judge/report.h"
#include "judge/task.h"

namespace qkv::judge {
namespace {

/// A finding of answers whose output is wrong; `change` gets the textbook's q, split into heads, and the answer.
Finding judged(const std::function<void(Array&, StateDict&)>& change) {
  const std::vector<StateDict> probes = make_probes("mha", default_sizes("mha"));
  return judge_readings({.task = "mha"}, probes, [&](std::size_t) {
    std::vector<Answer> answers;
    for (const StateDict& probe : probes) {
      const Work work = run(find_task("mha")->textbook, to_probe(probe));
      Array out = work.at("out"), q = work.at("q");
      for (Number& x : out.data) x.value += 0.25;
      StateDict& answer = answers.emplace_back().tensors;
      answer.add("out", to_tensor(out));
      change(q, answer);
    }
    return answers;
  });
}

TEST(Steps, TheFirstThatIsNotRightIsSaid) {
  const Finding found = judged([](Array& q, StateDict& answer) {
    answer.add("split.q", to_tensor(q));
    q.data[1].value += 1;
    answer.add("group.q", to_tensor(q));
  });
  EXPECT_EQ(found.where.find("right up to split.q; group.q is the first step that is not right\ngroup.q[0, 0, 0, "), 0u)
      << found.where;
  EXPECT_NE(found.where.find("shown by the probe"), std::string::npos);
}

TEST(Steps, WhatIsNoStepIsSaid) {
  const Finding found = judged([](Array& q, StateDict& answer) {
    answer.add("splits.q", to_tensor(q));
    answer.add("group.q", to_tensor(q));
  });
  EXPECT_EQ(found.where, "");
  ASSERT_FALSE(found.notes.empty());
  EXPECT_EQ(found.notes.back().find("splits.q is no step of mha; its steps begin with parameters."), 0u)
      << found.notes.back();
}

}  // namespace
}  // namespace qkv::judge

// judge_dropout where nothing is dropped. Mistakes of dropout, drawn anew for each seed: mistakes/dropout.txt.
#include "judge/dropout.h"

#include <gtest/gtest.h>

#include <vector>

#include "judge/search/search.h"

namespace qkv::judge {
namespace {

/// Calls without dropout, as they are with this number of repeats.
Array calls(const Work& work, Index repeats) {
  const Array out = matmul(work.at("weights"), work.at("v"));
  Shape shape = out.shape;
  shape.insert(shape.begin(), 1);
  return concat(std::vector<Array>(static_cast<std::size_t>(repeats), reshape(out, shape)), 0);
}

Probe training_probe(const Task& task, std::uint64_t seed, const char* call = "training") {
  for (Probe& probe : task.probes(task.sizes, seed)) {
    if (probe.call(call)) return probe;
  }
  ADD_FAILURE() << task.name << " has no probe of training";
  return {};
}

TEST(JudgeDropout, ZerosThatEveryCallHasAreAMasks) {
  const Task& task = *find_task("dropout");
  const Probe probe = training_probe(task, 0, "evaluation");
  const Work work = run(task.textbook, probe);
  Array hidden = calls(work, 5);
  for (Index n = 0; n < hidden.count(); ++n) hidden[n] = n % hidden.size(-1) > 2 ? hidden[n] * Number(2) : Number(0);
  EXPECT_EQ(judge_dropout(work, hidden, 0x1p-24).id, "");
}

TEST(JudgeDropout, NothingDroppedIsRightForPZero) {
  const Task& task = *find_task("dropout");
  Probe probe = training_probe(task, 0);
  probe.metadata["dropout"] = "0";
  const Work work = run(task.textbook, probe);
  Array out = calls(work, 5);
  EXPECT_TRUE(judge_dropout(work, out, 0x1p-24).right);
  for (Index n = 0; n < out.count(); n += 3) out[n] = 0;
  EXPECT_FALSE(judge_dropout(work, out, 0x1p-24).right);
}

TEST(JudgeDropout, OutputsOfOtherSizesAreNoCrash) {
  const Task& task = *find_task("dropout");
  const Probe probe = training_probe(task, 0);
  const Work work = run(task.textbook, probe);
  for (const Shape& shape :
      {Shape{}, Shape{0}, Shape{3}, Shape{2, 3, 4}, Shape{40, 2, 3, 5, 7}, Shape{0, 2, 3, 5, 14}}) {
    const DropoutFinding found = judge_dropout(work, Array(shape), 0x1p-24);
    EXPECT_FALSE(found.right);
    EXPECT_EQ(found.id, "");
  }
}

}  // namespace
}  // namespace qkv::judge

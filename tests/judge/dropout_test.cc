// judge_dropout where nothing is dropped. Mistakes of dropout, drawn anew for each seed: mistakes/dropout.txt.
#include "judge/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
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

const Task& dropout() { return *find_task("dropout"); }

Probe probe_of(const char* call) {
  const std::vector<Probe> all = dropout().probes(dropout().sizes, 0);
  return *std::ranges::find_if(all, [call](const Probe& probe) { return probe.call(call); });
}

TEST(JudgeDropout, ZerosThatEveryCallHasAreAMasks) {
  const Probe probe = probe_of("evaluation");
  const Work work = run(dropout().textbook, probe);
  Array hidden = calls(work, 5);
  for (Index n = 0; n < hidden.count(); ++n) hidden[n] = n % hidden.size(-1) > 2 ? hidden[n] * Number(2) : Number(0);
  EXPECT_EQ(judge_dropout(work, hidden, 0x1p-24).id, "");
}

TEST(JudgeDropout, NothingDroppedIsRightForPZero) {
  Probe probe = probe_of("training");
  probe.metadata["dropout"] = "0";
  const Work work = run(dropout().textbook, probe);
  Array out = calls(work, 5);
  EXPECT_TRUE(judge_dropout(work, out, 0x1p-24).right);
  Array other = out;  // noise, another precision: no dropout
  for (Index n = 0; n < out.count(); ++n) other[n] = out[n] * Number(1.001);
  EXPECT_FALSE(judge_dropout(work, other, 0x1p-24).right);
  EXPECT_EQ(judge_dropout(work, other, 0x1p-24).id, "");
  for (Index n = 0; n < out.count(); n += 3) out[n] = 0;
  EXPECT_EQ(judge_dropout(work, out, 0x1p-24).id, "dropout-other-rate");
}

TEST(JudgeDropout, OutputsOfOtherSizesAreNoCrash) {
  const Probe probe = probe_of("training");
  const Work work = run(dropout().textbook, probe);
  for (const Shape& shape :
      {Shape{}, Shape{0}, Shape{3}, Shape{2, 3, 4}, Shape{40, 2, 3, 5, 7}, Shape{0, 2, 3, 5, 14}}) {
    const DropoutFinding found = judge_dropout(work, Array(shape), 0x1p-24);
    EXPECT_FALSE(found.right);
    EXPECT_EQ(found.id, "");
  }
}

}  // namespace
}  // namespace qkv::judge

// Findings of judge_dropout in calls whose dropout is drawn here, right and wrong, of the function and of a layer.
#include "judge/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "judge/search/search.h"
#include "support/random.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// How a call drops.
struct Way {
  std::string id;  ///< what must be found; empty: right
  bool scores = false, values = false, rows_of_values = false, output = false, weights = true;
  double rate_factor = 1;  ///< the share that is dropped: p times this
  double power = 1;        ///< what is kept is multiplied by (1 / (1 - p))^power
  bool renormalised = false, fill_zero = false, keeps_p = false, one_head = false, same_calls = false;
};

struct Calls {
  const Work& work;
  double p;
  test::Random random;

  Number factor(const Way& way) {
    const double rate = way.keeps_p ? 1 - p : p * way.rate_factor;
    const double kept = way.keeps_p ? 1 / p : std::pow(1 / (1 - p), way.power);
    return random.unit() < rate ? 0.0 : kept;
  }
  Array dropped(const Array& a, const Way& way) {
    Array out = a;
    for (Number& x : out.data) x = x * factor(way);
    return out;
  }
  Array factors(const Way& way) {
    Array out = dropped(Array(work.at("weights").shape, 1), way);
    if (way.one_head) out = take(out, 1, std::vector<Index>(static_cast<std::size_t>(out.size(1)), 0));
    return out;
  }

  Array call(const Way& way) {
    Array weights = work.at("weights"), v = work.at("v");
    if (way.scores) {
      Array kept = factors(way), scores = work.at("scores");
      for (Index i = 0; i < scores.count(); ++i)
        scores[i] = kept[i].value == 0 && !way.fill_zero ? Number(-kInfinity) : scores[i] * kept[i];
      weights = softmax(scores);
    } else if (way.weights) {
      weights = weights * factors(way);
      if (way.renormalised) weights = zip(weights, sum(weights, -1), [](Number w, Number total) { return w / total; });
    }
    if (way.values) v = dropped(v, way);
    if (way.rows_of_values) v = v * dropped(Array({v.size(0), v.size(1), v.size(2), 1}, 1), way);
    const Array out = matmul(weights, v);
    return way.output ? dropped(out, way) : out;
  }

  /// Rounded to float32.
  Array calls(const Way& way, Index repeats) {
    std::vector<Array> all;
    const test::Random begin = random;
    for (Index r = 0; r < repeats; ++r) {
      if (way.same_calls) random = begin;
      Array one = call(way);
      for (Number& x : one.data) x = static_cast<double>(static_cast<float>(x.value));
      Shape shape = one.shape;
      shape.insert(shape.begin(), 1);
      all.push_back(reshape(std::move(one), std::move(shape)));
    }
    return concat(all, 0);
  }
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {.id = ""},
      {.id = "dropout-not-rescaled", .power = 0},
      {.id = "dropout-rescaled-otherwise", .power = 2},
      {.id = "dropout-rescaled-otherwise", .power = -1},
      {.id = "dropout-on-scores", .scores = true, .power = 0},
      {.id = "dropout-on-scores", .scores = true},
      {.id = "dropout-on-scores", .scores = true, .fill_zero = true},
      {.id = "dropout-on-scores", .scores = true, .power = 0, .fill_zero = true},
      {.id = "dropout-on-scores", .renormalised = true},
      {.id = "dropout-on-values", .values = true, .weights = false},
      {.id = "dropout-on-values", .values = true, .weights = false, .power = 0},
      {.id = "dropout-on-values", .rows_of_values = true, .weights = false},
      {.id = "dropout-never", .weights = false},
      {.id = "dropout-keeps-p", .keeps_p = true},
      {.id = "dropout-other-rate", .rate_factor = 0.5},
      {.id = "dropout-one-mask", .one_head = true},
      {.id = "dropout-same-every-call", .same_calls = true},
  };
  return all;
}

Probe training_probe(const Task& task, std::uint64_t seed, const char* call = "training") {
  for (Probe& probe : task.probes(task.sizes, seed)) {
    if (probe.call(call)) return probe;
  }
  ADD_FAILURE() << task.name << " has no probe of training";
  return {};
}

TEST(JudgeDropout, NamesWhatTheFunctionDrops) {
  const Task& task = *find_task("dropout");
  std::vector<Way> all = ways();
  all.push_back({.id = "dropout-on-output", .output = true, .weights = false});
  for (const Way& way : all) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Probe probe = training_probe(task, seed);
      const Work work = run(task.textbook, probe);
      Calls calls{work, probe.number("dropout"), test::Random(seed)};
      const DropoutFinding found = judge_dropout(work, calls.calls(way, probe.integer("repeat")), 0x1p-24);
      ASSERT_EQ(found.id, way.id) << found.detail << ", seed " << seed;
      ASSERT_EQ(found.right, way.id.empty());
    }
  }
}

TEST(JudgeDropout, NamesWhatALayerDrops) {
  for (const char* name : {"v4", "mha", "cross"}) {
    const Task& task = *find_task(name);
    for (const Way& way : ways()) {
      if (way.one_head && task.sizes.heads == 1) continue;
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        Probe probe = training_probe(task, seed);
        probe.metadata["dropout"] = "0.2";
        const Work work = run(task.textbook, probe);
        Calls calls{work, 0.2, test::Random(seed)};
        Array out = calls.calls(way, probe.integer("repeat"));  // [R, 1, H, L, d] -> [R, 1, L, H d]
        out = permute(out, {0, 1, 3, 2, 4});
        out = reshape(out, {out.size(0), out.size(1), out.size(2), out.size(3) * out.size(4)});
        const DropoutFinding found = judge_dropout(work, out, 0x1p-24);
        ASSERT_EQ(found.id, way.id) << name << ": " << found.detail << ", seed " << seed;
      }
    }
  }
}

TEST(JudgeDropout, EvaluationGivesTheWeights) {
  const Task& task = *find_task("dropout");
  const Probe probe = training_probe(task, 0, "evaluation");
  const Work work = run(task.textbook, probe);
  const double p = probe.number("dropout");
  Calls calls{work, p, test::Random(1)};
  EXPECT_TRUE(judge_dropout(work, calls.calls({.id = "", .weights = false}, 5), 0x1p-24).right);
  for (const Way& way : ways()) {
    if (way.weights && !way.values && !way.rows_of_values) {
      EXPECT_EQ(judge_dropout(work, calls.calls(way, 5), 0x1p-24).id, "dropout-in-evaluation") << way.id;
    }
  }
  Array hidden = calls.calls({.id = "", .weights = false}, 5);  // zeros, the same in every call: a mask's
  for (Index n = 0; n < hidden.count(); ++n) hidden[n] = n % hidden.size(-1) > 2 ? hidden[n] * Number(2) : Number(0);
  EXPECT_EQ(judge_dropout(work, hidden, 0x1p-24).id, "");
  Array smaller = calls.calls({.id = "", .weights = false}, 5);
  for (Number& x : smaller.data) x = x.value * (1 - p);
  EXPECT_EQ(judge_dropout(work, smaller, 0x1p-24).id, "dropout-scaled-in-evaluation");
}

TEST(JudgeDropout, NothingDroppedIsRightForPZero) {
  const Task& task = *find_task("dropout");
  Probe probe = training_probe(task, 0);
  probe.metadata["dropout"] = "0";
  const Work work = run(task.textbook, probe);
  Calls calls{work, 0.3, test::Random(1)};
  EXPECT_TRUE(judge_dropout(work, calls.calls({.id = "", .weights = false}, 5), 0x1p-24).right);
  EXPECT_FALSE(judge_dropout(work, calls.calls({.id = ""}, 5), 0x1p-24).right);
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

// The textbooks of cache, rope, flash, linear, backward and dropout against formulations of their own: the project's
// reference, its rotary positions, differences of a loss. That of lm: the exercise in PyTorch, which is judged right
// (corpus.py --exercises), has its gradients from autograd.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "judge/entry.h"
#include "judge/search/match.h"
#include "judge/task.h"
#include "qkv/rotary.h"
#include "reference/attention.h"
#include "reference/linear_attention.h"

namespace qkv::judge {
namespace {

constexpr double kUnit = 0x1p-53;

Tensor<double> tensor(const Array& a) {
  Tensor<double> out(a.shape);
  for (Index i = 0; i < a.count(); ++i) out.data()[i] = a[i].value;
  return out;
}

/// Within four times what Number says of rounding in f64, the reference's own included.
void expect_agrees(const Array& textbook, const Tensor<double>& expected, const std::string& what) {
  ASSERT_EQ(textbook.shape, expected.sizes()) << what;
  for (Index i = 0; i < textbook.count(); ++i) {
    ASSERT_TRUE(agrees(textbook[i], expected.data()[i], kUnit))
        << what << " at " << i << ": " << textbook[i].value << ", " << expected.data()[i] << ", bound "
        << bound_of(textbook[i], kUnit);
  }
}

std::vector<Probe> probes_of(const Task& task, std::uint64_t seed = 0) { return task.probes(task.sizes, seed); }

reference::Options<double> options_for(bool causal, Index queries, Index keys) {
  reference::Options<double> options;
  if (causal) options.keep = [=](Index, Index, Index i, Index j) { return j <= i + keys - queries; };
  return options;
}

reference::Forward<double> attend(const Array& q, const Array& k, const Array& v, bool causal) {
  const Tensor<double> a = tensor(q), b = tensor(k), c = tensor(v);
  return reference::attention_forward<double>(
      a.view<4>(), b.view<4>(), c.view<4>(), options_for(causal, q.size(2), k.size(2)));
}

TEST(Tasks, EveryProbeIsOneOfItsTask) {
  for (const Task& task : tasks()) {
    for (const std::uint64_t seed : {0, 1}) {
      for (const Probe& probe : probes_of(task, seed)) {
        EXPECT_NO_THROW(check_probe(task, probe)) << task.name << ", " << probe.text("name");
        const Work work = run(task.textbook, probe);
        for (const std::string_view answer : task.answers) EXPECT_TRUE(work.has(answer)) << task.name << ", " << answer;
      }
    }
  }
}

TEST(CacheTask, EqualsTheWholeSequence) {
  const Task& task = *find_task("cache");
  for (const Probe& probe : probes_of(task)) {
    const Index heads = probe.integer("heads");
    const auto project = [&](const char* weight) {
      return split_heads(matmul(probe.at("x"), probe.at(weight)), heads);
    };
    const reference::Forward<double> whole = attend(project("W_q"), project("W_k"), project("W_v"), true);
    Array values(whole.out.sizes());
    for (Index i = 0; i < values.count(); ++i) values[i] = whole.out.data()[i];
    expect_agrees(
        run(task.textbook, probe).at("out"), tensor(matmul(merge_heads(values), probe.at("W_o"))), probe.text("name"));
  }
}

TEST(CacheTask, RefusesStepsThatAreNotTheSequence) {
  const Task& task = *find_task("cache");
  Probe probe = probes_of(task).front();
  for (const char* steps : {"", "5,1", "3,1", "0,5", "-1,6", "5,x", "9223372036854775807,1", "x"}) {
    probe.metadata["steps"] = steps;
    EXPECT_THROW(check_probe(task, probe), OptionError) << steps;
  }
}

TEST(RopeTask, EqualsRotary) {
  const Task& task = *find_task("rope");
  for (const bool interleaved : {false, true}) {
    Textbook textbook = task.textbook;
    if (interleaved) textbook = edited(textbook, find_entry("rope-interleaved")->edits(0));
    for (const Probe& probe : probes_of(task)) {
      const Array& x = probe.at("x");
      RotaryOptions options;
      options.base = probe.number("base");
      options.layout = interleaved ? RotaryLayout::kInterleaved : RotaryLayout::kHalfSplit;
      const Rotary rotary(x.size(3), options);
      Tensor<Index> ids({1, x.size(2)});
      for (Index t = 0; t < x.size(2); ++t) ids.data()[t] = static_cast<Index>(probe.at("positions")[t].value);
      RotaryPositions positions;
      positions.ids = ids.view<2>();
      const auto turned = [&](const char* name) {
        Tensor<double> y = tensor(probe.at(name));
        rotary.forward(y.view<4>(), y.view<4>(), positions);
        return y;
      };
      const Work work = run(textbook, probe);
      expect_agrees(work.at("turned"), turned("x"), "turned, " + probe.text("name"));
      const Tensor<double> q = turned("q"), k = turned("k"), v = tensor(probe.at("v"));
      expect_agrees(work.at("out"), reference::attention_forward<double>(q.view<4>(), k.view<4>(), v.view<4>()).out,
          "out, " + probe.text("name"));
    }
  }
}

TEST(FlashTask, EqualsAttentionForAnyBlock) {
  const Task& task = *find_task("flash");
  for (Probe probe : probes_of(task)) {
    const bool causal = probe.text("causal") == "1";
    const Tensor<double> expected = attend(probe.at("q"), probe.at("k"), probe.at("v"), causal).out;
    for (const Index block : {probe.integer("block"), Index{1}, Index{2}, Index{5}, Index{100}}) {
      probe.metadata["block"] = std::to_string(block);
      expect_agrees(run(task.textbook, probe).at("out"), expected, probe.text("name") + ", " + std::to_string(block));
    }
  }
}

TEST(FlashTask, RefusesABlockOfNothing) {
  const Task& task = *find_task("flash");
  Probe probe = probes_of(task).front();
  for (const char* block : {"", "0", "-3", "x"}) {
    probe.metadata["block"] = block;
    EXPECT_THROW(check_probe(task, probe), OptionError) << block;
  }
}

TEST(LinearTask, EqualsTheRecurrence) {
  const Task& task = *find_task("linear");
  for (const Probe& probe : probes_of(task)) {
    const Tensor<double> q = tensor(probe.at("q")), k = tensor(probe.at("k")), v = tensor(probe.at("v"));
    reference::LinearOptions<double> options;
    options.causal = probe.text("causal") == "1";
    options.scale = 1.0;
    expect_agrees(run(task.textbook, probe).at("out"),
        reference::linear_attention_recurrent<double>(q.view<4>(), k.view<4>(), v.view<4>(), options).out,
        probe.text("name"));
  }
}

TEST(DropoutTask, EqualsAttentionInEvaluation) {
  const Task& task = *find_task("dropout");
  for (const Probe& probe : probes_of(task)) {
    if (probe.has("mask")) continue;  // as sdpa's
    expect_agrees(run(task.textbook, probe).at("out"), attend(probe.at("q"), probe.at("k"), probe.at("v"), false).out,
        probe.text("name"));
  }
}

TEST(BackwardTask, EqualsTheReference) {
  const Task& task = *find_task("backward");
  for (const Probe& probe : probes_of(task)) {
    const Tensor<double> q = tensor(probe.at("q")), k = tensor(probe.at("k")), v = tensor(probe.at("v")),
                         dout = tensor(probe.at("dout"));
    const auto expected = reference::attention_backward<double>(q.view<4>(), k.view<4>(), v.view<4>(), dout.view<4>(),
        {}, options_for(probe.text("causal") == "1", q.size(2), k.size(2)));
    const Work work = run(task.textbook, probe);
    expect_agrees(work.at("dq"), expected.dq, "dq, " + probe.text("name"));
    expect_agrees(work.at("dk"), expected.dk, "dk, " + probe.text("name"));
    expect_agrees(work.at("dv"), expected.dv, "dv, " + probe.text("name"));
  }
}

/// Central differences of `loss` with steps h and 2h: what the two differ by bounds the truncation, the loss's error
/// the rounding.
void expect_gradient(
    Probe probe, const std::string& name, const Array& gradient, const std::function<Number(const Probe&)>& loss) {
  ASSERT_EQ(gradient.shape, probe.at(name).shape) << name;
  constexpr double h = 0x1p-14;
  for (Index i = 0; i < gradient.count(); i += std::max<Index>(1, gradient.count() / 23)) {
    Number& x = probe.inputs[name][i];
    const Number kept = x;
    double error = 0;
    const auto difference = [&](double step) {
      x = kept.value + step;
      const Number up = loss(probe);
      x = kept.value - step;
      const Number down = loss(probe);
      x = kept;
      error = std::max(error, (up.error + down.error) * kUnit / (2 * step));
      return (up.value - down.value) / (2 * step);
    };
    const double near = difference(h), far = difference(2 * h);
    ASSERT_NEAR(gradient[i].value, near, std::fabs(near - far) + 4 * error) << name << " " << i;
  }
}

Number total(const Array& a) {
  Number all(0);
  for (const Number& x : a.data) all = all + x;
  return all;
}

TEST(BackwardTask, LayerEqualsDifferences) {
  const Task& task = *find_task("backward");
  const auto loss = [](const Probe& probe) {
    const Array& x = probe.at("x");
    const Array scores = matmul(matmul(x, probe.at("W_q")), transpose(matmul(x, probe.at("W_k"))));
    const Array weights = softmax(scores * Number(1 / std::sqrt(static_cast<double>(x.size(2)))));
    return total(matmul(matmul(weights, matmul(x, probe.at("W_v"))), probe.at("W_o")) * probe.at("dout_layer"));
  };
  for (const Probe& probe : probes_of(task)) {
    if (probe.text("name") == "large scores") continue;  // a softmax that is a step has no differences
    const Work work = run(task.textbook, probe);
    for (const char* name : {"x", "W_q", "W_k", "W_v", "W_o"})
      expect_gradient(probe, name, work.at("d" + std::string(name)), loss);
  }
}

TEST(LmTask, RefusesTokensOutsideTheVocabulary) {
  const Task& task = *find_task("lm");
  const Probe good = probes_of(task).front();
  for (const double token : {-1.0, 11.0, 0.5, 1e300, std::nan("")}) {
    Probe probe = good;
    probe.inputs["tokens"][3] = token;
    EXPECT_THROW(check_probe(task, probe), OptionError) << token;
  }
  Probe shorter = good;
  shorter.inputs["tokens"] = slice(good.at("tokens"), 1, 0, 3);
  EXPECT_THROW(check_probe(task, shorter), OptionError);
}

}  // namespace
}  // namespace qkv::judge

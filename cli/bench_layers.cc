// Cases of layers: a Linear, multi-head attention forward and backward, one training step of the toy language model.
#include <algorithm>
#include <cmath>
#include <memory>

#include "bench.h"
#include "core/random.h"
#include "qkv/lm/data.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/multi_head_attention.h"
#include "reference/attention.h"

namespace qkv::cli {
namespace {

constexpr Index kBatch = 16, kLength = 100, kWidth = 512, kHeads = 8;  // the articles' (16, 100, 512)

Tensor<float> random_tensor(std::vector<Index> sizes) {
  Tensor<float> tensor(std::move(sizes));
  Random random(17);
  for (float& value : tensor.span()) value = 2 * random.uniform_f32() - 1;
  return tensor;
}

/// y[0] = x[0] . weight[0] + bias[0], and the same for the last output.
Judgement judge_row(std::span<const float> x, std::span<const float> y, const nn::Parameter& weight,
                    const nn::Parameter& bias) {
  Judgement judgement;
  for (const std::size_t n : {std::size_t{0}, y.size() - 1}) {
    const std::span<const float> row = weight.value.subspan(n * x.size(), x.size());
    double exact = static_cast<double>(bias.value[n]), terms = std::abs(exact);
    for (std::size_t m = 0; m < x.size(); ++m) {
      exact += static_cast<double>(x[m]) * static_cast<double>(row[m]);
      terms += std::abs(static_cast<double>(x[m]) * static_cast<double>(row[m]));
    }
    judgement = worse(judgement, judge_sum(static_cast<double>(y[n]), exact, terms));
  }
  return judgement;
}

BenchCase linear_case() {
  BenchCase one;
  one.name = "linear-f32-1600x512x512";
  one.quick = true;
  one.goal = 0.85;
  constexpr Index kRows = kBatch * kLength;
  one.work = 2.0 * kRows * kWidth * kWidth;
  one.prepare = [](Context& context) -> Prepared {
    struct Problem {
      nn::Linear layer{{.in_features = kWidth, .out_features = kWidth}};
      Tensor<float> x = random_tensor({kRows, kWidth}), y{kRows, kWidth};
    };
    auto p = std::make_shared<Problem>();
    return {[p, &context] { p->layer.forward(p->x, p->y, context); },
            [p] {
              const std::vector<nn::Parameter> parameters = p->layer.parameters();  // weight, bias
              const auto row = [](const Tensor<float>& rows) { return rows.span().first(kWidth); };
              return judge_row(row(p->x), row(p->y), parameters[0], parameters[1]);
            }};
  };
  return one;
}

struct MhaProblem {
  nn::MultiHeadAttention layer{{.embed_dim = kWidth, .num_heads = kHeads}};
  Tensor<float> x = random_tensor({kBatch, kLength, kWidth}), y{kBatch, kLength, kWidth};
  Tensor<float> dy = random_tensor({kBatch, kLength, kWidth}), dx{kBatch, kLength, kWidth};
  nn::Saved saved;
};

/// One row of the projections, one head of the attention between them, one row of the output.
Judgement judge_mha(MhaProblem& p) {
  const std::vector<nn::Parameter> parameters = p.layer.parameters();  // q, k, v, o: weight, bias each
  const auto parameter = [&](std::string_view name) { return *std::ranges::find(parameters, name, &nn::Parameter::name); };
  const auto row = [](const Tensor<float>& rows) { return std::span<const float>(rows.data(), kWidth); };
  Judgement judgement = judge_row(row(p.x), row(p.saved.projected), parameter("q_proj.weight"), parameter("q_proj.bias"));
  judgement =
      worse(judgement, judge_row(row(p.saved.attended), row(p.y), parameter("o_proj.weight"), parameter("o_proj.bias")));

  constexpr Index kHeadDim = kWidth / kHeads;
  const View<const float, 3> projected = p.saved.projected;  // [B, T, 3E]
  const auto first_head = [&](Index begin) {                 // of the first sequence: [1, 1, T, D]
    return split_heads(projected.sliced(0, 0, 1).sliced(2, begin, begin + kWidth), kHeads).sliced(1, 0, 1);
  };
  const auto widened = [](const View<const float, 4>& x) {
    Tensor<double> wide({1, 1, x.size(2), x.size(3)});
    for (Index i = 0; i < x.size(2); ++i) {
      for (Index d = 0; d < x.size(3); ++d) wide.view<4>()(0, 0, i, d) = static_cast<double>(x(0, 0, i, d));
    }
    return wide;
  };
  const auto q = first_head(0), k = first_head(kWidth), v = first_head(2 * kWidth);
  double largest = 0;  // no sum of w |v| exceeds it
  for (const float value : p.saved.projected.span()) largest = std::max(largest, std::abs(static_cast<double>(value)));
  const Tensor<float> naive = reference::attention_forward<float>(q, k, v).out;
  const Tensor<double> exact = reference::attention_forward<double>(widened(q), widened(k), widened(v)).out;
  Tensor<float> got({kLength, kHeadDim});
  for (Index i = 0; i < kLength; ++i) std::copy_n(p.saved.attended.data() + i * kWidth, kHeadDim, got.data() + i * kHeadDim);
  return worse(judgement, judge<float>(std::as_const(got).span(), naive.span(), exact.span(), largest));
}

BenchCase mha_case(bool backward) {
  BenchCase one;
  one.name = backward ? "mha-bwd-f32-b16-t100-e512-h8" : "mha-fwd-f32-b16-t100-e512-h8";
  one.quick = true;
  one.goal = backward ? 0.55 : 0.65;
  const double products = 4 * 2.0 * kBatch * kLength * kWidth * kWidth;
  const double attention = 4.0 * kBatch * kLength * kLength * kWidth;
  one.work = backward ? 2 * products + 2.5 * attention : products + attention;
  one.prepare = [backward](Context& context) -> Prepared {
    auto p = std::make_shared<MhaProblem>();
    const auto forward = [p, &context] { p->layer.forward_into(p->x, p->y, {.context = &context}, &p->saved); };
    forward();
    const auto judged = [p] { return judge_mha(*p); };
    if (!backward) return {forward, judged};
    return {[p, &context] { p->layer.backward_into(p->dy, p->saved, p->dx, &context); }, judged};
  };
  return one;
}

struct StepProblem {
  lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(lm::default_text());
  lm::BatchSource source = lm::BatchSource::windows(tokenizer.encode(lm::default_text()), {}, 0);
  lm::AttentionLM model{{.vocab_size = tokenizer.vocab_size()}};
  lm::Trainer trainer{model, {.steps = Index{1} << 40}};
};

/// The loss of the next batch against the cross-entropy of the model's own logits in f64.
Judgement judge_step(StepProblem& p, Context& context) {
  lm::Batch batch;
  p.source.fill(p.trainer.steps_done(), batch);
  const Tensor<float> logits = p.model.logits(batch.inputs, context);  // [B, T, V]
  const Index symbols = logits.size(2);
  double exact = 0;
  for (Index at = 0; at < batch.targets.count(); ++at) {
    double sum = 0;
    for (Index v = 0; v < symbols; ++v) sum += std::exp(static_cast<double>(logits.data()[at * symbols + v]));
    exact += std::log(sum) - static_cast<double>(logits.data()[at * symbols + batch.targets.data()[at]]);
  }
  exact /= static_cast<double>(batch.targets.count());
  return judge_sum(p.trainer.step(p.source, context), exact, 1 + exact);
}

BenchCase step_case() {
  BenchCase one;
  one.name = "lm-step";
  one.quick = true;
  one.goal_ms = 0.375;  // 800 steps in 0.3 s
  constexpr double kTokens = 32 * 16, kDim = 32, kVocab = 7, kContext = 16;
  one.work = 3 * kTokens * (4 * 2 * kDim * kDim + 2 * kDim * kVocab) + 3.5 * 4 * kTokens * kContext * kDim / 2;
  one.prepare = [](Context& context) -> Prepared {
    auto p = std::make_shared<StepProblem>();
    return {[p, &context] { p->trainer.step(p->source, context); }, [p, &context] { return judge_step(*p, context); }};
  };
  return one;
}

}  // namespace

std::vector<BenchCase> layer_cases() { return {linear_case(), mha_case(false), mha_case(true), step_case()}; }

}  // namespace qkv::cli

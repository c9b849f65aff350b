// Cases of layers: a Linear and multi-head attention in f32 and in bf16, forward and with backward, at the articles'
// and BERT's width and as small as latency shows; the toy language model, one step and 800 steps as the whole process
// that a person waits for.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>

#include "bench/bench.h"
#include "qkv/lm/data.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/self_attention.h"

namespace qkv::cli {
namespace {

constexpr Index kRows = 1600, kWidth = 512;  // the articles' (16, 100, 512)

BenchCase linear_case(const char* name, const char* type, std::function<Prepared(Context&)> prepare) {
  return {.name = fmt::format("linear-{}-{}x{}x{}", name, kRows, kWidth, kWidth),
      .group = "layers",
      .shape = fmt::format("{} rows, {} -> {}", kRows, kWidth, kWidth),
      .type = type,
      .prepare = std::move(prepare)};
}

constexpr double kLinearFlops = 2.0 * kRows * kWidth * kWidth;

Prepared linear_f32(Context& context) {
  struct Problem {
    Random random{17};
    nn::Linear layer{{.in_features = kWidth, .out_features = kWidth}};
    Tensor<float> x = uniform_tensor<float>(random, {kRows, kWidth}), y{kRows, kWidth};
  };
  const auto p = std::make_shared<Problem>();
  return {.run = [p, &context] { p->layer.forward(p->x, p->y, context); }, .flops = kLinearFlops};
}

/// Weights in bf16.
template <bool kBackward> Prepared linear_bf16(Context& context) {
  struct Problem {
    Random random{17};
    Tensor<BFloat16> x = uniform_tensor<BFloat16>(random, {kRows, kWidth}),
                     weight = uniform_tensor<BFloat16>(random, {kWidth, kWidth}),
                     dy = uniform_tensor<BFloat16>(random, {kRows, kWidth}), y{kRows, kWidth}, dx{kRows, kWidth};
    Tensor<float> bias = uniform_tensor<float>(random, {kWidth}), dweight{kWidth, kWidth}, dbias{kWidth};
  };
  const auto p = std::make_shared<Problem>();
  const auto run = [p, &context] {
    if constexpr (kBackward) nn::linear_backward(p->x, p->dy, p->weight, p->dx, p->dweight, p->dbias, context);
    if constexpr (!kBackward) nn::linear_forward(p->x, p->weight, p->bias, p->y, context);
  };
  return {.run = run, .flops = (kBackward ? 2 : 1) * kLinearFlops};
}

struct MhaShape {
  Index batch = 0, length = 0, width = 0, num_heads = 0;

  double product_flops() const { return 4 * 2.0 * static_cast<double>(batch * length * width * width); }
  double attention_flops() const { return 4.0 * static_cast<double>(batch * length * length * width); }
};

template <class T> BenchCase mha_case(const MhaShape& s, bool backward) {
  const char* const type = sizeof(T) == 4 ? "f32" : "bf16";
  const auto prepare = [s, backward](Context& context) {
    struct Problem {
      nn::MultiHeadAttention layer;
      Tensor<T> x, dy, y, dx;  // [B, T, E]
      nn::SavedOf<T> saved{};
    };
    Random random(17);
    const std::vector<Index> sizes{s.batch, s.length, s.width};
    const nn::LayerConfig options{.embed_dim = s.width, .num_heads = s.num_heads};
    const auto p = std::make_shared<Problem>(Problem{nn::MultiHeadAttention(options), uniform_tensor<T>(random, sizes),
        uniform_tensor<T>(random, sizes), Tensor<T>(sizes), Tensor<T>(sizes)});
    const auto run = [p, backward, &context] {
      p->layer.forward_into(p->x, p->y, {.context = &context}, backward ? &p->saved : nullptr);
      if (backward) p->layer.backward_into(p->dy, p->saved, p->dx, context);
    };
    return Prepared{
        .run = run, .flops = (backward ? 3 : 1) * s.product_flops() + (backward ? 3.5 : 1) * s.attention_flops()};
  };
  return {.name = fmt::format(
              "mha-{}-{}-b{}-t{}-e{}-h{}", backward ? "fwdbwd" : "fwd", type, s.batch, s.length, s.width, s.num_heads),
      .group = "layers",
      .shape = fmt::format("B{} T{} E{} H{}", s.batch, s.length, s.width, s.num_heads),
      .type = type,
      .goal = sizeof(T) == 4 ? 0.85 : 0,
      .prepare = prepare};
}

constexpr Index kSteps = 800;
constexpr double kTokens = 32 * 16, kDim = 32, kVocab = 7, kContext = 16;
constexpr double kStepFlops =
    3 * kTokens * (4 * 2 * kDim * kDim + 2 * kDim * kVocab) + 3.5 * 4 * kTokens * kContext * kDim / 2;

struct StepProblem {
  lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(lm::default_text());
  lm::BatchSource source = lm::BatchSource::windows(tokenizer.encode(lm::default_text()), {}, 0);
  lm::AttentionLM model{{.vocab_size = tokenizer.vocab_size()}};
  lm::Trainer trainer{model, {.steps = Index{1} << 40}};
};

/// `qkv train` with nothing to read or write, from start to exit.
void train_as_process(const Context& context) {
  const std::string command =
      fmt::format("'{}' train --steps {} --seed 0 --threads {} --isa {} --bits {} --json > /dev/null",
          std::filesystem::read_symlink("/proc/self/exe").string(), kSteps, context.threads(), isa_name(context.isa()),
          bits_name(context.bits()));
  if (std::system(command.c_str()) != 0)
    throw std::runtime_error("lm-process: qkv train could not be run in its own process");
}

}  // namespace

std::vector<BenchCase> layer_cases() {
  std::vector<BenchCase> cases{linear_case("f32", "f32", linear_f32), linear_case("bf16", "bf16", linear_bf16<false>),
      linear_case("bwd-bf16", "bf16", linear_bf16<true>)};
  for (const MhaShape& s : {MhaShape{16, 100, 512, 8}, MhaShape{8, 128, 768, 12}, MhaShape{1, 8, 64, 4}}) {
    for (const bool backward : {false, true}) cases.push_back(mha_case<float>(s, backward));
    for (const bool backward : {false, true})
      if (s.length > 8) cases.push_back(mha_case<BFloat16>(s, backward));
  }
  cases.push_back({.name = "lm-step", .group = "lm", .shape = "B32 T16 E32 H1, Adam", .prepare = [](Context& context) {
                     const auto p = std::make_shared<StepProblem>();
                     return Prepared{
                         .run = [p, &context] { p->trainer.step(p->source, context); }, .flops = kStepFlops};
                   }});
  cases.push_back({.name = "lm-process",
      .group = "lm",
      .shape = fmt::format("{} steps, start to exit", kSteps),
      .prepare = [](Context& context) {
        return Prepared{.run = [&context] { train_as_process(context); }, .flops = kSteps * kStepFlops};
      }});
  return cases;
}

}  // namespace qkv::cli

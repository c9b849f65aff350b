// Cases of layers: a Linear and multi-head attention in f32 and in bf16, forward and with backward, at the articles'
// and BERT's width and as small as latency shows; the toy language model, one step and 800 steps as the whole process
// that a person waits for.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "bench/bench.h"
#include "core/random.h"
#include "qkv/lm/data.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/self_attention.h"

namespace qkv::cli {
namespace {

template <class T> Tensor<T> random_tensor(std::vector<Index> sizes) {
  Tensor<T> tensor(std::move(sizes));
  Random random(17);
  for (T& value : tensor.span()) value = T(2 * random.uniform_f32() - 1);
  return tensor;
}

template <class T> double number(const Tensor<T>& tensor, Index n) {
  return static_cast<double>(static_cast<float>(tensor.data()[n]));
}

/// exact + a sum of `count` terms, which a number of type T has rounded once more.
template <class T, class Term> Judgement judge_element(double got, double exact, Index count, const Term& term) {
  double terms = std::abs(exact);
  for (Index n = 0; n < count; ++n) {
    exact += term(n);
    terms += std::abs(term(n));
  }
  Judgement judgement = judge_sum(got, exact, terms);
  if (sizeof(T) == 2) judgement.bound += epsilon_of<T> / 2 * std::abs(exact);
  return judgement;
}

/// y [1600, 512] = x weight^T + bias, the articles' (16, 100, 512); a layer's own weights in f32.
template <class T> struct Linear {
  static constexpr Index kRows = 1600, kWidth = 512;
  nn::Linear layer{{.in_features = kWidth, .out_features = kWidth}};
  Tensor<T> x = random_tensor<T>({kRows, kWidth}), weight = random_tensor<T>({kWidth, kWidth}), y{kRows, kWidth};
  Tensor<T> dy = random_tensor<T>({kRows, kWidth}), dx{kRows, kWidth};
  Tensor<float> bias = random_tensor<float>({kWidth}), dweight{kWidth, kWidth}, dbias{kWidth};

  Linear() {
    if constexpr (sizeof(T) == 4) {
      const std::vector<nn::Parameter> own = layer.parameters();  // weight, bias
      std::ranges::copy(own[0].value, weight.data());
      std::ranges::copy(own[1].value, bias.data());
    }
  }
  void run(bool backward, Context& context) {
    if constexpr (sizeof(T) == 4) {
      layer.forward(x, y, context);
    } else if (backward) {
      nn::linear_backward(x, dy, weight, dx, dweight, dbias, context);
    } else {
      nn::linear_forward(x, weight, bias, y, context);
    }
  }
  /// y[0, 0] = bias[0] + sum_k x[0, k] weight[0, k];  dx[0, 0] = sum_n dy[0, n] weight[n, 0];  dweight[0, 0] = sum_m
  /// dy[m, 0] x[m, 0]
  Judgement judge(bool backward, Context& context) {
    if (!backward)
      return judge_element<T>(
          number(y, 0), number(bias, 0), kWidth, [&](Index k) { return number(x, k) * number(weight, k); });
    std::ranges::fill(dweight.span(), 0.0F);
    run(true, context);
    const Judgement rows =
        judge_element<T>(number(dx, 0), 0, kWidth, [&](Index n) { return number(dy, n) * number(weight, n * kWidth); });
    return worse(rows, judge_element<float>(number(dweight, 0), 0, kRows,
                           [&](Index m) { return number(dy, m * kWidth) * number(x, m * kWidth); }));
  }
};

template <class T> BenchCase linear_case(const char* name, bool backward) {
  using L = Linear<T>;
  return {.name = fmt::format("linear-{}-{}x{}x{}", name, L::kRows, L::kWidth, L::kWidth),
      .shape = fmt::format("{} rows, {} -> {}", L::kRows, L::kWidth, L::kWidth),
      .type = sizeof(T) == 4 ? "f32" : "bf16",
      .quick = sizeof(T) == 4,
      .goal = sizeof(T) == 4 ? 0.85 : 0,
      .prepare = [backward](Context& context) {
        const auto p = std::make_shared<L>();
        return Prepared{.run = [p, backward, &context] { p->run(backward, context); },
            .judge = [p, backward, &context] { return p->judge(backward, context); },
            .flops = (backward ? 2 : 1) * 2.0 * L::kRows * L::kWidth * L::kWidth};
      }};
}

struct MhaShape {
  Index batch = 0, length = 0, width = 0, num_heads = 0;

  double product_flops() const { return 4 * 2.0 * static_cast<double>(batch * length * width * width); }
  double attention_flops() const { return 4.0 * static_cast<double>(batch * length * length * width); }
};

template <class T> struct MhaProblem {
  nn::MultiHeadAttention layer;
  Tensor<T> x, y, dy, dx;  // [B, T, E]
  nn::SavedOf<T> saved{};

  explicit MhaProblem(const MhaShape& s)
      : layer({.embed_dim = s.width, .num_heads = s.num_heads}),
        x(random_tensor<T>({s.batch, s.length, s.width})),
        y(x.sizes()),
        dy(random_tensor<T>({s.batch, s.length, s.width})),
        dx(x.sizes()) {}

  void run(bool backward, Context& context) {
    layer.forward_into(x, y, {.context = &context}, backward ? &saved : nullptr);
    if (backward) layer.backward_into(dy, saved, dx, context);
  }
  /// One number of the projections and one of the output; attention has cases of its own.
  Judgement judge() {
    const std::vector<nn::Parameter> parameters = layer.parameters();
    layer.forward_into(x, y, {}, &saved);
    const auto first = [&](const Tensor<T>& in, const Tensor<T>& out, const std::string& name) {
      const auto named = [&](const char* part) {
        return std::ranges::find(parameters, name + part, &nn::Parameter::name)->value;
      };
      const std::span<const float> weight = named(".weight"), bias = named(".bias");
      return judge_element<T>(number(out, 0), static_cast<double>(bias[0]), x.size(2), [&](Index k) {
        return number(in, k) * static_cast<double>(static_cast<float>(T(weight[static_cast<std::size_t>(k)])));
      });
    };
    return worse(first(x, saved.projected, "q_proj"), first(saved.attended, y, "o_proj"));
  }
};

template <class T> BenchCase mha_case(const MhaShape& s, bool backward, double goal, double goal_ms) {
  const char* const type = sizeof(T) == 4 ? "f32" : "bf16";
  return {.name = fmt::format(
              "mha-{}-{}-b{}-t{}-e{}-h{}", backward ? "fwdbwd" : "fwd", type, s.batch, s.length, s.width, s.num_heads),
      .shape = fmt::format("B{} T{} E{} H{}", s.batch, s.length, s.width, s.num_heads),
      .type = type,
      .quick = s.width <= 512,
      .goal = goal,
      .goal_ms = goal_ms,
      .prepare = [s, backward](Context& context) {
        const auto p = std::make_shared<MhaProblem<T>>(s);
        return Prepared{.run = [p, backward, &context] { p->run(backward, context); },
            .judge = [p] { return p->judge(); },
            .flops = (backward ? 3 : 1) * s.product_flops() + (backward ? 3.5 : 1) * s.attention_flops()};
      }};
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

  /// The loss of the next batch against the cross-entropy of the model's own logits in f64.
  Judgement judge(Context& context) {
    lm::Batch batch;
    source.fill(trainer.steps_done(), batch);
    const Tensor<float> logits = model.logits(batch.inputs, context);  // [B, T, V]
    const Index symbols = logits.size(2);
    double exact = 0;
    for (Index at = 0; at < batch.targets.count(); ++at) {
      double sum = 0;
      for (Index v = 0; v < symbols; ++v) sum += std::exp(number(logits, at * symbols + v));
      exact += std::log(sum) - number(logits, at * symbols + batch.targets.data()[at]);
    }
    exact /= static_cast<double>(batch.targets.count());
    return judge_sum(trainer.step(source, context), exact, 1 + exact);
  }
};

/// `qkv train` with nothing to read or write, from start to exit.
void train_as_process(int threads, const std::string& isa) {
  std::vector<std::string> words{"qkv", "train", "--steps", std::to_string(kSteps), "--seed", "0", "--threads",
      std::to_string(threads), "--isa", isa, "--json"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (failed != 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("lm-process: qkv train could not be run in its own process");
}

}  // namespace

std::vector<BenchCase> layer_cases() {
  std::vector<BenchCase> cases{
      linear_case<float>("f32", false), linear_case<BFloat16>("bf16", false), linear_case<BFloat16>("bwd-bf16", true)};
  for (const MhaShape& s : {MhaShape{16, 100, 512, 8}, MhaShape{8, 128, 768, 12}}) {
    cases.push_back(mha_case<float>(s, false, 0.85, 0));
    cases.push_back(mha_case<float>(s, true, 0.80, 0));
    cases.push_back(mha_case<BFloat16>(s, false, 0, 0));
    cases.push_back(mha_case<BFloat16>(s, true, 0, 0));
  }
  const MhaShape small{1, 8, 64, 4};
  // An eighth of PyTorch's 33 us and a tenth of its 180 us, as measured on a Zen 5.
  cases.push_back(mha_case<float>(small, false, 0, 33e-3 / 8));
  cases.push_back(mha_case<float>(small, true, 0, 180e-3 / 10));
  for (BenchCase& one : cases) one.group = "layers";
  cases.push_back({.name = "lm-step",
      .group = "lm",
      .shape = "B32 T16 E32 H1, Adam",
      .quick = true,
      .goal_ms = 1.0 / 8,  // an eighth of PyTorch's 1.0 ms, as measured on a Zen 5
      .prepare = [](Context& context) {
        const auto p = std::make_shared<StepProblem>();
        return Prepared{.run = [p, &context] { p->trainer.step(p->source, context); },
            .judge = [p, &context] { return p->judge(context); },
            .flops = kStepFlops};
      }});
  cases.push_back({.name = "lm-process",
      .group = "lm",
      .shape = fmt::format("{} steps, start to exit", kSteps),
      .quick = true,
      .goal_ms = 300,  // what the first issue asks for
      .prepare = [](Context& context) {
        return Prepared{
            .run = [&context] { train_as_process(context.threads(), std::string(isa_name(context.isa()))); },
            .flops = kSteps * kStepFlops};
      }});
  return cases;
}

}  // namespace qkv::cli

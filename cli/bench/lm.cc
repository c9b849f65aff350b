// Cases of the toy language model: one training step, and 800 steps as the whole process that a person waits for.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <stdexcept>

#include "bench/bench.h"
#include "qkv/lm/data.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"

namespace qkv::cli {
namespace {

constexpr Index kSteps = 800;
constexpr double kTokens = 32 * 16, kDim = 32, kVocab = 7, kContext = 16;
constexpr double kStepFlops = 3 * kTokens * (4 * 2 * kDim * kDim + 2 * kDim * kVocab) + 3.5 * 4 * kTokens * kContext * kDim / 2;

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
  one.shape = "B32 T16 E32 H1, Adam";
  one.goal_ms = 1.0 / 8;  // an eighth of PyTorch's 1.0 ms, as measured on a Zen 5
  one.prepare = [](Context& context) {
    auto p = std::make_shared<StepProblem>();
    Prepared prepared;
    prepared.flops = kStepFlops;
    prepared.run = [p, &context] { p->trainer.step(p->source, context); };
    prepared.judge = [p, &context] { return judge_step(*p, context); };
    return prepared;
  };
  return one;
}

/// `qkv train` with nothing to read or write, from start to exit.
void train_as_process(int threads, const std::string& isa) {
  std::vector<std::string> words{"qkv",    "train", "--steps",   std::to_string(kSteps),
                                 "--seed", "0",     "--threads", std::to_string(threads),
                                 "--isa",  isa,     "--json"};
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
  if (failed != 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("lm-process: qkv train could not be run in its own process");
  }
}

BenchCase process_case() {
  BenchCase one;
  one.name = "lm-process";
  one.shape = fmt::format("{} steps, start to exit", kSteps);
  one.goal_ms = 300;  // what the first issue asks for
  one.prepare = [](Context& context) {
    Prepared prepared;
    prepared.flops = kSteps * kStepFlops;
    prepared.run = [&context] { train_as_process(context.threads(), std::string(isa_name(context.isa()))); };
    return prepared;
  };
  return one;
}

}  // namespace

std::vector<BenchCase> lm_cases() {
  std::vector<BenchCase> cases{step_case(), process_case()};
  for (BenchCase& one : cases) {
    one.group = "lm";
    one.quick = true;
  }
  return cases;
}

}  // namespace qkv::cli

#include "train/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "qkv/dist/reduce.h"
#include "support/command.h"

namespace qkv::cli {
namespace {

/// FNV-1a, 64 bits: to see that ranks hold the same, not against malice.
std::string hash_of(std::span<const std::byte> bytes, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

std::string hash_of(lm::AttentionLM& model) {
  std::vector<float> all;
  for (const nn::Parameter& parameter : model.parameters())
    all.insert(all.end(), parameter.value.begin(), parameter.value.end());
  return hash_of(std::as_bytes(std::span(all)));
}

std::string hash_of(const lm::BatchSource& source) {
  if (source.steps() == 0) return "none";
  lm::Batch batch;
  source.fill(0, batch);
  return hash_of(std::as_bytes(batch.inputs.span())) + hash_of(std::as_bytes(batch.targets.span()));
}

/// The loss of the whole batch; the parameters' gradients become its gradients. A rank's loss is the mean over its targets, so it
/// counts as many times as the rank has targets.
double reduce_step(dist::Transport& transport, double loss, const lm::Batch& batch, std::span<const nn::Parameter> parameters,
                   std::vector<float>& flat) {
  const auto targets = std::ranges::count_if(batch.targets.span(), [](Index target) { return target != lm::kNoTarget; });
  const double mine = static_cast<double>(targets);
  std::array<double, 2> sums{targets == 0 ? 0 : loss * mine, mine};
  dist::reduce_sum(transport, sums);
  const double all = std::max(1.0, sums[1]);
  flat.clear();
  for (const nn::Parameter& parameter : parameters) {
    for (const float gradient : parameter.gradient)
      flat.push_back(targets == 0 ? 0.0F : static_cast<float>(static_cast<double>(gradient) * (mine / all)));
  }
  dist::reduce_sum(transport, flat);
  auto from = flat.begin();
  for (const nn::Parameter& parameter : parameters) {
    std::copy_n(from, parameter.gradient.size(), parameter.gradient.begin());
    from += static_cast<std::ptrdiff_t>(parameter.gradient.size());
  }
  return sums[0] / all;
}

}  // namespace

void share_batches(const Ranks& ranks, TrainRun& run) {
  const lm::BatchShape shape = run.source.shape();
  if (shape.batch < ranks.size()) {
    throw UsageError("--batch must be at least the number of ranks for --parallel data: got " + std::to_string(shape.batch) +
                     " rows, " + std::to_string(ranks.size()) + " ranks");
  }
  if (run.model.config().dropout > 0)
    throw UsageError("--parallel data trains without dropout: its random numbers count the rows of one machine's batch");
  const lm::TrainOptions& train = run.train;
  ranks.agree({{"batch and context", fmt::format("{} x {}", shape.batch, shape.context)},
               {"first batch", hash_of(run.source)},
               {"initial weights", hash_of(run.model)},
               {"steps", std::to_string(train.steps)},
               {"learning rate", fmt::format("{} {} {}", train.schedule.rate, train.schedule.warmup_steps,
                                             static_cast<int>(train.schedule.kind))},
               {"weight decay and clipping", fmt::format("{} {}", train.adam.weight_decay, train.clip_norm)}});
  const Index begin = shape.batch * ranks.rank() / ranks.size(), end = shape.batch * (ranks.rank() + 1) / ranks.size();
  run.source = run.source.rows(begin, end - begin);
  run.train.reduce = [&transport = ranks.transport(), flat = std::vector<float>()](
                         double loss, const lm::Batch& batch, std::span<const nn::Parameter> parameters) mutable {
    return reduce_step(transport, loss, batch, parameters, flat);
  };
}

void require_same_model(const Ranks& ranks, TrainRun& run) { ranks.agree({{"trained weights", hash_of(run.model)}}); }

}  // namespace qkv::cli

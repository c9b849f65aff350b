#include "train/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "qkv/dist/reduce.h"
#include "ranks/methods.h"
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

/// Sums over ranks, of all numbers at once: gradients, or values of which one rank has each and the others 0.
void reduce_all(
    dist::Transport& transport, std::span<const nn::Parameter> parameters, std::span<float> nn::Parameter::*numbers) {
  std::vector<float> flat;
  for (const nn::Parameter& parameter : parameters)
    flat.insert(flat.end(), (parameter.*numbers).begin(), (parameter.*numbers).end());
  dist::reduce_sum(transport, flat);
  auto from = flat.begin();
  for (const nn::Parameter& parameter : parameters) {
    std::copy_n(from, (parameter.*numbers).size(), (parameter.*numbers).begin());
    from += std::ssize(parameter.*numbers);
  }
}

/// The loss and the gradients of the whole batch, of every rank's share of them.
auto sum_of_shares(dist::Transport& transport) {
  return [&transport](double loss, std::span<const nn::Parameter> parameters) {
    dist::reduce_sum(transport, std::span(&loss, 1));
    reduce_all(transport, parameters, &nn::Parameter::gradient);
    return loss;
  };
}

}  // namespace

void require_method(const std::string& method) {
  if (method == "data" || method == "heads") return;
  try {
    parse_method(method);
  } catch (const UsageError& error) {
    throw UsageError(std::string("--parallel may be data or heads; otherwise ") + error.what());
  }
}

SharedTraining::SharedTraining(const Ranks& ranks, TrainRun& run, const std::string& method, Context& context)
    : ranks_(ranks), run_(run) {
  const lm::BatchShape shape = run.source.shape();
  const lm::TrainOptions& train = run.train;
  ranks.agree(
      {{"batch and context", fmt::format("{} x {}", shape.batch, shape.context)}, {"first batch", hash_of(run.source)},
          {"initial weights", hash_of(run.model)}, {"steps", std::to_string(train.steps)},
          {"learning rate", fmt::format("{} {} {}", train.schedule.rate, train.schedule.warmup_steps,
                                static_cast<int>(train.schedule.kind))},
          {"weight decay and clipping", fmt::format("{} {}", train.adam.weight_decay, train.clip_norm)},
          {"dropout and its seed", fmt::format("{} {}", run.model.config().dropout, train.seed)}});
  if (method == "data") {
    share_sequences();
  } else if (method == "heads") {
    share_heads();
  } else {
    share_tokens(method, context);
  }
}

void SharedTraining::share_sequences() {
  const lm::BatchShape shape = run_.source.shape();
  if (shape.batch < ranks_.size()) {
    throw UsageError("--batch must be at least the number of ranks for --parallel data: got " +
                     std::to_string(shape.batch) + " rows, " + std::to_string(ranks_.size()) + " ranks");
  }
  const Index begin = shape.batch * ranks_.rank() / ranks_.size(),
              end = shape.batch * (ranks_.rank() + 1) / ranks_.size();
  run_.train.share = {shape.batch, shape.context, begin, end - begin};
  run_.train.reduce = sum_of_shares(ranks_.transport());
}

void SharedTraining::share_tokens(const std::string& method, Context& context) {
  const lm::BatchShape shape = run_.source.shape();
  const Index ranks = ranks_.size();
  dist::ContextParallelOptions cut{
      .layout = parse_layout({}, run_.model.config().causal), .method = parse_method(method)};
  cut.block = std::clamp<Index>(shape.context / (2 * ranks), 1, cut.block);
  if (shape.context < ranks) {
    throw UsageError("--context must be at least the number of ranks for --parallel " + method + ": got " +
                     std::to_string(shape.context) + " characters, " + std::to_string(ranks) + " ranks");
  }
  if (cut.method == dist::Method::kUlysses) require_heads("ulysses");
  attention_.emplace(ranks_.transport(), cut, context);
  for (const dist::Rows& rows : attention_->rows(shape.context)) {
    for (Index i = rows.begin; i < rows.end; ++i) tokens_.positions.push_back(i);
  }
  tokens_.forward = [this](const auto&... call) { attention_->forward(call...); };
  tokens_.backward = [this](const auto&... call) { attention_->backward(call...); };
  run_.train.share = {shape.batch, shape.context, 0, shape.batch, &tokens_};
  run_.train.reduce = sum_of_shares(ranks_.transport());
}

void SharedTraining::share_heads() {
  require_heads("heads");
  dist::Transport& transport = ranks_.transport();
  shard_.emplace(run_.model.shard(
      ranks_.rank(), ranks_.size(), [&transport](std::span<float> x) { dist::reduce_sum(transport, x); }));
  run_.train.norm = [this, all = run_.model.parameters()](std::span<const nn::Parameter> parameters) {
    std::vector<nn::Parameter> own;  // what is whole on every rank counts once
    for (const nn::Parameter& parameter : parameters) {
      const bool whole = std::ranges::any_of(all, [&](const nn::Parameter& one) { return one.name == parameter.name; });
      if (!whole || ranks_.first()) own.push_back(parameter);
    }
    const double norm = lm::global_norm(own);
    double squares = norm * norm;
    dist::reduce_sum(ranks_.transport(), std::span(&squares, 1));
    return std::sqrt(squares);
  };
}

void SharedTraining::require_heads(const std::string& method) const {
  const Index heads = run_.model.config().num_kv_heads;
  if (heads % ranks_.size() == 0) return;
  throw UsageError("--parallel " + method + " needs a number of ranks that divides the key/value heads: got " +
                   std::to_string(ranks_.size()) + " ranks, " + std::to_string(heads) + " heads (--heads, --kv-heads)");
}

void SharedTraining::finish() {
  if (shard_) {
    const std::vector<nn::Parameter> parameters = run_.model.parameters();
    for (const nn::Parameter& parameter : parameters) std::ranges::fill(parameter.value, 0.0F);
    run_.model.merge_shard(*shard_, ranks_.rank(), ranks_.size());
    reduce_all(ranks_.transport(), parameters, &nn::Parameter::value);
  }
  ranks_.agree({{"trained weights", hash_of(run_.model)}});
}

}  // namespace qkv::cli

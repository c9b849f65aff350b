// Decoder: one character at a time over cached keys and values; and drawing from its logits.
#include "qkv/lm/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/maths.h"
#include "lm/draw.h"
#include "lm/model.h"

namespace qkv::inline v0::lm {

struct [[gnu::visibility("hidden")]] Decoder::Impl {
  const AttentionLM::Impl& model;
  Context& context;
  std::vector<Index> window;    // ids at positions from 0
  std::vector<KVCache> caches;  // one per layer, as `cut`
  std::vector<std::vector<Index>> cut;
  nn::StepMemory step;
  Tensor<float> logits;  // [1, V]

  Impl(const AttentionLM& lm, Context& c, const HeadSet& heads)
      : model(lm.impl()), context(c), cut(model.blocks.size()), logits({1, model.config.vocab_size}) {
    for (std::size_t i = 0; i < model.blocks.size(); ++i) {
      caches.emplace_back(KVCacheConfig{.num_kv_heads = model.config.num_kv_heads,
                              .head_dim = model.config.embed_dim / model.config.num_heads,
                              .capacity = model.config.context},
          context);
      heads_of(heads, static_cast<Index>(i), cut[i]);
    }
  }

  void forget() {
    window.clear();
    for (KVCache& cache : caches) cache.clear();
  }
  void check_ids(std::span<const Index> ids) const {
    for (const Index id : ids) {
      check<OptionError>(id >= 0 && id < model.config.vocab_size, "Decoder", "ids must be in [0, ",
          model.config.vocab_size, "): got ", id);
    }
  }
  void read(std::span<const Index> ids);
  void read_all(std::span<const Index> ids);
};

/// Reads checked ids at the positions that follow the window, or throws and leaves the caches as they were.
void Decoder::Impl::read(std::span<const Index> ids) {
  try {
    read_all(ids);
  } catch (...) {
    for (KVCache& cache : caches) cache.truncate(0, std::min(cache.length(0), static_cast<Index>(window.size())));
    throw;
  }
}
void Decoder::Impl::read_all(std::span<const Index> ids) {
  const auto n = static_cast<Index>(ids.size()), start = static_cast<Index>(window.size());
  std::vector<Index> positions(ids.size());
  std::iota(positions.begin(), positions.end(), start);
  window.reserve(window.size() + ids.size());  // nothing that can fail comes after the caches

  Tensor<float> h({1, n, model.config.embed_dim});
  model.embed(ids, positions, nn::as_rows(h), context);
  Tensor<float> normed(h.sizes()), branch(h.sizes());
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const Block& block = model.blocks[i];
    if (!model.config.blocks) {
      block.attention.step(h, branch, caches[i], step, {}, context, cut[i]);
      std::swap(h, branch);
      continue;
    }
    block.ln_1->forward(nn::as_rows(std::as_const(h)), nn::as_rows(normed), context);
    block.attention.step(normed, branch, caches[i], step, {}, context, cut[i]);
    add_to(h, branch);
    block.ln_2->forward(nn::as_rows(std::as_const(h)), nn::as_rows(normed), context);
    nn::MlpSaved saved;
    block.mlp->forward(nn::as_rows(std::as_const(normed)), nn::as_rows(branch), saved, context);
    add_to(h, branch);
  }
  if (model.ln_f) {
    model.ln_f->forward(nn::as_rows(std::as_const(h)), nn::as_rows(normed), context);
    std::swap(h, normed);
  }
  model.head.forward(nn::as_rows(std::as_const(h)).sliced(0, n - 1, n), logits, context);
  window.insert(window.end(), ids.begin(), ids.end());
}

Decoder::Decoder(const AttentionLM& model, Context& context, const HeadSet& cut) {
  check<OptionError>(model.config().causal, "Decoder", "the model must be causal: got one that attends to the future");
  check_heads(model.config(), cut, "Decoder");
  impl_ = std::make_unique<Impl>(model, context, cut);
}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;

void Decoder::prefill(std::span<const Index> ids) {
  check<OptionError>(!ids.empty(), "Decoder::prefill", "the prompt must have at least one character: got none");
  const auto most = static_cast<std::size_t>(impl_->model.config.context);
  impl_->check_ids(ids);
  ids = ids.last(std::min(most, ids.size()));
  impl_->forget();
  impl_->read(ids);
}

void Decoder::append(Index id) {
  std::vector<Index>& window = impl_->window;
  const Index context = impl_->model.config.context;
  impl_->check_ids({&id, 1});
  if (static_cast<Index>(window.size()) < context) {
    impl_->read({&id, 1});
    return;
  }
  std::vector<Index> kept(window.end() - context / 2, window.end());
  kept.push_back(id);
  impl_->forget();
  impl_->read(kept);
}

std::span<const float> Decoder::logits() const { return std::as_const(impl_->logits).span(); }
std::span<const Index> Decoder::window() const { return impl_->window; }

namespace {

/// Draws one id from logits: softmax at the temperature over the top_k largest.
Index draw(std::span<const float> logits, const GenerateOptions& options, Index position) {
  std::vector<Index> order(logits.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto logit = [&](Index id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]); };
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return logit(a) > logit(b); });
  if (options.greedy) return order.front();
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));

  std::vector<double> cumulative(order.size());
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sum += maths::exp((logit(order[i]) - logit(order.front())) / options.temperature);
    cumulative[i] = sum;
  }
  const double drawn = Random(derived_seed(options.seed, Draw::kSample, position)).uniform() * sum;
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), drawn);
  return order[static_cast<std::size_t>(std::min(found - cumulative.begin(), std::ssize(order) - 1))];
}

/// The largest logit, and log(sum exp(logit - largest)).
struct Normaliser {
  double largest, log_sum;

  explicit Normaliser(std::span<const float> logits) : largest(*std::max_element(logits.begin(), logits.end())) {
    double sum = 0;
    for (const float logit : logits) sum += maths::exp(logit - largest);
    log_sum = maths::log(sum);
  }
  double log_probability(float logit) const { return logit - largest - log_sum; }
};

}  // namespace

double log_probability(std::span<const float> logits, Index id) {
  check<OptionError>(id >= 0 && id < std::ssize(logits), "log_probability", "id must be below the ", logits.size(),
      " logits: got ", id);
  return Normaliser(logits).log_probability(logits[static_cast<std::size_t>(id)]);
}
std::vector<float> probabilities(std::span<const float> logits) {
  std::vector<float> shares;
  if (logits.empty()) return shares;
  const Normaliser all(logits);
  for (const float logit : logits) shares.push_back(static_cast<float>(maths::exp(all.log_probability(logit))));
  return shares;
}

std::vector<Index> generate(
    const AttentionLM& model, std::span<const Index> prompt, const GenerateOptions& options, Context& context) {
  constexpr const char* kFunction = "generate";
  const Index vocab = model.config().vocab_size;
  const Index allowed = options.allowed_ids < 0 ? vocab : options.allowed_ids;
  check<OptionError>(options.tokens >= 0 && options.top_k >= 0, kFunction,
      "tokens and top_k must not be negative: got ", options.tokens, " and ", options.top_k);
  check<OptionError>(std::isfinite(options.temperature) && options.temperature > 0, kFunction,
      "temperature must be finite and above 0: got ", options.temperature);
  check<OptionError>(
      allowed >= 1 && allowed <= vocab, kFunction, "allowed_ids must be in [1, ", vocab, "]: got ", allowed);
  Decoder decoder(model, context, options.cut);
  decoder.prefill(prompt);
  std::vector<Index> ids;
  for (Index i = 0; i < options.tokens; ++i) {
    if (i > 0) decoder.append(ids.back());
    const std::span<const float> logits = decoder.logits();
    const auto wrong = std::find_if_not(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
    check<OptionError>(
        wrong == logits.end(), kFunction, "the model's logits must be finite: got ",
        [&] { return std::isnan(*wrong) ? "nan" : "inf"; }, " after ", i,
        " of the drawn ids: its weights are too large");
    ids.push_back(draw(logits.first(static_cast<std::size_t>(allowed)), options, i));
    if (options.on_token) options.on_token(ids.back(), log_probability(logits, ids.back()));
  }
  return ids;
}

}  // namespace qkv::inline v0::lm

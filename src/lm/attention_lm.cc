// AttentionLM: forward, loss and backward of one batch, in memory that is reused from step to step.
#include "qkv/lm/attention_lm.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "lm/activations.h"
#include "nn/attention/projected_halves.h"
#include "qkv/lm/data.h"
#include "qkv/nn/cross_entropy.h"
#include "qkv/nn/dropout.h"

namespace qkv::inline v0::lm {

AttentionLM::Activations::Activations(const BatchShare& share) : impl_(std::make_unique<Impl>()) {
  check<OptionError>(share.first_sequence >= 0 && share.sequences >= (share.batch == 0 ? 0 : 1) &&
                         share.first_sequence <= share.batch && share.sequences <= share.batch - share.first_sequence,
      "AttentionLM::Activations", "a share must be at least one sequence of a batch of ", share.batch, ": got ",
      share.sequences, " from ", share.first_sequence);
  check<OptionError>(share.part == nullptr || !share.part->positions.empty(), "AttentionLM::Activations",
      "a part of the sequences must have at least one token: got none");
  impl_->share = share;
}
AttentionLM::Activations::~Activations() = default;
AttentionLM::Activations::Activations(Activations&&) noexcept = default;
AttentionLM::Activations& AttentionLM::Activations::operator=(Activations&&) noexcept = default;

View<const float, 3> AttentionLM::Activations::logits() const { return std::as_const(impl_->logits).view<3>(); }

namespace {

/// Copies ids and numbers their positions; checks sizes and ids.
void read_ids(const AttentionLMConfig& config, View<const Index, 2> ids, const BatchShare& share,
    std::vector<Index>& tokens, std::vector<Index>& positions) {
  constexpr const char* kFunction = "AttentionLM::forward";
  const Index batch = ids.size(0), length = ids.size(1);
  check<ShapeError>(batch >= 1 && length >= 1 && length <= config.context, kFunction,
      "ids must be [B, T] with 1 <= T <= context: got ", ids, " for context ", config.context);
  check<ShapeError>(share.batch == 0 || share.length <= config.context, kFunction,
      "the sequences of a share must be no longer than the context ", config.context, ": got ", share.length);
  const std::span<const Index> held = tokens_of(share);
  check<ShapeError>((share.batch == 0 || (batch == share.sequences && (!held.empty() || length == share.length))) &&
                        (held.empty() || length == std::ssize(held)),
      kFunction, "ids must be those of this rank's share of the batch: got ", ids);
  tokens.resize(static_cast<std::size_t>(batch * length));
  positions.resize(tokens.size());
  std::size_t at = 0;
  for (Index b = 0; b < batch; ++b) {
    for (Index i = 0; i < length; ++i, ++at) {
      tokens[at] = ids(b, i);
      positions[at] = held.empty() ? i : held[static_cast<std::size_t>(i)];
      check<OptionError>(tokens[at] >= 0 && tokens[at] < config.vocab_size, kFunction, "ids must be in [0, ",
          config.vocab_size, "): got ", tokens[at], " at [", b, ", ", i, "]");
    }
  }
}

}  // namespace

void AttentionLM::forward(View<const Index, 2> ids, Activations& activations, std::uint64_t dropout_seed,
    Context& context, const HeadSet& cut) const {
  run(ids, activations, dropout_seed, context, {.cut = cut});
}

void AttentionLM::run(View<const Index, 2> ids, Activations& activations, std::uint64_t dropout_seed, Context& context,
    const TraceOptions& as) const {
  const Impl& m = *impl_;
  check_heads(m.config, as.cut, "AttentionLM::forward");
  Activations::Impl& a = *activations.impl_;
  a.has_loss = false;
  a.made_by.reset();
  read_ids(m.config, ids, a.share, a.ids, a.positions);
  if (!as.positions) std::ranges::fill(a.positions, 0);
  a.batch = ids.size(0);
  a.length = ids.size(1);
  a.dropout_seed = dropout_seed;
  a.layers.resize(m.blocks.size());
  const std::array<Index, 3> sizes = a.sizes(m.config.embed_dim);
  // Projecting token and position apart rounds otherwise than projecting their sum, as a Decoder does.
  const Index whole_batch = a.share.batch == 0 ? a.batch : a.share.batch,
              whole_length = a.share.batch == 0 ? a.length : a.share.length;
  a.by_table = as.positions && context.bits() == Bits::kFast && !m.sum &&
               TableProjection::pays(m.config, whole_batch, whole_length);
  a.folded = a.by_table && FoldedHead::pays(m, whole_batch * whole_length);
  if (a.by_table) {
    Tensor<float>& projected = a.layers.front().attention.projected;
    nn::resize(projected, a.sizes(m.blocks.front().attention.projected_width()));
    a.table.forward(m, a.ids, a.positions, whole_length, projected, context);
  } else {
    nn::resize(a.embedded, sizes);
    m.embed(a.ids, a.positions, nn::as_rows(a.embedded), context, as.positions);
  }

  for (std::size_t i = 0; i < m.blocks.size(); ++i) {
    const Block& block = m.blocks[i];
    LayerActivations& l = a.layers[i];
    const Tensor<float>& h = a.layer_input(i);
    const auto layer = static_cast<Index>(i);
    nn::ForwardOptions options;
    options.causal = as.causal.value_or(m.config.causal);
    if (!as.scale) options.scale = 1;
    if (!as.positions && m.config.positions == PositionKind::kRotary)
      options.positions.ids = View<const Index, 2>(a.positions.data(), {1, a.length});
    heads_of(as.cut, layer, l.cut);
    options.cut = l.cut;
    options.seed = m.training ? m.attention_seed(dropout_seed, layer) : 0;
    options.first_sequence = a.share.first_sequence;
    options.part = a.share.part;
    options.context = &context;
    if (!a.folded) nn::resize(l.out, sizes);
    if (i == 0 && a.by_table) {
      nn::ProjectedHalves::forward(
          block.attention, a.folded ? View<float, 3>() : l.out.view<3>(), options, l.attention);
      continue;
    }
    if (!m.config.blocks) {
      block.attention.forward_into(h, l.out, options, &l.attention);
      m.sum_over_parts(l.out);
      continue;
    }
    for (Tensor<float>* t : {&l.normed_1, &l.normed_2, &l.middle, &l.branch}) nn::resize(*t, sizes);
    block.ln_1->forward(nn::as_rows(h), nn::as_rows(l.normed_1), context);
    block.attention.forward_into(l.normed_1, l.middle, options, &l.attention);
    m.sum_over_parts(l.middle);
    add_to(l.middle, h);
    block.ln_2->forward(nn::as_rows(std::as_const(l.middle)), nn::as_rows(l.normed_2), context);
    block.mlp->forward(nn::as_rows(std::as_const(l.normed_2)), nn::as_rows(l.out), l.mlp, context);
    nn::apply_dropout(l.out, l.out, m.mlp_dropout(dropout_seed, layer, a.share.first_sequence), context, a.tokens());
    add_to(l.out, l.middle);
  }

  if (m.ln_f) {
    nn::resize(a.last, sizes);
    m.ln_f->forward(nn::as_rows(std::as_const(a.layers.back().out)), nn::as_rows(a.last), context);
  } else {
    a.last = Tensor<float>();  // of another model
  }
  nn::resize(a.logits, a.sizes(m.config.vocab_size));
  if (a.folded) {
    a.fold.forward(m, nn::as_rows(std::as_const(a.layers.front().attention.attended)), nn::as_rows(a.logits), context);
  } else {
    m.head.forward(nn::as_rows(a.head_input()), nn::as_rows(a.logits), context);
  }
  a.made_by = m.shape();
}

Tensor<float> AttentionLM::logits(View<const Index, 2> ids, Context& context, const HeadSet& cut) const {
  Activations activations;
  forward(ids, activations, 0, context, cut);
  return std::move(activations.impl_->logits);
}

double AttentionLM::loss(View<const Index, 2> targets, Activations& activations, Context& context, Index all) const {
  constexpr const char* kFunction = "AttentionLM::loss";
  Activations::Impl& a = *activations.impl_;
  const Index vocab = impl_->config.vocab_size;
  check<OptionError>(a.made_by == impl_->shape(), kFunction, "activations must come from this model's last forward");
  a.has_loss = false;
  check<ShapeError>(targets.size(0) == a.batch && targets.size(1) == a.length, kFunction,
      "targets must have the shape of the last forward's ids [", a.batch, ", ", a.length, "]: got ", targets);
  a.targets.resize(a.ids.size());
  bool any = false;
  auto slot = a.targets.begin();
  for (Index b = 0; b < a.batch; ++b) {
    for (Index i = 0; i < a.length; ++i) {
      const Index target = targets(b, i);
      check<OptionError>(target >= kNoTarget && target < vocab, kFunction, "targets must be in [0, ", vocab,
          ") or kNoTarget: got ", target);
      any |= target != kNoTarget;
      *slot++ = target;
    }
  }
  check<OptionError>(any || all > 0, kFunction, "at least one position must have a target: got none");
  nn::resize(a.dlogits, a.sizes(vocab));
  const double loss =
      nn::cross_entropy(nn::as_rows(std::as_const(a.logits)), a.targets, nn::as_rows(a.dlogits), context, all);
  a.has_loss = true;
  return loss;
}

void AttentionLM::backward(Activations& activations, Context& context) {
  Impl& m = *impl_;
  Activations::Impl& a = *activations.impl_;
  check<OptionError>(a.has_loss && a.made_by == m.shape(), "AttentionLM::backward",
      "activations must come from this model's forward and loss: got ", a.layers.size(),
      " layers, gradients of logits ", a.dlogits);
  for (nn::Parameter& parameter : m.parameters) std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
  const auto from_table = [&](View<const float, 3> dy) {
    nn::AttentionLayer& layer = m.blocks.front().attention;
    a.table.backward(
        m, a.ids, a.positions, nn::ProjectedHalves::backward(layer, dy, a.layers.front().attention, context), context);
  };
  if (a.folded) {
    nn::Saved& saved = a.layers.front().attention;
    nn::resize(saved.dattended, saved.attended.sizes());
    a.fold.backward(m, nn::as_rows(std::as_const(saved.attended)), nn::as_rows(std::as_const(a.dlogits)),
        nn::as_rows(saved.dattended), context);
    return from_table({});
  }
  nn::resize(a.dh, a.sizes(m.config.embed_dim));
  nn::resize(a.dbranch, a.sizes(m.config.embed_dim));

  m.head.backward(nn::as_rows(a.head_input()), nn::as_rows(std::as_const(a.dlogits)), nn::as_rows(a.dh), context);
  if (m.ln_f) {
    m.ln_f->backward(
        nn::as_rows(std::as_const(a.layers.back().out)), nn::as_rows(std::as_const(a.dh)), nn::as_rows(a.dh), context);
  }

  for (std::size_t i = m.blocks.size(); i-- > 0;) {
    Block& block = m.blocks[i];
    LayerActivations& l = a.layers[i];
    if (i == 0 && a.by_table) return from_table(a.dh);
    if (!m.config.blocks) {
      block.attention.backward_into(a.dh, l.attention, a.dbranch, context);
      m.sum_over_parts(a.dbranch);
      std::swap(a.dh, a.dbranch);
      continue;
    }
    // out = middle + dropout(mlp(ln_2(middle))):  dmiddle = dh + ln_2'(mlp'(dropout'(dh)))
    nn::apply_dropout(a.dh, a.dbranch, m.mlp_dropout(a.dropout_seed, static_cast<Index>(i), a.share.first_sequence),
        context, a.tokens());
    const View<float, 2> dbranch = nn::as_rows(a.dbranch);
    block.mlp->backward(nn::as_rows(std::as_const(l.normed_2)), dbranch, nn::as_rows(l.branch), l.mlp, context);
    block.ln_2->backward(nn::as_rows(std::as_const(l.middle)), nn::as_rows(std::as_const(l.branch)), dbranch, context);
    add_to(a.dh, a.dbranch);
    // middle = h + attention(ln_1(h)):  dh = dmiddle + ln_1'(attention'(dmiddle))
    block.attention.backward_into(a.dh, l.attention, l.branch, context);
    m.sum_over_parts(l.branch);
    block.ln_1->backward(nn::as_rows(a.layer_input(i)), nn::as_rows(std::as_const(l.branch)), dbranch, context);
    add_to(a.dh, a.dbranch);
  }

  m.embed_backward(a.ids, a.positions, nn::as_rows(std::as_const(a.dh)), context);
}

}  // namespace qkv::inline v0::lm

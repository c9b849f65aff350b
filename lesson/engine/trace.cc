// What a trained model does with one text: every number of every head, what comes next, the loss and its gradients.
#include <cmath>

#include "core/check.h"
#include "lesson/engine/cut.h"
#include "lesson/engine/face.h"
#include "lm/model.h"
#include "qkv/nn/cross_entropy.h"

namespace qkv::inline v0::lesson {
namespace {

double last_loss = 0;

std::vector<nn::Parameter> output_projections(lm::AttentionLM& model) {
  std::vector<nn::Parameter> found;
  for (nn::Parameter& one : model.parameters()) {
    const bool plain = one.name.find("W_o.weight") != std::string::npos;
    if (plain || one.name.find("attn.c_proj.weight") != std::string::npos) found.push_back(std::move(one));
  }
  return found;
}

/// What the task asks of the model at each character of a text.
std::vector<Index> targets_of(const std::string& task, const std::vector<Index>& ids) {
  std::vector<Index> targets(ids.size(), lm::kNoTarget);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (task == "previous")
      targets[i] = ids[i == 0 ? 0 : i - 1];
    else if (i + 1 < ids.size())
      targets[i] = ids[i + 1];
  }
  return targets;
}

struct LayerTrace {
  nn::Saved attention;
  nn::MlpSaved mlp;
  Tensor<float> in, normed_1, middle, normed_2, out;
};

struct Changes {
  bool causal, scale;
};

/// The model on one text, layer by layer: as AttentionLM::forward and backward, with everything kept.
class Trace {
 public:
  Trace(lm::AttentionLM& model, const std::vector<Index>& ids, const std::vector<Index>& targets, Changes changes)
      : lm_(model), m_(model.impl()), ids_(ids), changes_(changes), length_(static_cast<Index>(ids.size())) {
    forward();
    loss(targets);
    backward();
  }

  double loss_value = 0;

  void write(std::vector<float>& block) {
    for (std::size_t i = 0; i < layers_.size(); ++i) write_layer(i, block);
    const Index vocab = m_.config.vocab_size;
    for (Index row = 0; row < length_; ++row) {
      const std::span<const float> logits(logits_.data() + row * vocab, static_cast<std::size_t>(vocab));
      for (Index v = 0; v < vocab; ++v) block.push_back(static_cast<float>(std::exp(log_probability(logits, v))));
    }
  }

 private:
  static double log_probability(std::span<const float> logits, Index id) {
    double sum = 0, largest = logits[0];
    for (const float x : logits) largest = std::max(largest, double{x});
    for (const float x : logits) sum += std::exp(x - largest);
    return logits[static_cast<std::size_t>(id)] - largest - std::log(sum);
  }
  Tensor<float> rows() const { return Tensor<float>({1, length_, m_.config.embed_dim}); }

  void forward() {
    std::vector<Index> positions(ids_.size());
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<Index>(i);
    Tensor<float> h = rows();
    m_.embed(ids_, positions, nn::as_rows(h), context());
    layers_.resize(m_.blocks.size());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const lm::Block& block = m_.blocks[i];
      LayerTrace& l = layers_[i];
      l.in = std::move(h);
      l.out = rows();
      nn::ForwardOptions options{.causal = changes_.causal, .context = &context()};
      if (!m_.config.blocks) {
        block.attention.forward_into(l.in, l.out, options, &l.attention);
      } else {
        l.normed_1 = rows(), l.middle = rows(), l.normed_2 = rows();
        block.ln_1->forward(nn::as_rows(std::as_const(l.in)), nn::as_rows(l.normed_1), context());
        block.attention.forward_into(l.normed_1, l.middle, options, &l.attention);
        lm::add_to(l.middle, l.in);
        block.ln_2->forward(nn::as_rows(std::as_const(l.middle)), nn::as_rows(l.normed_2), context());
        block.mlp->forward(nn::as_rows(std::as_const(l.normed_2)), nn::as_rows(l.out), l.mlp, context());
        lm::add_to(l.out, l.middle);
      }
      h = l.out.clone();
    }
    last_ = rows();
    if (m_.ln_f) m_.ln_f->forward(nn::as_rows(std::as_const(h)), nn::as_rows(last_), context());
    if (!m_.ln_f) last_ = std::move(h);
    logits_ = Tensor<float>({1, length_, m_.config.vocab_size});
    m_.head.forward(nn::as_rows(std::as_const(last_)), nn::as_rows(logits_), context());
  }

  void loss(const std::vector<Index>& targets) {
    dlogits_ = Tensor<float>(logits_.sizes());
    if (length_ == 1 && targets[0] == lm::kNoTarget) return;
    loss_value = nn::cross_entropy(nn::as_rows(std::as_const(logits_)), targets, nn::as_rows(dlogits_), context());
  }

  /// Leaves the gradient of what each head gives in saved.dattended. The next step overwrites parameters' gradients.
  void backward() {
    auto& blocks = const_cast<std::vector<lm::Block>&>(m_.blocks);
    Tensor<float> dh = rows(), dbranch = rows(), dmiddle = rows();
    const_cast<nn::Linear&>(m_.head).backward(
        nn::as_rows(std::as_const(last_)), nn::as_rows(std::as_const(dlogits_)), nn::as_rows(dh), context());
    if (m_.ln_f) {
      const_cast<nn::LayerNorm&>(*m_.ln_f).backward(
          nn::as_rows(std::as_const(layers_.back().out)), nn::as_rows(std::as_const(dh)), nn::as_rows(dh), context());
    }
    for (std::size_t i = layers_.size(); i-- > 0;) {
      lm::Block& block = blocks[i];
      LayerTrace& l = layers_[i];
      if (!m_.config.blocks) {
        block.attention.backward_into(dh, l.attention, dbranch, context());
        std::swap(dh, dbranch);
        continue;
      }
      block.mlp->backward(nn::as_rows(std::as_const(l.normed_2)), nn::as_rows(std::as_const(dh)), nn::as_rows(dmiddle),
          l.mlp, context());
      block.ln_2->backward(
          nn::as_rows(std::as_const(l.middle)), nn::as_rows(std::as_const(dmiddle)), nn::as_rows(dbranch), context());
      lm::add_to(dh, dbranch);
      block.attention.backward_into(dh, l.attention, dmiddle, context());
      block.ln_1->backward(
          nn::as_rows(std::as_const(l.in)), nn::as_rows(std::as_const(dmiddle)), nn::as_rows(dbranch), context());
      lm::add_to(dh, dbranch);
    }
  }

  /// q, k, v [H, T, D], scores, weights, gradients [H, T, T], writes [H, T].
  void write_layer(std::size_t i, std::vector<float>& block) {
    const Index heads = m_.config.num_heads, dim = m_.config.embed_dim / heads;
    const nn::Saved& saved = layers_[i].attention;
    const View<const float, 3> projected = saved.projected;
    const auto part = [&](const View<const float, 3>& x, Index first) {
      return split_heads(x.sliced(2, first * dim, (first + heads) * dim), heads);
    };
    const auto copy = [&](const View<const float, 4>& x, float divisor) {
      for (Index h = 0; h < heads; ++h)
        for (Index t = 0; t < length_; ++t)
          for (Index d = 0; d < dim; ++d) block.push_back(x(0, h, t, d) / divisor);
    };
    const View<const float, 4> q = part(projected, 0), k = part(projected, heads), v = part(projected, 2 * heads);
    copy(q, changes_.scale ? 1 : std::sqrt(static_cast<float>(dim)));
    copy(k, 1);
    copy(v, 1);
    Tensor<float> pairs({1, heads, length_, length_});
    const auto append = [&] { block.insert(block.end(), pairs.data(), pairs.data() + pairs.count()); };
    AttentionOptions options;
    if (changes_.causal) options.mask = Mask::causal();
    attention_forward(q, k, {}, {.weights = pairs, .kind = WeightsKind::kScores}, options, context());
    append();
    attention_forward(q, k, {}, {.weights = pairs}, options, context());
    append();
    const View<const float, 4> dattended = part(saved.dattended, 0), attended = part(saved.attended, 0);
    const auto seen = [&](Index t) { return changes_.causal ? t + 1 : length_; };
    for (Index h = 0; h < heads; ++h) {
      for (Index t = 0; t < length_; ++t) {
        for (Index s = 0; s < length_; ++s) {
          float sum = 0;
          for (Index d = 0; d < dim; ++d) sum += dattended(0, h, t, d) * v(0, h, s, d);
          block.push_back(s < seen(t) ? sum : 0);
        }
      }
    }
    const nn::Parameter out = output_projections(lm_)[i];
    const Index width = m_.config.embed_dim;
    for (Index h = 0; h < heads; ++h) {
      for (Index t = 0; t < length_; ++t) {
        double square = 0;
        for (Index e = 0; e < width; ++e) {
          const float* row = out.value.data() + e * width + h * dim;
          double sum = 0;
          for (Index d = 0; d < dim; ++d) sum += double{row[d]} * attended(0, h, t, d);
          square += sum * sum;
        }
        block.push_back(static_cast<float>(std::sqrt(square)));
      }
    }
  }

  lm::AttentionLM& lm_;
  const lm::AttentionLM::Impl& m_;
  const std::vector<Index>& ids_;
  const Changes changes_;
  const Index length_;
  std::vector<LayerTrace> layers_;
  Tensor<float> last_, logits_, dlogits_;
};

/// Parameters that are others for as long as this lives.
class Changed {
 public:
  ~Changed() {
    for (auto& [at, before] : kept_) std::copy(before.begin(), before.end(), at);
  }
  template <class Change> void change(std::span<float> values, Change of) {
    kept_.emplace_back(values.data(), std::vector<float>(values.begin(), values.end()));
    for (float& x : values) x = of(x);
  }

 private:
  std::vector<std::pair<float*, std::vector<float>>> kept_;
};

/// Without positions their embeddings are 0; without the scale q is sqrt(D) times as long, and so its projection is.
void change_parameters(lm::AttentionLM& model, bool scale, bool positions, Changed& changed) {
  const lm::AttentionLMConfig& c = model.config();
  const auto factor = std::sqrt(static_cast<float>(c.embed_dim / c.num_heads));
  for (nn::Parameter& one : model.parameters()) {
    const bool position = one.name == "pos.weight" || one.name == "transformer.wpe.weight";
    if (position && !positions) changed.change(one.value, [](float) { return 0.0F; });
    const bool query = one.name.find("W_q.") != std::string::npos,
               merged = one.name.find("c_attn.") != std::string::npos;
    if (!scale && (query || merged)) {
      changed.change(one.value.first(one.value.size() / (merged ? 3 : 1)), [&](float x) { return x * factor; });
    }
  }
}

}  // namespace

Cut::Cut(lm::AttentionLM& model, const int* pairs, int count) {
  const lm::AttentionLMConfig& c = model.config();
  const Index dim = c.embed_dim / c.num_heads;
  const std::vector<nn::Parameter> outs = output_projections(model);
  for (int n = 0; n < count; ++n) {
    const Index layer = pairs[2 * n], head = pairs[2 * n + 1];
    check<OptionError>(layer >= 0 && layer < c.num_layers && head >= 0 && head < c.num_heads, "cut", "layer ", layer,
        ", head ", head, " is not of this model: it has ", c.num_layers, " layers of ", c.num_heads);
    for (Index row = 0; row < c.embed_dim; ++row) {
      for (Index d = 0; d < dim; ++d) {
        float* at = outs[static_cast<std::size_t>(layer)].value.data() + row * c.embed_dim + head * dim + d;
        kept_.push_back({at, *at});
        *at = 0;
      }
    }
  }
}
Cut::~Cut() {
  for (std::size_t i = kept_.size(); i-- > 0;) *kept_[i].at = kept_[i].value;
}

}  // namespace qkv::inline v0::lesson

using namespace qkv;

/// Layer by layer q, k, v [H, T, D], scores, weights, gradients [H, T, T], writes [H, T]; then next [T, V]. Its loss:
/// lesson_loss(). cut: pairs of (layer, head).
QKV_LESSON const float* lesson_trace(
    const char* prompt, const int* cut, int cuts, int causal, int scale, int positions) {
  return lesson::answer([&]() -> const float* {
    lesson::Model& m = lesson::model("trace");
    const std::vector<Index> ids = m.tokenizer.encode(prompt);
    check<OptionError>(!ids.empty() && std::ssize(ids) <= m.lm.config().context, "trace", "the text must have 1 to ",
        m.lm.config().context, " characters: got ", ids.size());
    const lesson::Cut without(m.lm, cut, cuts);
    lesson::Changed changed;
    lesson::change_parameters(m.lm, scale != 0, positions != 0, changed);
    lesson::Trace trace(m.lm, ids, lesson::targets_of(m.task, ids), {causal != 0, scale != 0});
    lesson::last_loss = trace.loss_value;
    lesson::results().clear();
    trace.write(lesson::results());
    return lesson::results().data();
  });
}
QKV_LESSON double lesson_loss() { return lesson::last_loss; }

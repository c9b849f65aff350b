// What a trained model does with one text: every number of every head, what comes next, the loss and its gradients.
#include <algorithm>
#include <limits>

#include "core/check.h"
#include "engine/face.h"
#include "engine/model.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/generate.h"

namespace qkv::inline v0::lesson {
namespace {

double last_loss = 0;

/// The mean weight of each query but the first on what came behind its own character earlier, of the queries whose
/// character did.
float induction_share(View<const float, 2> weights, std::span<const Index> ids) {
  double sum = 0;
  Index rows = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    bool came = false;
    for (std::size_t j = 1; j <= i; ++j) {
      if (ids[j - 1] != ids[i]) continue;
      came = true;
      sum += static_cast<double>(weights(static_cast<Index>(i), static_cast<Index>(j)));
    }
    rows += came ? 1 : 0;
  }
  return static_cast<float>(sum / static_cast<double>(std::max<Index>(rows, 1)));
}

}  // namespace

lm::HeadSet heads_of(const int* pairs, int count) {
  lm::HeadSet heads;
  for (int n = 0; n < count; ++n) heads.push_back({pairs[2 * n], pairs[2 * n + 1]});
  return heads;
}

}  // namespace qkv::inline v0::lesson

using namespace qkv;

/// layers, H, D; layer by layer q, k, v [H, T, D], scores, weights, gradients [H, T, T], writes [H, T],
/// shares [H, 2]: on the character before, by induction; then next [T, V]. Its loss: lesson_loss(). cut: pairs of
/// (layer, head).
QKV_LESSON const float* lesson_trace(
    const char* prompt, const int* cut, int cuts, int causal, int scale, int positions) {
  return lesson::answer([&]() -> const float* {
    lesson::Model& m = lesson::model("trace");
    const lm::AttentionLMConfig& config = m.lm.config();
    const std::vector<Index> ids = m.tokenizer.encode(prompt);
    check<OptionError>(!ids.empty() && std::ssize(ids) <= config.context, "trace", "the text must have 1 to ",
        config.context, " characters: got ", ids.size());
    const std::vector<Index> targets = m.source.targets(ids);
    const bool any = std::ranges::any_of(targets, [](Index target) { return target != lm::kNoTarget; });
    lm::TraceOptions options;
    options.cut = lesson::heads_of(cut, cuts);
    options.causal = causal != 0;
    options.scale = scale != 0;
    options.positions = positions != 0;
    if (any) options.targets = View<const Index, 2>(targets.data(), {1, std::ssize(ids)});
    const lm::Trace trace = m.lm.trace({ids.data(), {1, std::ssize(ids)}}, options, lesson::context());
    lesson::last_loss = any ? trace.loss : std::numeric_limits<double>::quiet_NaN();

    std::vector<float>& block = lesson::results();
    block.clear();
    for (const Index size : {config.num_layers, config.num_heads, config.embed_dim / config.num_heads})
      block.push_back(static_cast<float>(size));
    for (const lm::LayerTrace& layer : trace.layers) {
      for (const Tensor<float>* part : {&layer.q, &layer.k, &layer.v, &layer.scores, &layer.weights})
        block.insert(block.end(), part->data(), part->data() + part->count());
      if (any) block.insert(block.end(), layer.gradients.data(), layer.gradients.data() + layer.gradients.count());
      if (!any) block.resize(block.size() + static_cast<std::size_t>(layer.weights.count()));
      block.insert(block.end(), layer.writes.data(), layer.writes.data() + layer.writes.count());
      for (Index h = 0; h < config.num_heads; ++h) {
        const View<const float, 2> weights(&layer.weights.view<4>()(0, h, 0, 0), {std::ssize(ids), std::ssize(ids)});
        block.push_back(static_cast<float>(lm::head_report(weights, ids, config.causal).previous.mean));
        block.push_back(lesson::induction_share(weights, ids));
      }
    }
    const auto symbols = static_cast<std::size_t>(config.vocab_size);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::vector<float> next = lm::probabilities({trace.logits.data() + i * symbols, symbols});
      block.insert(block.end(), next.begin(), next.end());
    }
    return block.data();
  });
}
QKV_LESSON double lesson_loss() { return lesson::last_loss; }

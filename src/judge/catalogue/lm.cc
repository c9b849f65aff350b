// A step of training: targets, loss, gradients, the update.
#include <algorithm>
#include <string>
#include <utility>

#include "judge/entry_edits.h"
#include "judge/tasks/derivative.h"
#include "judge/tasks/lm_names.h"

namespace qkv::judge {
namespace {

Entry lm(std::string_view id, std::string_view says, std::string_view hint, Edits edits, std::string_view group = {}) {
  return Entry(id, says, hint, "training", {"lm"}, std::move(edits)).in(group);
}

/// The share of position n of `length` in the loss, from the right one.
Edit shares_by(std::function<double(double share, Index position, Index batch, Index length)> rule) {
  return after("given", [rule = std::move(rule)](Work& work) {
    Array& shares = work["shares"];
    const Index batch = shares.size(0), length = shares.size(1);
    for (Index n = 0; n < shares.count(); ++n) shares[n] = rule(shares[n].value, n % length, batch, length);
  });
}

Edit targets_by(std::function<Index(Index position, Index length)> rule, const char* of) {
  return after("given", [rule = std::move(rule), of](Work& work) {
    const Index length = work.at("ids").size(1);
    std::vector<Index> from;
    for (Index t = 0; t < length; ++t) from.push_back(rule(t, length));
    work["targets"] = take(work.at(of), 1, from);
  });
}

/// Parameters that keep their values.
Edit frozen(std::vector<std::string> names) {
  return before("update", [names = std::move(names)](Work& work) {
    for (const std::string& name : names) work["d_" + name] = Array(work.at(name).shape);
  });
}

Array viewed_as_classes_first(const Array& logits) {
  return transpose(reshape(logits, {logits.size(0), logits.size(2), logits.size(1)}));
}

constexpr std::string_view kTargets = "After the token at position i, which token should the logits at position i predict?";
constexpr std::string_view kLoss = "Let all logits be 0. What should the loss be for V tokens?";
constexpr std::string_view kSteps = "Take two steps with the same tokens. What is in a parameter's gradient after the second?";
constexpr std::string_view kCausal = "Can a model without a causal mask read the token that it should predict?";
constexpr std::string_view kEmbedding = "A token stands twice in a sequence: what is the gradient of its row?";

}  // namespace

std::vector<Entry> lm_entries() {
  return {
      lm("lm-targets-not-shifted", "The targets are the inputs themselves: the model learns to repeat the token that it reads.",
         kTargets, {targets_by([](Index position, Index) { return position; }, "ids")}, "targets"),
      lm("lm-targets-rolled",
         "The inputs are rolled to make targets: the last position must predict the first token of the sequence.", kTargets,
         {targets_by([](Index position, Index length) { return (position + 1) % length; }, "ids")}, "targets"),
      lm("lm-targets-backwards",
         "The targets are the tokens before, not after: each position must predict what it has seen already.", kTargets,
         {targets_by([](Index position, Index) { return std::max<Index>(position - 1, 0); }, "ids"),
          shares_by([](double share, Index position, Index, Index length) {
            return position == 0 ? 0 : share * static_cast<double>(length) / static_cast<double>(length - 1);
          })},
         "targets"),
      lm("lm-targets-backwards",
         "The targets are the tokens before, not after: each position must predict what it has seen already, the first its own "
         "token.",
         kTargets, {targets_by([](Index position, Index) { return std::max<Index>(position - 1, 0); }, "ids")}, "targets"),
      lm("lm-loss-axis", "The softmax of the loss runs over the positions; it runs over the vocabulary, the last axis.", kLoss,
         {instead("probabilities", [](Work& work) { work["probabilities"] = softmax(work.at("logits"), 1); }),
          instead("dlogits", [](Work& work) { work["dlogits"] = lm_dlogits(work, 1); })},
         "softmax"),
      lm("lm-loss-axis", "The softmax of the loss runs over the batch; it runs over the vocabulary, the last axis.", kLoss,
         {instead("probabilities", [](Work& work) { work["probabilities"] = softmax(work.at("logits"), 0); }),
          instead("dlogits", [](Work& work) { work["dlogits"] = lm_dlogits(work, 0); })},
         "softmax"),
      lm("lm-logits-viewed",
         "The logits [B, T, V] are viewed as [B, V, T] for the loss, not transposed: positions and vocabulary are mixed.", kLoss,
         {before("probabilities", [](Work& work) { work["logits"] = viewed_as_classes_first(work.at("logits")); }),
          after("dlogits",
                [](Work& work) {
                  const Array& d = work.at("dlogits");
                  work["dlogits"] = reshape(transpose(d), d.shape);
                })},
         "softmax"),
      lm("lm-softmax-before-loss", "The loss gets probabilities, and takes a softmax of them again; it expects logits.", kLoss,
         {before("probabilities", [](Work& work) { work["logits"] = work["soft"] = softmax(work.at("logits")); }),
          after("dlogits",
                [](Work& work) {
                  const Array &d = work.at("dlogits"), &soft = work.at("soft");
                  work["dlogits"] = soft * (d - sum(d * soft, -1));
                })},
         "softmax"),
      lm("lm-gradient-without-softmax",
         "The gradient of the logits is -1/N at the targets alone; softmax minus the target is meant.",
         "What pushes the logits of the wrong tokens down?",
         {after("dlogits",
                [](Work& work) {
                  const Array ones = work.at("probabilities") * Number(0);
                  const Array kept = std::exchange(work["probabilities"], ones);
                  work["dlogits"] = lm_dlogits(work, -1);
                  work["probabilities"] = kept;
                })},
         "dlogits"),
      lm("lm-gradient-not-averaged", "The loss is a mean over all positions, and the gradient that of the sum.",
         "Twice as many sequences: how large should a step be?",
         {after(
             "dlogits",
             [](Work& work) { work["dlogits"] = work.at("dlogits") * Number(static_cast<double>(work.at("ids").count())); })},
         "dlogits"),
      lm("lm-loss-sum", "The loss is summed over all positions; it is their mean.", kLoss,
         {shares_by([](double, Index, Index, Index) { return 1.0; })}, "shares"),
      lm("lm-loss-sum",
         "The loss is summed over the positions of a sequence and averaged over the batch; it is the mean over both.", kLoss,
         {shares_by([](double, Index, Index batch, Index) { return 1 / static_cast<double>(batch); })}, "shares"),
      lm("lm-last-token-only", "The loss looks at the last position only; every position predicts its next token.", kTargets,
         {shares_by([](double, Index position, Index batch, Index length) {
           return position == length - 1 ? 1 / static_cast<double>(batch) : 0;
         })},
         "shares"),
      lm("lm-last-token-missing", "The loss leaves the last position out; every position predicts its next token.", kTargets,
         {shares_by([](double share, Index position, Index, Index length) {
           return position == length - 1 ? 0 : share * static_cast<double>(length) / static_cast<double>(length - 1);
         })},
         "shares"),
      lm("lm-first-token-missing", "The loss leaves the first position out; every position predicts its next token.", kTargets,
         {shares_by([](double share, Index position, Index, Index length) {
           return position == 0 ? 0 : share * static_cast<double>(length) / static_cast<double>(length - 1);
         })},
         "shares"),
      lm("lm-no-causal-mask", "There is no causal mask: each position sees the token that it should predict.", kCausal,
         {before(kDerivative.see, [](Work& work) { work["causal"] = Array({1}, 0); })}, "causal"),
      lm("causal-off-by-one",
         "The causal mask hides the token itself: position i sees only positions before i. The first sees nothing.", kCausal,
         {after(kDerivative.see,
                [](Work& work) {
                  Array& visible = work["visible"];
                  const Index length = visible.size(-1);
                  for (Index i = 0; i < length; ++i) visible[i * length + i] = 0;
                })},
         "causal"),
      lm("causal-sees-next", "The causal mask is one too wide: position i sees position i + 1, the token it should predict.", kCausal,
         {after(kDerivative.see,
                [](Work& work) {
                  Array& visible = work["visible"];
                  const Index length = visible.size(-1);
                  for (Index i = 0; i + 1 < length; ++i) visible[i * length + i + 1] = 1;
                })},
         "causal"),
      lm("causal-flipped", "The causal mask is flipped: position i sees itself and the future, not the past.", kCausal,
         {after(kDerivative.see, [](Work& work) { work["visible"] = transpose(work.at("visible")); })}, "causal"),
      lm("lm-gradients-not-zeroed", "Gradients are not set to zero between steps: each step adds to those of all steps before.",
         kSteps, {instead("zero", [](Work&) {})}, "step"),
      lm("lm-no-step", "The parameters never change: no step is taken.", kSteps, {instead("update", [](Work&) {})}, "step"),
      lm("lm-step-ascent", "The step goes up the gradient: parameters grow by lr times it. They shrink by it.",
         "Does the loss fall?",
         {before("update",
                 [](Work& work) {
                   for (const std::string name : kLmParameters) work["d_" + name] = work.at("d_" + name) * Number(-1);
                 })},
         "step"),
      lm("lm-step-one-behind",
         "The step is taken before the gradients of this call are there: it uses those of the call before.", kSteps,
         {before("zero",
                 [](Work& work) {
                   for (const std::string name : kLmParameters) work["old_" + name] = work.at("d_" + name);
                 }),
          instead("update",
                  [](Work& work) {
                    const Number rate(work.probe.number("lr"));
                    for (const std::string name : kLmParameters) work[name] = work.at(name) - work.at("old_" + name) * rate;
                  })},
         "step"),
      lm("lm-step-one-behind",
         "The step is taken at the start of a call, before its gradients are there: it uses those of the call before.", kSteps,
         {after("given",
                [](Work& work) {
                  const Number rate(work.probe.number("lr"));
                  for (const std::string name : kLmParameters) work[name] = work.at(name) - work.at("d_" + name) * rate;
                }),
          instead("update", [](Work&) {})},
         "step"),
      lm("lm-rate-ignored", "The learning rate is not used: parameters move by the gradient itself.",
         "Does lr = 0 change a parameter?",
         {instead("update",
                  [](Work& work) {
                    for (const std::string name : kLmParameters) work[name] = work.at(name) - work.at("d_" + name);
                  })},
         "step"),
      lm("lm-no-positions", "The positions are not added to the embeddings.",
         "What tells the model that two tokens changed positions?",
         {after("embed", [](Work& work) { work["h"] = work.at("h") - work.at("position"); }), frozen({"position"})}),
      lm("lm-positions-not-trained", "The positions are never updated.", "Which parameters stay as they were after a step?",
         {frozen({"position"})}),
      lm("lm-embedding-not-trained", "The embedding is never updated.", "Which parameters stay as they were after a step?",
         {frozen({"embed"})}, "embedding"),
      lm("lm-embedding-gradient-overwritten",
         "A token that stands several times gets the gradient of its last position only; they add up (np.add.at, not d[tokens] += "
         "...).",
         kEmbedding,
         {after("dembed",
                [](Work& work) {
                  const Array &dh = work.at("dh"), &ids = work.at("ids");
                  const Index width = dh.size(-1);
                  Array table(work.at("embed").shape);
                  for (Index n = 0; n < dh.count(); ++n)
                    table[static_cast<Index>(ids[n / width].value) * width + n % width] = dh[n];
                  work["d_embed_now"] = std::move(table);
                })},
         "embedding"),
      lm("lm-position-gradient-mean", "The gradient of the positions is averaged over the batch; it is summed.", kEmbedding,
         {after("dembed",
                [](Work& work) {
                  work["d_position_now"] = work.at("d_position_now") * Number(1 / static_cast<double>(work.at("ids").size(0)));
                })}),
      lm("lm-no-head-bias", "The bias of the head is not added.", kLoss,
         {after("logits", [](Work& work) { work["logits"] = work.at("logits") - work.at("head_bias"); }),
          frozen({"head_bias"})}),
      lm("lm-no-attention", "The head reads the embeddings: attention is never used.",
         "Does the first token change what the last position predicts?",
         {after("logits",
                [](Work& work) {
                  work["features"] = work.at("h");
                  work["logits"] = linear(work.at("h"), work.at("head"), work.at("head_bias"));
                }),
          after("dproject", [](Work& work) { work["dh"] = work.at("dvalues"); }), frozen({"W_q", "W_k", "W_v"})},
         "features"),
      lm("residual-added", "The embeddings are added to what attention gives; this model has no residual connection.",
         "If all values are 0, what does the head read?",
         {after("logits",
                [](Work& work) {
                  work["features"] = work.at("values") + work.at("h");
                  work["logits"] = linear(work.at("features"), work.at("head"), work.at("head_bias"));
                }),
          after("dproject", [](Work& work) { work["dh"] = work.at("dh") + work.at("dvalues"); })},
         "features"),
  };
}

}  // namespace qkv::judge

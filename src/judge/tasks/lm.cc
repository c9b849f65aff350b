// lm: steps of training of a model with one causal head. A round of the textbook is a step; parameters stay in the arrays.
//
//   h = embed[token] + position    a = attention(h W_q, h W_k, h W_v), causal    logits = a head + head_bias
//   loss = mean over B T of -log softmax(logits)[next token]    parameter -= lr d_parameter
#include <algorithm>
#include <cmath>
#include <string>

#include "judge/probes.h"
#include "judge/tasks/derivative.h"
#include "judge/tasks/lm_names.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw OptionError("[judge] a probe of lm: " + what); }

void check(const Probe& probe) {
  const Array& tokens = probe.at("tokens");
  const Index vocabulary = probe.at("embed").size(0), steps = probe.integer("steps", 1);
  if (tokens.size(1) != probe.at("position").size(0) + 1) refuse("tokens [B, T+1] for position [T, E]: got another T");
  for (const Number& t : tokens.data) {
    if (!(t.value >= 0 && t.value < static_cast<double>(vocabulary)) || t.value != std::floor(t.value)) {
      refuse("tokens are whole numbers from 0 to " + std::to_string(vocabulary - 1) + ": got " + std::to_string(t.value));
    }
  }
  if (steps < 1 || steps > 100) refuse("metadata 'steps' from 1 to 100: got " + probe.text("steps"));
}

/// ids, targets [B, T]: tokens without the last, and without the first.
void given_step(Work& work) {
  if (work.round == 0) {
    check(work.probe);
    work.rounds = work.probe.integer("steps", 1);
    for (const char* name : kLmParameters) {
      work[name] = work.probe.at(name);
      work[std::string("d_") + name] = work[std::string("carried_") + name] = Array(work.at(name).shape);
    }
  }
  for (const char* name : kLmParameters) {
    for (Number& x : work[name].data) x.error = 0;  // after_step
  }
  const Array& tokens = work.probe.at("tokens");
  work["ids"] = slice(tokens, 1, 0, tokens.size(1) - 1);
  work["targets"] = slice(tokens, 1, 1, tokens.size(1));
  work["causal"] = Array({1}, 1);
  // The share of each position in the loss.
  work["shares"] = Array(work.at("ids").shape, 1 / static_cast<double>(work.at("ids").count()));
}

/// h [B, T, E].
void embed_step(Work& work) {
  const Array& ids = work.at("ids");
  std::vector<Index> rows;
  for (const Number& id : ids.data) rows.push_back(static_cast<Index>(id.value));
  const Array& table = work.at("embed");
  work["h"] = reshape(take(table, 0, rows), {ids.size(0), ids.size(1), table.size(1)}) + work.at("position");
}

void project_step(Work& work) {
  for (const std::string name : {"q", "k", "v"}) work[name] = matmul(work.at("h"), work.at("W_" + name));
}

void logits_step(Work& work) {
  work["features"] = work.at("values");
  work["logits"] = linear(work.at("features"), work.at("head"), work.at("head_bias"));
}

/// probabilities [B, T, V] along the axis that is the vocabulary.
void probabilities_step(Work& work) { work["probabilities"] = softmax(work.at("logits"), -1); }

/// loss [steps so far].
void loss_step(Work& work) {
  const Array &probabilities = work.at("probabilities"), &targets = work.at("targets"), &shares = work.at("shares");
  const Index vocabulary = probabilities.size(-1);
  Number loss(0);
  for (Index n = 0; n < targets.count(); ++n) {
    if (shares[n].value != 0)
      loss = loss + (-log(probabilities[n * vocabulary + static_cast<Index>(targets[n].value)])) * shares[n];
  }
  Array& all = work["loss"];
  const Array now = Array({1}, loss);
  all = work.round == 0 ? now : concat({all, now}, 0);
}

/// dlogits = dlog - probabilities * sum(dlog), dlog being -share at the target.
void dlogits_step(Work& work) { work["dlogits"] = lm_dlogits(work, -1); }

void dhead_step(Work& work) {
  const Array& d = work.at("dlogits");
  work["d_head_now"] = weight_gradient(work.at("features"), d);
  work["d_head_bias_now"] = reshape(sum(reshape(d, {d.count() / d.size(-1), d.size(-1)}), 0), {d.size(-1)});
  work["dvalues"] = matmul(d, transpose(work.at("head")));
}

void dproject_step(Work& work) {
  Array dh(work.at("h").shape);
  for (const std::string name : {"q", "k", "v"}) {
    work["d_W_" + name + "_now"] = weight_gradient(work.at("h"), work.at("d" + name));
    dh = dh + matmul(work.at("d" + name), transpose(work.at("W_" + name)));
  }
  work["dh"] = std::move(dh);
}

void dembed_step(Work& work) {
  const Array &dh = work.at("dh"), &ids = work.at("ids");
  const Index width = dh.size(-1);
  Array table(work.at("embed").shape);
  for (Index n = 0; n < dh.count(); ++n) {
    Number& x = table[static_cast<Index>(ids[n / width].value) * width + n % width];
    x = x + dh[n];
  }
  work["d_embed_now"] = std::move(table);
  work["d_position_now"] = reshape(sum(dh, 0), {dh.size(1), width});
}

void zero_step(Work& work) {
  for (const std::string name : kLmParameters) work["d_" + name] = Array(work.at(name).shape);
}

void accumulate_step(Work& work) {
  for (const std::string name : kLmParameters) work["d_" + name] = work.at("d_" + name) + work.at("d_" + name + "_now");
}

void update_step(Work& work) {
  const Number rate(work.probe.number("lr"));
  for (const std::string name : kLmParameters) work[name] = work.at(name) - work.at("d_" + name) * rate;
}

/// NAME and after_NAME: parameters after the step. A step's rounding reaches the next step as it is: a step is the map 1 - lr H, whose
/// size is near 1, while a product of absolute values, as Number makes it, would grow ten-thousandfold with every step.
void after_step(Work& work) {
  Number& loss = work["loss"][work.round];
  for (const std::string name : kLmParameters) {
    Array &carried = work["carried_" + name], &after = work["after_" + name];
    const Array& gradient = work.at("d_" + name + "_now");
    after = work.at(name);
    for (Index i = 0; i < after.count(); ++i) {
      loss.error += std::fabs(gradient[i].value) * carried[i].value;
      carried[i] = carried[i].value + after[i].error;
      after[i].error = carried[i].value;
    }
    work[name] = after;
  }
}

Textbook lm_textbook() {
  Textbook out{{"given", given_step}, {"embed", embed_step}, {"project", project_step}};
  append(out, derivative_forward(kDerivative, ""));
  append(out, {{"logits", logits_step},
               {"probabilities", probabilities_step},
               {"loss", loss_step},
               {"dlogits", dlogits_step},
               {"dhead", dhead_step}});
  append(out, derivative_backward(kDerivative, ""));
  append(out, {{"dproject", dproject_step},
               {"dembed", dembed_step},
               {"zero", zero_step},
               {"accumulate", accumulate_step},
               {"update", update_step},
               {"after", after_step}});
  return out;
}

std::vector<Probe> lm_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const Index vocabulary = 11, width = s.embed, length = s.length;
  const auto make = [&](std::string_view name, Index batch, Index steps, const char* rate) {
    Probe probe = start_probe("lm", name, "train-steps", s);
    probe.metadata["causal"] = "1";
    probe.metadata["steps"] = std::to_string(steps);
    probe.metadata["lr"] = rate;
    const double unit = 1 / std::sqrt(static_cast<double>(width));
    probe.inputs["embed"] = draw.array({vocabulary, width});
    probe.inputs["position"] = draw.array({length, width}, 0.7);
    for (const char* weight : {"W_q", "W_k", "W_v"}) probe.inputs[weight] = draw.array({width, width}, unit);
    probe.inputs["head"] = draw.array({width, vocabulary}, unit);
    probe.inputs["head_bias"] = draw.array({vocabulary}, 0.5);
    Array tokens({batch, length + 1});
    for (Number& t : tokens.data) t = static_cast<double>(draw.below(vocabulary));
    // A token twice in a sequence, and one in two sequences: their gradients add up.
    if (length > 2) tokens[2] = tokens[0];
    if (batch > 1) tokens[length + 2] = tokens[1];
    probe.inputs["tokens"] = std::move(tokens);
    return probe;
  };
  std::vector<Probe> probes;
  // Rates at which the gradient of a sum, ten times that of the mean, does not diverge yet.
  probes.push_back(make("three steps", s.batch, 3, "0.125"));
  probes.push_back(make("one step", s.batch, 1, "0.5"));
  probes.push_back(make("a smaller rate", s.batch + 1, 3, "0.0625"));
  probes.push_back(make("one sequence", 1, 3, "0.1875"));
  return probes;
}

}  // namespace

Array lm_dlogits(const Work& work, int axis) {
  const Array &probabilities = work.at("probabilities"), &targets = work.at("targets"), &shares = work.at("shares");
  Array dlog(probabilities.shape);
  const Index vocabulary = probabilities.size(-1);
  for (Index n = 0; n < targets.count(); ++n) dlog[n * vocabulary + static_cast<Index>(targets[n].value)] = -shares[n];
  return dlog - zip(probabilities, sum(dlog, axis), [](Number p, Number d) { return p * d; });
}

Task lm_task() {
  return {.name = "lm",
          .title = "a step of training",
          .teaches = "Next tokens as targets, cross-entropy, gradients back to the embedding, and a step of gradient descent.",
          .article = "003",
          .functions = {"train_step"},
          .classes = {"ToyLM"},
          .arguments = {{"tokens", "B S"},
                        {"embed", "V E"},
                        {"position", "T E"},
                        {"W_q", "E E"},
                        {"W_k", "E E"},
                        {"W_v", "E E"},
                        {"head", "E V"},
                        {"head_bias", "V"}},
          .parts = {"lm", "derivative"},
          .sizes = {.embed = 10, .heads = 1, .kv_heads = 1, .head_dim = 10},
          .textbook = lm_textbook(),
          .answers = {"loss", "after_embed", "after_position", "after_W_q", "after_W_k", "after_W_v", "after_head",
                      "after_head_bias"},
          .probes = lm_probes};
}

}  // namespace qkv::judge

// Probes of layers with parameters, of a cache and of steps of training.
#include <cmath>
#include <utility>

#include "judge/probes/probes.h"

namespace qkv::judge {
namespace {

struct Layer {
  ProbeMaker& make;
  const Task& task = make.task;
  const Sizes& sizes = make.s;
  Draw& draw = make.draw;
  bool merged = task.takes("W_qkv"), output = task.takes("W_o"), cross = task.takes("memory"),
       narrow = task.has("narrow");

  Index width() const { return narrow ? sizes.head_dim : sizes.heads * sizes.head_dim; }
  Index kv_width() const { return narrow ? sizes.head_dim : sizes.kv_heads * sizes.head_dim; }

  /// Parameters such that scores before the scale have a deviation of about `spread` sqrt(d).
  void add_parameters(Probe& probe, double spread) {
    const Index embed = sizes.embed;
    const auto weight = [&](Index columns, double factor) { return make.weight(embed, columns, factor); };
    const auto bias = [&](const char* name, Index columns) {
      if (task.takes(name)) probe.inputs[name] = draw.array({columns}, 0.5);
    };
    if (merged) {
      probe.inputs["W_qkv"] = concat({weight(embed, spread), weight(embed, 1), weight(embed, 1)}, 1);
      bias("b_qkv", 3 * embed);
    } else {
      probe.inputs["W_q"] = weight(width(), spread);
      probe.inputs["W_k"] = weight(kv_width(), 1);
      probe.inputs["W_v"] = weight(kv_width(), 1);
      bias("b_q", width()), bias("b_k", kv_width()), bias("b_v", kv_width());
    }
    if (task.has("block")) add_block(probe);
    if (output) {
      probe.inputs["W_o"] = make.weight(width(), embed);
      bias("b_o", embed);
    }
  }

  /// Norms with gains around 1, and matrices that keep small what attention's rounding becomes.
  void add_block(Probe& probe) {
    const Index embed = sizes.embed, hidden = sizes.hidden;
    probe.metadata["eps"] = "1e-05";
    for (const char* norm : {"a", "m"}) {
      const auto gain = [](Number x) { return Number(1 + x.value); };
      probe.inputs[std::string("W_") + norm] = map(draw.array({embed}, 0.5), gain);
      probe.inputs[std::string("b_") + norm] = draw.array({embed}, 0.5);
    }
    for (const char* up : {"u", "g"}) {
      probe.inputs[std::string("W_") + up] = make.weight(embed, hidden, 0.5);
      probe.inputs[std::string("b_") + up] = draw.array({hidden}, 0.5);
    }
    probe.inputs["W_d"] = draw.array({hidden, embed}, 0.5 / std::sqrt(static_cast<double>(hidden)));
    probe.inputs["b_d"] = draw.array({embed}, 0.5);
  }

  Probe probe(std::string_view name, Lengths n, double spread = 2) {
    Probe out = make.start(name);
    out.inputs["x"] = draw.array({n.batch, n.queries, sizes.embed});
    if (cross) out.inputs["memory"] = draw.array({n.batch, n.keys, sizes.embed});
    add_parameters(out, spread);
    return out;
  }

  Probe large_probe(std::string_view name, Lengths n) {
    // A block's norms and matrices multiply the rounding of large scores.
    return make.clear_of_overflow([&] { return probe(name, n, task.has("block") ? 400 : 1000); });
  }

  std::vector<Probe> masked() {
    const Lengths all{sizes.batch, sizes.length, sizes.memory},
        n{sizes.batch, sizes.length, cross ? sizes.memory : sizes.length};
    std::vector<Probe> out;
    const auto add = [&](std::string_view name, const Array& mask) {
      out.push_back(make.with_mask(probe(name, all), mask));
    };
    add("padding", make.padding_mask(n));
    add("pairs masked", make.pair_mask(n));
    const Array pairs = make.pair_mask(n);
    out.push_back(make.with_low_mask(large_probe("masked large scores", all), pairs));
    add("empty row", make.empty_row_mask(n));
    return out;
  }

  /// Half a head's width of tokens, W_v = W_o = 1, x = identities side by side: the output shows each weight twice
  /// (dropout.h).
  Probe dropping(std::string_view call) {
    const Index length = sizes.head_dim / 2, embed = sizes.embed;
    Probe out = probe(call, {1, length, length}, 1);
    out.metadata["call"] = std::string(call);
    out.metadata["repeat"] = "96";
    Array identities({1, length, embed});
    for (Index i = 0; i < length; ++i) {
      for (Index c = i; c < embed; c += length) identities[i * embed + c] = 1;
    }
    const auto diagonal = [embed](Index columns) {
      Array one({embed, columns});
      for (Index i = 0; i < columns; ++i) one[i * columns + i] = 1;
      return one;
    };
    // Identity inputs make small scores: large W_q and W_k, so that the weights differ.
    const Array wide_q = draw.array({embed, width()}), wide_k = draw.array({embed, kv_width()});
    out.inputs["x"] = identities;
    if (cross) out.inputs["memory"] = identities;
    if (merged) {
      out.inputs["W_qkv"] = concat({wide_q, wide_k, diagonal(embed)}, 1);
    } else {
      out.inputs["W_q"] = wide_q, out.inputs["W_k"] = wide_k, out.inputs["W_v"] = diagonal(kv_width());
    }
    if (output) out.inputs["W_o"] = diagonal(embed);
    for (auto& [name, array] : out.inputs) {
      if (name.starts_with("b_")) array = Array(array.shape);
    }
    return out;
  }
};

}  // namespace

std::vector<Probe> layer_probes(ProbeMaker& make) {
  Layer layer{make};
  const Sizes& s = make.s;
  const Lengths all{s.batch, s.length, s.memory};
  const bool causal = make.task.has("always-causal");
  std::vector<Probe> out;
  out.push_back(layer.probe("plain", all));
  out.push_back(layer.probe("two tokens", {1, 2, layer.cross ? 3 : 2}));
  if (make.task.has("mask")) {
    for (Probe& one : layer.masked()) out.push_back(std::move(one));
  }
  if (causal) {
    Probe future = out.front();
    future.metadata["name"] = "another future";
    future.inputs["x"] =
        concat({slice(future.at("x"), 1, 0, 2), make.draw.array({s.batch, s.length - 2, s.embed}, 3)}, 1);
    out.push_back(std::move(future));
  }
  out.push_back(layer.large_probe("large scores", all));
  out.push_back(layer.probe("one token", {s.batch, 1, 1}));
  out.push_back(layer.probe("another batch", {s.batch + 2, s.length + 4, s.memory + 4}));
  if (make.task.has("block")) {  // small, where it shows what is added under a root
    out.back().inputs["x"] = map(out.back().at("x"), [](Number x) { return Number(x.value / 64); });
  } else {
    Probe gradient = layer.probe("gradient", {1, 3, 4});
    gradient.metadata["call"] = "gradient";
    gradient.inputs["dout"] = make.draw.array({1, 3, layer.output ? s.embed : layer.width()});
    out.push_back(std::move(gradient));
  }
  out.push_back(called_twice(out.front()));
  const bool fits = layer.output ? layer.width() == s.embed : layer.width() <= s.embed;
  if (fits && s.head_dim > 3 && !make.task.has("block")) {
    out.push_back(layer.dropping("training"));
    out.push_back(layer.dropping("evaluation"));
  }
  return out;
}

std::vector<Probe> cache_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Index length = std::max<Index>(s.length, 5);
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Index batch, const std::vector<Index>& calls, double spread = 2) {
    Probe probe = make.start(name, "steps");
    const Index kv_heads = make.task.has("grouped") ? s.kv_heads : s.heads;
    probe.metadata["kv_heads"] = std::to_string(kv_heads);
    if (make.task.has("windowed")) probe.metadata["window"] = "3";
    if (make.task.has("llama")) probe.metadata["base"] = "10000";
    std::string& steps = probe.metadata["steps"];
    Index total = 0;
    for (const Index tokens : calls) steps += (steps.empty() ? "" : ",") + std::to_string(tokens), total += tokens;
    const Index width = s.heads * s.head_dim;
    probe.inputs["x"] = make.draw.array({batch, total, s.embed});
    probe.inputs["W_q"] = make.weight(s.embed, width, spread);
    for (const char* weight : {"W_k", "W_v"}) probe.inputs[weight] = make.weight(s.embed, kv_heads * s.head_dim);
    probe.inputs["W_o"] = make.weight(width, s.embed);
    probes.push_back(std::move(probe));
  };
  const auto ones = [](Index n) { return std::vector<Index>(static_cast<std::size_t>(n), 1); };
  add("plain", s.batch, {length - 2, 1, 1});
  add("token by token", s.batch, ones(length));
  add("all at once", s.batch, {length});
  add("several tokens after some", s.batch, {2, length - 2});
  add("two calls of two tokens, one of three", 1, {2, 2, 3});
  add("large scores", s.batch, {2, 1, length - 3}, 1000);
  add("one token", s.batch, {1});
  std::vector<Index> last = ones(length - 1);
  last[1] = 3;
  add("another batch", s.batch + 2, last);
  return probes;
}

std::vector<Probe> lm_probes(ProbeMaker& make) {
  const Index vocabulary = 11, width = make.s.embed, length = make.s.length, batch_of_all = make.s.batch;
  Draw& draw = make.draw;
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Index batch, Index steps, const char* rate) {
    Probe probe = make.start(name, "train-steps");
    probe.metadata["steps"] = std::to_string(steps);
    probe.metadata["lr"] = rate;
    probe.inputs["embed"] = draw.array({vocabulary, width});
    probe.inputs["position"] = draw.array({length, width}, 0.7);
    for (const char* weight : {"W_q", "W_k", "W_v"}) probe.inputs[weight] = make.weight(width, width);
    probe.inputs["head"] = make.weight(width, vocabulary);
    probe.inputs["head_bias"] = draw.array({vocabulary}, 0.5);
    Array tokens({batch, length + 1});
    for (Number& t : tokens.data) t = static_cast<double>(draw.below(vocabulary));
    // A token twice in a sequence, and one in two sequences: their gradients add up.
    if (length > 2) tokens[2] = tokens[0];
    if (batch > 1) tokens[length + 2] = tokens[1];
    probe.inputs["tokens"] = std::move(tokens);
    probes.push_back(std::move(probe));
  };
  // Rates at which the gradient of a sum, ten times that of the mean, does not diverge yet.
  add("three steps", batch_of_all, 3, "0.125");
  add("one step", batch_of_all, 1, "0.5");
  add("a smaller rate", batch_of_all + 1, 3, "0.0625");
  add("one sequence", 1, 3, "0.1875");
  return probes;
}

}  // namespace qkv::judge

// v1 to v4, self-attention, single-head, mha, gqa, cross: attention with its projections.
#include <cmath>
#include <utility>

#include "judge/probes.h"
#include "judge/tasks/steps.h"

namespace qkv::judge {
namespace {

/// What tells one layer from another.
struct Kind {
  std::string_view task;
  bool merged = false, biases = true, output = true, masked = false, causal = false, cross = false;
  bool narrow = false;      ///< W_q, W_k, W_v [E, d] with d != E, no W_o
  bool three_axes = false;  ///< the mask is [B, L, L], not [B, 1, L, L]
};

struct Layer {
  Kind kind;
  Sizes sizes;
  Draw draw;

  Index width() const { return kind.narrow ? sizes.head_dim : sizes.heads * sizes.head_dim; }
  Index kv_width() const { return kind.narrow ? sizes.head_dim : sizes.kv_heads * sizes.head_dim; }

  /// Parameters such that scores before the scale have a deviation of about `spread` sqrt(d).
  void add_parameters(Probe& probe, double spread) {
    const Index embed = sizes.embed;
    const double unit = 1 / std::sqrt(static_cast<double>(embed));
    const auto weight = [&](Index columns, double factor) { return draw.array({embed, columns}, factor * unit); };
    if (kind.merged) {
      probe.inputs["W_qkv"] = concat({weight(embed, spread), weight(embed, 1), weight(embed, 1)}, 1);
      probe.inputs["b_qkv"] = draw.array({3 * embed}, 0.5);
    } else {
      probe.inputs["W_q"] = weight(width(), spread);
      probe.inputs["W_k"] = weight(kv_width(), 1);
      probe.inputs["W_v"] = weight(kv_width(), 1);
      if (kind.biases) {
        probe.inputs["b_q"] = draw.array({width()}, 0.5);
        probe.inputs["b_k"] = draw.array({kv_width()}, 0.5);
        probe.inputs["b_v"] = draw.array({kv_width()}, 0.5);
      }
    }
    if (kind.output) {
      probe.inputs["W_o"] = draw.array({width(), embed}, unit);
      if (kind.biases) probe.inputs["b_o"] = draw.array({embed}, 0.5);
    }
  }

  Probe probe(std::string_view name, Index batch, Index length, Index memory, double spread = 2) {
    Probe out = start_probe(kind.task, name, "forward", sizes);
    out.metadata["causal"] = kind.causal ? "1" : "0";
    out.inputs["x"] = draw.array({batch, length, sizes.embed});
    if (kind.cross) out.inputs["memory"] = draw.array({batch, memory, sizes.embed});
    add_parameters(out, spread);
    return out;
  }

  Probe large_probe(std::string_view name, Index batch, Index length, Index memory) {
    return clear_of_overflow(layer_textbook(), [&] { return probe(name, batch, length, memory, 1000); });
  }

  Probe with_mask(Probe probe, const Array& mask) const {
    probe.inputs["mask"] = kind.three_axes ? mask : reshape(mask, {mask.size(0), 1, mask.size(1), mask.size(2)});
    return probe;
  }

  Index keys() const { return kind.cross ? sizes.memory : sizes.length; }

  std::vector<Probe> masked() {
    const Index batch = sizes.batch, length = sizes.length;
    std::vector<Probe> out;
    out.push_back(with_mask(probe("padding", batch, length, sizes.memory), padding_mask(batch, length, keys())));
    out.push_back(with_mask(probe("pairs masked", batch, length, sizes.memory), pair_mask(draw, batch, length, keys())));
    out.push_back(
        with_mask(large_probe("masked large scores", batch, length, sizes.memory), pair_mask(draw, batch, length, keys())));
    const Array mask = empty_row_mask(draw, batch, length, keys());
    out.push_back(with_mask(probe("empty row", batch, length, sizes.memory), mask));
    return out;
  }

  /// Half a head's width of tokens, W_v = W_o = 1, x = identities side by side: the output shows each weight twice (dropout.h).
  Probe dropping(std::string_view call) {
    const Index length = sizes.head_dim / 2, embed = sizes.embed;
    Probe out = probe(call, 1, length, length, 1);
    out.metadata["call"] = std::string(call);
    out.metadata["repeat"] = "96";
    Array identities({1, length, embed});
    for (Index i = 0; i < length; ++i) {
      for (Index c = i; c < embed; c += length) identities[i * embed + c] = 1;
    }
    Array one({embed, embed});
    for (Index i = 0; i < embed; ++i) one[i * embed + i] = 1;
    // Identity inputs make small scores: large W_q and W_k, so that the weights differ.
    const Array wide_q = draw.array({embed, embed}), wide_k = draw.array({embed, embed});
    out.inputs["x"] = identities;
    if (kind.cross) out.inputs["memory"] = identities;
    if (kind.merged) {
      out.inputs["W_qkv"] = concat({wide_q, wide_k, one}, 1);
      out.inputs["b_qkv"] = Array({3 * embed});
    } else {
      out.inputs["W_q"] = wide_q, out.inputs["W_k"] = wide_k, out.inputs["W_v"] = one;
    }
    if (kind.output) out.inputs["W_o"] = one;
    for (const char* name : {"b_q", "b_k", "b_v", "b_o"}) {
      if (out.has(name)) out.inputs[name] = Array(out.at(name).shape);
    }
    return out;
  }

  std::vector<Probe> probes() {
    const Index batch = sizes.batch, length = sizes.length, memory = sizes.memory;
    std::vector<Probe> out;
    out.push_back(probe("plain", batch, length, memory));
    out.push_back(probe("two tokens", 1, 2, kind.cross ? 3 : 2));
    if (kind.masked) {
      for (Probe& one : masked()) out.push_back(std::move(one));
    }
    if (kind.causal) {
      Probe future = out.front();
      future.metadata["name"] = "another future";
      future.inputs["x"] = concat({slice(future.at("x"), 1, 0, 2), draw.array({batch, length - 2, sizes.embed}, 3)}, 1);
      out.push_back(std::move(future));
    }
    out.push_back(large_probe("large scores", batch, length, memory));
    out.push_back(probe("one token", batch, 1, 1));
    out.push_back(probe("another batch", batch + 2, length + 4, memory + 4));
    Probe gradient = probe("gradient", 1, 3, 4);
    gradient.metadata["call"] = "gradient";
    gradient.inputs["dout"] = draw.array({1, 3, kind.output ? sizes.embed : width()});
    out.push_back(std::move(gradient));
    out.push_back(called_twice(out.front()));
    if (!kind.narrow && sizes.head_dim % 2 == 0 && sizes.head_dim > 2 && !kind.causal && sizes.heads == sizes.kv_heads &&
        width() == sizes.embed) {
      out.push_back(dropping("training"));
      out.push_back(dropping("evaluation"));
    }
    return out;
  }
};

Task layer(const Kind& kind, std::string_view title, std::string_view teaches, std::string_view article,
           std::string_view function, std::string_view class_name, const Sizes& sizes) {
  Task task{.name = kind.task,
            .title = title,
            .teaches = teaches,
            .article = article,
            .functions = {function},
            .classes = {class_name},
            .arguments = {{"x", "B L E"}},
            .parts = {"layer", "projection", "scores", "softmax", "values"},
            .sizes = sizes,
            .textbook = layer_textbook(),
            .answers = {"out"},
            .probes = {}};
  if (kind.cross) task.arguments.push_back({"memory", "B M E"});
  const bool several = sizes.heads > 1;
  const std::string_view kv = kind.narrow ? "E P" : sizes.kv_heads != sizes.heads ? "E G" : "E P";
  if (kind.merged) {
    task.arguments.push_back({"W_qkv", "E 3E"});
    task.arguments.push_back({"b_qkv", "3E"});
  } else {
    task.arguments.push_back({"W_q", "E P"});
    if (kind.biases) task.arguments.push_back({"b_q", "P"});
    task.arguments.push_back({"W_k", kv});
    if (kind.biases) task.arguments.push_back({"b_k", "P"});
    task.arguments.push_back({"W_v", kv});
    if (kind.biases) task.arguments.push_back({"b_v", "P"});
  }
  if (kind.output) {
    task.arguments.push_back({"W_o", "P E"});
    if (kind.biases) task.arguments.push_back({"b_o", "E"});
    task.parts.push_back("output");
  }
  if (kind.masked) {
    task.arguments.push_back({"mask", kind.three_axes ? "B L L" : kind.cross ? "B 1 L M" : "B 1 L L", true});
    task.parts.push_back("mask");
  }
  task.arguments.push_back({"dout", kind.output ? "B L E" : "B L P", true});
  if (kind.biases) task.parts.push_back("biases");
  task.parts.push_back(kind.causal ? "causal" : "bidirectional");
  if (kind.cross) task.parts.push_back("cross");
  if (kind.narrow) task.parts.push_back("narrow");
  if (several) task.parts.push_back("heads");
  if (!several && kind.task != "self-attention") task.parts.push_back("single");
  if (sizes.heads != sizes.kv_heads) task.parts.push_back("grouped");
  task.probes = [kind](const Sizes& s, std::uint64_t seed) { return Layer{kind, s, Draw(seed)}.probes(); };
  return task;
}

}  // namespace

std::vector<Task> layer_tasks() {
  const Sizes one{.heads = 1, .kv_heads = 1, .head_dim = 18}, narrow{.heads = 1, .kv_heads = 1, .head_dim = 11}, several{};
  const Sizes grouped{.length = 7, .embed = 30, .heads = 6, .kv_heads = 3, .head_dim = 5};
  return {layer({.task = "v1", .output = false}, "three projections", "q, k and v from x, and the formula; nothing else.",
                "000, 004", "v1", "SelfAttentionV1", one),
          layer({.task = "v2", .merged = true, .output = false}, "one matrix product",
                "One projection to 3E, cut into q, k, v.", "000, 004", "v2", "SelfAttentionV2", one),
          layer({.task = "v3", .merged = true, .masked = true, .three_axes = true}, "a mask, dropout, an output projection",
                "What a practical layer adds to the formula.", "000, 004", "v3", "SelfAttentionV3", one),
          layer({.task = "v4", .masked = true, .three_axes = true}, "the interview's version",
                "V3 from memory, with separate projections.", "002, 004", "v4", "SelfAttentionV4", one),
          layer({.task = "self-attention", .output = false, .narrow = true}, "a head narrower than the model",
                "Projections to d_k, and the scale that belongs to d_k.", "001", "self_attention", "SelfAttention", narrow),
          layer({.task = "single-head", .biases = false, .causal = true}, "a causal head",
                "One head that sees the past only, without biases.", "003", "single_head", "SingleHeadAttention", one),
          layer({.task = "mha", .masked = true}, "several heads", "Split into heads and merge: view, transpose, and back.",
                "001, 002, 004", "mha", "MultiHeadAttention", several),
          layer({.task = "gqa", .biases = false}, "heads that share keys", "Groups of query heads read one key/value head.",
                "003 (an extension)", "gqa", "GroupedQueryAttention", grouped),
          layer({.task = "cross", .masked = true, .cross = true}, "keys of another sequence",
                "Queries from x, keys and values from memory.", "none", "cross_attention", "CrossAttention", several)};
}

}  // namespace qkv::judge

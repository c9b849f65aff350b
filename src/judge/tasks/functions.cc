// sdpa and causal: attention as a function of q, k, v.
#include <limits>

#include "judge/probes.h"
#include "judge/tasks/steps.h"

namespace qkv::judge {
namespace {

struct Lengths {
  Index batch, queries, keys;
};

/// q [B, H, Tq, d], k [B, H, Tk, d], v [B, H, Tk, d]. Scores before the scale have a deviation of `spread` sqrt(d).
Probe qkv_probe(std::string_view task, std::string_view name, const Sizes& sizes, Draw& draw, Lengths n, double spread = 2) {
  Probe probe = start_probe(task, name, "forward", sizes);
  probe.inputs["q"] = draw.array({n.batch, sizes.heads, n.queries, sizes.head_dim}, spread);
  probe.inputs["k"] = draw.array({n.batch, sizes.heads, n.keys, sizes.head_dim});
  probe.inputs["v"] = draw.array({n.batch, sizes.heads, n.keys, sizes.head_dim});
  return probe;
}

Probe large_probe(std::string_view task, std::string_view name, const Sizes& sizes, Draw& draw, Lengths n) {
  return clear_of_overflow(function_textbook(), [&] { return qkv_probe(task, name, sizes, draw, n, 1000); });
}

Probe with_mask(Probe probe, const Array& mask) {
  probe.inputs["mask"] = reshape(mask, {mask.size(0), 1, mask.size(1), mask.size(2)});
  return probe;
}

Probe with_gradient(Probe probe, Draw& draw) {
  probe.metadata["call"] = "gradient";
  probe.inputs["dout"] = draw.array(probe.at("q").shape);
  return probe;
}

/// The probe with keys, values and mask columns in another order: the output must not change.
Probe keys_permuted(Probe probe) {
  probe.metadata["name"] = "keys in another order";
  const Index keys = probe.at("k").size(2);
  std::vector<Index> order(static_cast<std::size_t>(keys));
  for (Index j = 0; j < keys; ++j) order[static_cast<std::size_t>(j)] = (j * 3 + 2) % keys;
  for (const char* name : {"k", "v"}) probe.inputs[name] = take(probe.at(name), 2, order);
  if (probe.has("mask")) probe.inputs["mask"] = take(probe.at("mask"), 3, order);
  return probe;
}

std::vector<Probe> sdpa_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const std::string_view task = "sdpa";
  const Lengths all{s.batch, s.length, s.memory};
  std::vector<Probe> probes;
  probes.push_back(qkv_probe(task, "plain", s, draw, all));
  probes.push_back(qkv_probe(task, "two tokens", s, draw, {1, 2, 2}));
  probes.push_back(with_mask(qkv_probe(task, "padding", s, draw, all), padding_mask(s.batch, s.length, s.memory)));
  probes.push_back(with_mask(qkv_probe(task, "pairs masked", s, draw, all), pair_mask(draw, s.batch, s.length, s.memory)));
  if (s.memory % 3 != 0) probes.push_back(keys_permuted(probes.back()));
  probes.push_back(with_mask(qkv_probe(task, "as many queries as keys", s, draw, {s.batch, s.length, s.length}),
                             pair_mask(draw, s.batch, s.length, s.length)));
  probes.push_back(large_probe(task, "large scores", s, draw, all));
  probes.push_back(
      with_mask(large_probe(task, "masked large scores", s, draw, all), pair_mask(draw, s.batch, s.length, s.memory)));
  probes.push_back(qkv_probe(task, "one token", s, draw, {s.batch, 1, 1}));
  probes.push_back(qkv_probe(task, "another batch", s, draw, {s.batch + 2, s.length + 1, s.memory + 4}));
  const Array mask = empty_row_mask(draw, s.batch, s.length, s.memory);
  probes.push_back(with_mask(qkv_probe(task, "empty row", s, draw, all), mask));
  Probe hidden = with_mask(qkv_probe(task, "NaN behind the mask", s, draw, all), padding_mask(s.batch, s.length, s.memory));
  hidden.metadata["call"] = "nan";
  for (const char* name : {"k", "v"}) {
    // The last key, which no query sees.
    Array& array = hidden.inputs[name];
    for (Index i = 0; i < array.count(); ++i) {
      if (i / s.head_dim % s.memory == s.memory - 1) array[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  probes.push_back(std::move(hidden));
  probes.push_back(with_gradient(qkv_probe(task, "gradient", s, draw, {1, 2, 3}), draw));
  probes.push_back(called_twice(probes.front()));
  return probes;
}

std::vector<Probe> causal_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const std::string_view task = "causal";
  const Lengths square{s.batch, s.length, s.length};
  std::vector<Probe> probes;
  probes.push_back(qkv_probe(task, "plain", s, draw, square));
  probes.push_back(qkv_probe(task, "two tokens", s, draw, {1, 2, 2}));
  Probe future = probes.front();
  future.metadata["name"] = "another future";
  for (const char* name : {"q", "k", "v"}) {
    const Array& now = future.at(name);
    future.inputs[name] = concat({slice(now, 2, 0, 2), draw.array({s.batch, s.heads, s.length - 2, s.head_dim}, 3)}, 2);
  }
  probes.push_back(std::move(future));
  probes.push_back(large_probe(task, "large scores", s, draw, square));
  probes.push_back(qkv_probe(task, "one token", s, draw, {s.batch, 1, 1}));
  probes.push_back(qkv_probe(task, "another batch", s, draw, {s.batch + 2, s.length + 4, s.length + 4}));
  probes.push_back(qkv_probe(task, "more keys than queries", s, draw, {s.batch, s.length, s.memory}));
  probes.push_back(with_gradient(qkv_probe(task, "gradient", s, draw, {1, 3, 3}), draw));
  probes.push_back(called_twice(probes.front()));
  for (Probe& probe : probes) probe.metadata["causal"] = "1";
  return probes;
}

}  // namespace

std::vector<Task> function_tasks() {
  return {{.name = "sdpa",
           .title = "the formula",
           .teaches = "Scaled dot-product attention with a mask: scores, scale, mask, softmax, values.",
           .article = "003",
           .functions = {"sdpa"},
           .classes = {},
           .arguments =
               {{"q", "B H T d"}, {"k", "B H S d"}, {"v", "B H S d"}, {"mask", "B 1 T S", true}, {"dout", "B H T d", true}},
           .parts = {"function", "scores", "mask", "bidirectional", "softmax", "values"},
           .sizes = {},
           .textbook = function_textbook(),
           .answers = {"out"},
           .probes = sdpa_probes},
          {.name = "causal",
           .title = "no look ahead",
           .teaches = "Position i sees positions 0 to i only: the mask of a language model.",
           .article = "003",
           .functions = {"causal_attention"},
           .classes = {},
           .arguments = {{"q", "B H T d"}, {"k", "B H S d"}, {"v", "B H S d"}, {"dout", "B H T d", true}},
           .parts = {"function", "scores", "causal", "corner", "softmax", "values"},
           .sizes = {},
           .textbook = function_textbook(),
           .answers = {"out"},
           .probes = causal_probes}};
}

}  // namespace qkv::judge

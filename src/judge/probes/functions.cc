// Probes of the functions of q, k and v, and of rope.
#include <algorithm>
#include <cmath>

#include "judge/dropout.h"
#include "judge/probes/probes.h"

namespace qkv::judge {
namespace {

Probe with_gradient(Probe probe, ProbeMaker& make) {
  probe.metadata["call"] = "gradient";
  probe.inputs["dout"] = make.draw.array(probe.at("q").shape);
  return probe;
}

Probe with_causal(Probe probe, bool causal) {
  if (causal) probe.metadata["causal"] = "1";
  return probe;
}

Probe large(ProbeMaker& make, std::string_view name, Lengths n) {
  return make.clear_of_overflow([&] { return make.attention(name, n, 1000); });
}

/// Two heads of two whole numbers of one digit, the same for every seed: what a pencil can compute.
Probe by_hand(const ProbeMaker& make, std::string_view name, Lengths n) {
  ProbeMaker own{make.task, make.s, Draw(0)};
  own.s.heads = own.s.kv_heads = own.s.head_dim = 2;
  Probe probe = own.attention(name, n);
  for (auto& [input, array] : probe.inputs)
    array = map(array, [&](Number) { return Number(static_cast<double>(own.draw.below(7)) - 3); });
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

/// Every score of the first sequences is far below 0: a maximum that starts at 0 leaves nothing.
Probe far_below(Probe probe, Index sequences) {
  for (const char* name : {"q", "k"}) {
    const double sign = name[0] == 'q' ? -40 : 40;
    const Array& x = probe.at(name);
    const Array below = map(x, [sign](Number one) { return Number(sign * std::fabs(one.value) + sign); });
    probe.inputs[name] = concat({slice(below, 0, 0, sequences), slice(x, 0, sequences, x.size(0))}, 0);
  }
  return probe;
}

/// More keys than queries, whatever a person's object has.
Index keys_of(const Sizes& s) { return std::max(s.memory, s.length + 2); }

std::vector<Probe> sdpa_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Lengths all{s.batch, s.length, s.memory}, square{s.batch, s.length, s.length};
  std::vector<Probe> probes;
  const auto masked = [&](std::string_view name, const Array& mask, Lengths n) {
    probes.push_back(make.with_mask(make.attention(name, n), mask));
  };
  probes.push_back(make.attention("plain", all));
  probes.push_back(by_hand(make, "by hand", {1, 2, 2}));
  Array one_hidden({1, 2, 2}, 1);
  one_hidden[1] = one_hidden[2] = 0;
  probes.push_back(make.with_mask(by_hand(make, "masked by hand", {1, 2, 2}), one_hidden));
  masked("padding", make.padding_mask(all), all);
  masked("pairs masked", make.pair_mask(all), all);
  if (s.memory % 3 != 0) probes.push_back(keys_permuted(probes.back()));
  masked("as many queries as keys", make.pair_mask(square), square);
  probes.push_back(large(make, "large scores", all));
  const Array pairs = make.pair_mask(all);
  probes.push_back(make.with_low_mask(large(make, "masked large scores", all), pairs));
  probes.push_back(make.attention("one token", {s.batch, 1, 1}));
  probes.push_back(make.attention("another batch", {s.batch + 2, s.length + 1, s.memory + 4}));
  masked("empty row", make.empty_row_mask(all), all);
  probes.push_back(make.attention("as many queries as keys, no mask", square));
  probes.push_back(far_below(make.attention("scores far below zero", all), 1));
  probes.push_back(with_gradient(make.attention("gradient", {1, 2, 3}), make));
  probes.push_back(called_twice(probes.front()));
  return probes;
}

std::vector<Probe> causal_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Lengths square{s.batch, s.length, s.length};
  std::vector<Probe> probes;
  probes.push_back(make.attention("plain", square));
  probes.push_back(by_hand(make, "by hand", {1, 2, 2}));
  Probe future = probes.front();
  future.metadata["name"] = "another future";
  for (const char* name : {"q", "k", "v"}) {
    const Array& now = future.at(name);
    future.inputs[name] =
        concat({slice(now, 2, 0, 2), make.draw.array({s.batch, s.heads, s.length - 2, s.head_dim}, 3)}, 2);
  }
  probes.push_back(std::move(future));
  probes.push_back(large(make, "large scores", square));
  probes.push_back(make.attention("one token", {s.batch, 1, 1}));
  probes.push_back(make.attention("another batch", {s.batch + 2, s.length + 4, s.length + 4}));
  probes.push_back(make.attention("more keys than queries", {s.batch, s.length, s.memory}));
  probes.push_back(with_gradient(make.attention("gradient", {1, 3, 3}), make));
  probes.push_back(called_twice(probes.front()));
  return probes;
}

std::vector<Probe> flash_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Index queries = s.length, keys = keys_of(s);
  const Lengths all{s.batch, queries, keys}, square{s.batch, queries, queries};
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Lengths n, Index block, bool causal = false,
                       double spread = 2) -> Probe& {
    probes.push_back(with_causal(make.attention(name, n, spread), causal));
    probes.back().metadata["block"] = std::to_string(block);
    return probes.back();
  };
  add("plain", all, 3);
  for (const bool causal : {false, true}) {
    const Lengths n = causal ? Lengths{1, 3, 3} : Lengths{1, 2, 4};
    probes.push_back(with_causal(by_hand(make, causal ? "causal by hand" : "by hand", n), causal));
    probes.back().metadata["block"] = "2";
  }
  add("blocks of 1", all, 1);
  add("blocks of 2", all, 2);
  add("as many queries as keys", square, 2);
  add("one block", all, keys);
  add("a block larger than all keys", all, keys + 4);
  add("causal", square, 2, true);
  add("causal, blocks of 1", square, 1, true);
  add("causal, one block", square, queries + 1, true);
  add("causal, more keys than queries", all, 3, true);
  add("large scores", all, 3, false, 1000);
  Probe& below = add("scores far below zero", all, 3);
  below = far_below(std::move(below), s.batch);
  // The maximum falls from tile to tile in some rows, and grows in others.
  add("many blocks", {1, queries, 4 * keys + 1}, 4, false, 3);
  add("one token", {s.batch, 1, 1}, 2);
  add("another batch", {s.batch + 2, queries + 1, keys + 4}, 4);
  return probes;
}

std::vector<Probe> linear_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Index queries = s.length, keys = keys_of(s);
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Lengths n, bool causal = false, double spread = 1) {
    probes.push_back(with_causal(make.attention(name, n, spread, spread), causal));
  };
  add("plain", {s.batch, queries, keys});
  probes.push_back(by_hand(make, "by hand", {1, 2, 2}));
  probes.push_back(with_causal(by_hand(make, "causal by hand", {1, 3, 3}), true));
  add("causal", {s.batch, queries, queries}, true);
  add("as many queries as keys", {s.batch, queries, queries});
  add("large inputs", {s.batch, queries, keys}, false, 8);
  add("causal, large inputs", {s.batch, keys, keys}, true, 8);
  add("one token", {s.batch, 1, 1});
  add("another batch", {s.batch + 2, queries + 1, keys + 4});
  probes.push_back(called_twice(probes.front()));
  return probes;
}

std::vector<Probe> dropout_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Index keys = keys_of(s);
  const Lengths all{s.batch, s.length, keys};
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Lengths n) -> Probe& {
    probes.push_back(make.attention(name, n, 1));
    probes.back().metadata["dropout"] = "0.25";  // not 0.5: what is kept and what is dropped differ
    return probes.back();
  };
  add("plain", all);
  add("as many queries as keys", {s.batch, s.length, s.length});
  add("one token", {s.batch, 1, 1});
  add("another batch", {s.batch + 2, s.length + 1, keys + 4});
  Array& large_q = add("large scores", all).inputs["q"];
  large_q = large_q * Number(1000);
  const Sizes own = make.s;
  make.s.head_dim = 2 * keys;
  for (const char* call : {"training", "evaluation"}) {
    Probe& probe = add(call, all);
    probe.inputs["v"] = weights_shown_twice(s.batch, s.heads, keys);
    probe.metadata["call"] = call;
    probe.metadata["repeat"] = "40";
  }
  make.s = own;
  const auto masked = [&](std::string_view name, const Array& mask, double factor) {
    Probe& probe = add(name, all);
    probe = make.with_mask(std::move(probe), mask);
    probe.inputs["q"] = probe.at("q") * Number(factor);
  };
  masked("padding", make.padding_mask(all), 1);
  masked("pairs masked", make.pair_mask(all), 2);
  masked("masked large scores", make.pair_mask(all), 1000);
  return probes;
}

std::vector<Probe> backward_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Index length = s.length;
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Lengths n, bool causal = false, double spread = 2) {
    Probe probe = with_causal(make.attention(name, n, spread), causal);
    probe.inputs["dout"] = make.draw.array({n.batch, s.heads, n.queries, s.head_dim});
    probe.inputs["x"] = make.draw.array({n.batch, n.queries, s.embed});
    for (const char* weight : {"W_q", "W_k", "W_v", "W_o"})
      probe.inputs[weight] = make.weight(s.embed, s.embed, weight[2] == 'q' ? spread : 1);
    probe.inputs["dout_layer"] = make.draw.array({n.batch, n.queries, s.embed});
    probes.push_back(std::move(probe));
  };
  add("plain", {s.batch, length, length});
  add("causal", {s.batch, length, length}, true);
  add("more keys than queries", {s.batch, length, keys_of(s)});
  add("causal, more keys than queries", {s.batch, length, keys_of(s)}, true);
  add("large scores", {s.batch, length, length}, false, 1000);
  add("one token", {s.batch, 1, 1});
  add("another batch", {s.batch + 2, length + 1, length + 1});
  return probes;
}

std::vector<Probe> rope_probes(ProbeMaker& make) {
  const Sizes& s = make.s;
  const Index width = s.head_dim + s.head_dim % 2;
  std::vector<Probe> probes;
  const auto add = [&](std::string_view name, Index batch, const std::vector<double>& positions, Index base = 10000,
                       double spread_of_q = 2) {
    const auto length = static_cast<Index>(positions.size());
    Probe probe = make.start(name);
    probe.metadata["base"] = std::to_string(base);
    Array& all = probe.inputs["positions"] = Array({length});
    std::ranges::copy(positions, all.data.begin());
    for (const char* array : {"x", "q", "k", "v"})
      probe.inputs[array] = make.draw.array({batch, s.heads, length, width}, array[0] == 'q' ? spread_of_q : 1);
    probes.push_back(std::move(probe));
  };
  std::vector<double> ascending, spread;
  for (Index t = 0; t < std::max<Index>(s.length, 5); ++t) {
    ascending.push_back(static_cast<double>(t));
    spread.push_back(static_cast<double>(t * t + 3));
  }
  add("plain", s.batch, ascending);
  add("positions with gaps", s.batch, spread);
  add("another base", s.batch, spread, 500);
  add("positions backwards", s.batch, {7, 4, 3, 0, 11});
  add("far positions", s.batch, {0, 40, 41, 97, 160, 161});
  add("large scores", s.batch, ascending, 10000, 1000);
  add("one token", s.batch, {5});
  add("another batch", s.batch + 2, {2, 0, 1, 9});
  return probes;
}

}  // namespace

std::vector<Probe> function_probes(ProbeMaker& make) {
  using Probes = std::vector<Probe> (*)(ProbeMaker&);
  static constexpr std::pair<std::string_view, Probes> kOwn[] = {{"sdpa", sdpa_probes}, {"causal", causal_probes},
      {"flash", flash_probes}, {"linear", linear_probes}, {"rope", rope_probes}, {"backward", backward_probes},
      {"dropout", dropout_probes}};
  return std::ranges::find(kOwn, make.task.name, &std::pair<std::string_view, Probes>::first)->second(make);
}

}  // namespace qkv::judge

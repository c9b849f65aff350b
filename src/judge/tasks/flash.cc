// flash: tiled online softmax. A round of the textbook is a tile of keys; a row carries a maximum, a sum and an output that is not
// yet divided. Milakov 2018 (arXiv:1805.02867); Dao 2022 (arXiv:2205.14135), algorithm 1.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "judge/probes.h"
#include "judge/tasks/steps.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// maximum, sum [B, H, Tq, 1], unscaled [B, H, Tq, d]; block [1]: keys of a tile; first [1]: this tile's first key; k, v: its rows.
void tile_step(Work& work) {
  const Array &q = work.probe.at("q"), &k = work.probe.at("k"), &v = work.probe.at("v");
  const Index keys = k.size(2), block = work.probe.integer("block");
  if (block < 1 || keys < 1)
    throw OptionError("[judge] metadata 'block' of a flash probe: at least 1, as must be the keys: got " +
                      work.probe.text("block"));
  if (work.round == 0) {
    work.rounds = (keys - 1) / block + 1;
    work["q"] = q;
    work["maximum"] = Array({q.size(0), q.size(1), q.size(2), 1}, -kInfinity);
    work["sum"] = Array({q.size(0), q.size(1), q.size(2), 1});
    work["unscaled"] = Array({q.size(0), q.size(1), q.size(2), v.size(3)});
  }
  const Index first = work.round * block, end = std::min(keys - first, block) + first;
  work["first"] = Array({1}, static_cast<double>(first));
  work["k"] = slice(k, 2, first, end);
  work["v"] = slice(v, 2, first, end);
}

/// visible [B, H, Tq, keys of the tile]: bottom-right causal, counted over all keys.
void see_step_of_tile(Work& work) {
  const Array& q = work.at("q");
  const Index queries = q.size(2), keys = work.at("k").size(2), all = work.probe.at("k").size(2);
  const auto first = static_cast<Index>(work.at("first")[0].value);
  Array visible({q.size(0), q.size(1), queries, keys}, 1);
  for (Index n = 0; work.causal && n < visible.count(); ++n) {
    if (first + n % keys > n / keys % queries + all - queries) visible[n] = 0;
  }
  work["visible"] = std::move(visible);
}

/// largest [B, H, Tq, 1]: of this tile and all before it.
void maximum_step(Work& work) {
  const Array& scores = work.at("scores");
  Array& largest = work["largest"];
  largest = work.at("maximum");
  const Index keys = scores.size(-1);
  for (Index n = 0; n < scores.count(); ++n) largest[n / keys] = max(largest[n / keys], scores[n]);
}

/// e^(a - b), 0 where both are -inf: a row that saw nothing yet. The rounding of a maximum leaves the quotient.
Number lowered(Number a, Number b) {
  return a.value == -kInfinity ? Number(0) : exp(Number(a.value - b.value, a.error + std::fabs(a.value - b.value)));
}

/// factor [B, H, Tq, 1]: what turns numbers under the old maximum into numbers under the new one.
void rescale_step(Work& work) {
  work["factor"] =
      zip(work.at("maximum"), work.at("largest"), [](Number old, Number now) { return lowered(old.value, now.value); });
}

void exponentials_step(Work& work) {
  work["weights"] = zip(work.at("scores"), work.at("largest"), [](Number s, Number now) { return lowered(s, now.value); });
}

void sum_step(Work& work) { work["sum"] = work.at("sum") * work.at("factor") + sum(work.at("weights"), -1); }

void mix_tile_step(Work& work) {
  work["unscaled"] = work.at("unscaled") * work.at("factor") + matmul(work.at("weights"), work.at("v"));
}

void carry_step(Work& work) { work["maximum"] = work.at("largest"); }

void divide_step(Work& work) {
  work["out"] = zip(work.at("unscaled"), work.at("sum"), [](Number o, Number total) { return o / total; });
}

Textbook flash_textbook() {
  return {{"tile", tile_step}, {"see tile", see_step_of_tile}, {"scores", scores_step},   {"scale", scale_step},
          {"mask", mask_step}, {"maximum", maximum_step},      {"rescale", rescale_step}, {"exponentials", exponentials_step},
          {"sum", sum_step},   {"mix tile", mix_tile_step},    {"carry", carry_step},     {"divide", divide_step}};
}

std::vector<Probe> flash_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const auto make = [&](std::string_view name, Index batch, Index queries, Index keys, Index block, bool causal,
                        double spread = 2) {
    Probe probe = start_probe("flash", name, "forward", s);
    probe.metadata["block"] = std::to_string(block);
    probe.metadata["causal"] = causal ? "1" : "0";
    probe.inputs["q"] = draw.array({batch, s.heads, queries, s.head_dim}, spread);
    probe.inputs["k"] = draw.array({batch, s.heads, keys, s.head_dim});
    probe.inputs["v"] = draw.array({batch, s.heads, keys, s.head_dim});
    return probe;
  };
  const Index queries = s.length, keys = std::max(s.memory, s.length + 2);
  std::vector<Probe> probes;
  probes.push_back(make("plain", s.batch, queries, keys, 3, false));
  probes.push_back(make("blocks of 1", s.batch, queries, keys, 1, false));
  probes.push_back(make("blocks of 2", s.batch, queries, keys, 2, false));
  probes.push_back(make("one block", s.batch, queries, keys, keys, false));
  probes.push_back(make("a block larger than all keys", s.batch, queries, keys, keys + 4, false));
  probes.push_back(make("causal", s.batch, queries, queries, 2, true));
  probes.push_back(make("causal, blocks of 1", s.batch, queries, queries, 1, true));
  probes.push_back(make("causal, one block", s.batch, queries, queries, queries + 1, true));
  probes.push_back(make("causal, more keys than queries", s.batch, queries, keys, 3, true));
  probes.push_back(make("large scores", s.batch, queries, keys, 3, false, 1000));
  // Every score is far below 0: a running maximum that starts at 0 leaves nothing.
  Probe below = make("scores far below zero", s.batch, queries, keys, 3, false);
  for (const char* name : {"q", "k"}) {
    const Number sign = name[0] == 'q' ? Number(-40) : Number(40);
    below.inputs[name] = map(below.at(name), [sign](Number x) { return sign * fabs(x) + sign; });
    for (Number& x : below.inputs[name].data) x.error = 0;
  }
  probes.push_back(std::move(below));
  // The maximum falls from tile to tile in some rows, and grows in others.
  probes.push_back(make("many blocks", 1, queries, 4 * keys + 1, 4, false, 3));
  probes.push_back(make("one token", s.batch, 1, 1, 2, false));
  probes.push_back(make("another batch", s.batch + 2, queries + 1, keys + 4, 4, false));
  return probes;
}

}  // namespace

Task flash_task() {
  return {.name = "flash",
          .title = "tile by tile",
          .teaches =
              "Softmax over keys that come in blocks: a running maximum, a running sum, and what is rescaled when the maximum "
              "grows.",
          .article = "003 (an extension)",
          .functions = {"flash"},
          .classes = {},
          .arguments = {{"q", "B H T d"}, {"k", "B H S d"}, {"v", "B H S d"}},
          .parts = {"flash", "scores"},
          .sizes = {},
          .textbook = flash_textbook(),
          .answers = {"out"},
          .probes = flash_probes};
}

}  // namespace qkv::judge

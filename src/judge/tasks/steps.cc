#include "judge/tasks/steps.h"

#include <cmath>
#include <limits>

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Array repeat_heads(const Array& x, Index group) {
  if (group == 1) return x;
  std::vector<Index> from(static_cast<std::size_t>(x.size(1) * group));
  for (std::size_t h = 0; h < from.size(); ++h) from[h] = static_cast<Index>(h) / group;
  return take(x, 1, from);
}

}  // namespace

Array over_heads(const Array& mask, Index heads) {
  const Array four = mask.rank() == 4 ? mask : reshape(mask, {mask.size(0), 1, mask.size(1), mask.size(2)});
  return four.size(1) == heads ? four : take(four, 1, std::vector<Index>(static_cast<std::size_t>(heads), 0));
}

Array split_heads(const Array& x, Index heads) {
  return permute(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), {0, 2, 1, 3});
}

Array merge_heads(const Array& x) { return reshape(permute(x, {0, 2, 1, 3}), {x.size(0), x.size(2), x.size(1) * x.size(3)}); }

void parameters_step(Work& work) {
  const Probe& probe = work.probe;
  if (probe.has("W_qkv")) {
    const Array &weight = probe.at("W_qkv"), bias = probe.or_empty("b_qkv");
    const Index width = weight.size(1) / 3;
    Index begin = 0;
    for (const std::string name : {"q", "k", "v"}) {
      work["W_" + name] = slice(weight, 1, begin, begin + width);
      work["b_" + name] = bias.data.empty() ? Array() : slice(bias, 0, begin, begin + width);
      begin += width;
    }
  } else {
    for (const std::string name : {"q", "k", "v"}) {
      work["W_" + name] = probe.at("W_" + name);
      work["b_" + name] = probe.or_empty("b_" + name);
    }
  }
  work["W_o"] = probe.or_empty("W_o");
  work["b_o"] = probe.or_empty("b_o");
  work["x"] = probe.at("x");
  work["memory"] = probe.has("memory") ? probe.at("memory") : probe.at("x");
}

void project_step(Work& work) {
  work["q"] = linear(work.at("x"), work.at("W_q"), work.at("b_q"));
  work["k"] = linear(work.at("memory"), work.at("W_k"), work.at("b_k"));
  work["v"] = linear(work.at("memory"), work.at("W_v"), work.at("b_v"));
}

void split_step(Work& work) {
  work["q"] = split_heads(work.at("q"), work.heads);
  work["k"] = split_heads(work.at("k"), work.kv_heads);
  work["v"] = split_heads(work.at("v"), work.kv_heads);
}

void group_step(Work& work) {
  const Index group = work.heads / work.kv_heads;
  work["k"] = repeat_heads(work.at("k"), group);
  work["v"] = repeat_heads(work.at("v"), group);
}

void see_step(Work& work) {
  const Array& q = work.at("q");
  const Index batch = q.size(0), heads = q.size(1), queries = q.size(2), keys = work.at("k").size(2);
  Array visible({batch, heads, queries, keys}, 1);
  if (work.probe.has("mask")) visible = visible * over_heads(work.probe.at("mask"), heads);
  if (work.causal) {
    Array past({queries, keys});
    for (Index i = 0; i < queries; ++i) {
      for (Index j = 0; j < keys; ++j) past[i * keys + j] = j <= i + keys - queries ? 1 : 0;
    }
    visible = visible * past;
  }
  work["visible"] = std::move(visible);
}

void scores_step(Work& work) { work["scores"] = matmul(work.at("q"), transpose(work.at("k"))); }

void scale_step(Work& work) {
  work["scores"] = work.at("scores") * Number(1 / std::sqrt(static_cast<double>(work.at("q").size(-1))));
}

void fill_hidden(Work& work, double fill) {
  work["scores"] =
      zip(work.at("scores"), work.at("visible"), [fill](Number s, Number seen) { return seen.value != 0 ? s : Number(fill); });
}

void mask_step(Work& work) { fill_hidden(work, -kInfinity); }

void softmax_step(Work& work) { work["weights"] = softmax(work.at("scores")); }

void empty_step(Work& work) {
  const Array seen = sum(work.at("visible"), -1);
  work["weights"] = zip(work.at("weights"), seen, [](Number w, Number keys) { return keys.value != 0 ? w : Number(0); });
}

void mix_step(Work& work) { work["values"] = matmul(work.at("weights"), work.at("v")); }

void merge_step(Work& work) { work["merged"] = merge_heads(work.at("values")); }

void output_step(Work& work) {
  work["out"] = work.at("W_o").data.empty() ? work.at("merged") : linear(work.at("merged"), work.at("W_o"), work.at("b_o"));
}

void take_values_step(Work& work) { work["out"] = work.at("values"); }

namespace {
void given_step(Work& work) {
  for (const char* name : {"q", "k", "v"}) work[name] = work.probe.at(name);
}
}  // namespace

Textbook function_textbook() {
  return {{"given", given_step}, {"see", see_step},   {"scores", scores_step},
          {"scale", scale_step}, {"mask", mask_step}, {"softmax", softmax_step},
          {"empty", empty_step}, {"mix", mix_step},   {"output", take_values_step}};
}

Textbook layer_textbook() {
  return {{"parameters", parameters_step}, {"project", project_step}, {"split", split_step},
          {"group", group_step},           {"see", see_step},         {"scores", scores_step},
          {"scale", scale_step},           {"mask", mask_step},       {"softmax", softmax_step},
          {"empty", empty_step},           {"mix", mix_step},         {"merge", merge_step},
          {"output", output_step}};
}

}  // namespace qkv::judge

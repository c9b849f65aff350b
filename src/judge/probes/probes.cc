#include "judge/probes/probes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "judge/judge.h"

namespace qkv::judge {

Array Draw::array(Shape shape, double deviation) {
  Array out(std::move(shape));
  for (Number& x : out.data) {
    const double unit = static_cast<double>(bits_() >> 11) * 0x1p-52 - 1;  // [-1, 1), deviation 1 / sqrt(3)
    x = std::round(unit * std::sqrt(3.0) * deviation * 4096) / 4096;
  }
  return out;
}

Probe ProbeMaker::start(std::string_view name, std::string_view call) const {
  Probe probe;
  probe.metadata = {{"task", std::string(task.name)}, {"name", std::string(name)}, {"call", std::string(call)},
      {"heads", std::to_string(s.heads)}, {"kv_heads", std::to_string(s.kv_heads)},
      {"causal", task.has("always-causal") ? "1" : "0"}};
  return probe;
}

Probe ProbeMaker::attention(std::string_view name, Lengths n, double spread, double spread_of_keys) {
  Probe probe = start(name);
  probe.inputs["q"] = draw.array({n.batch, s.heads, n.queries, s.head_dim}, spread);
  probe.inputs["k"] = draw.array({n.batch, s.heads, n.keys, s.head_dim}, spread_of_keys);
  probe.inputs["v"] = draw.array({n.batch, s.heads, n.keys, s.head_dim});
  return probe;
}

Array ProbeMaker::weight(Index rows, Index columns, double factor) {
  return draw.array({rows, columns}, factor * (1 / std::sqrt(static_cast<double>(s.embed))));
}

Probe called_twice(Probe probe) {
  probe.metadata["name"] = "called twice";
  probe.metadata["call"] = "twice";
  return probe;
}

Probe ProbeMaker::clear_of_overflow(const std::function<Probe()>& drawn) const {
  const auto clear = [&](const Probe& probe) {
    const Work work = run(task.textbook, probe);
    const Array& scores = work.at("scores");
    const Index keys = scores.size(-1);
    for (Index n = 0; n < scores.count(); n += keys) {
      double largest = scores[n].value;
      for (Index j = 1; j < keys; ++j) largest = std::max(largest, scores[n + j].value);
      if ((largest > 80 && largest < 98) || (largest > 690 && largest < 730)) return false;
    }
    return true;
  };
  Probe probe = drawn();
  for (int tries = 0; tries < 200 && !clear(probe); ++tries) probe = drawn();
  return probe;
}

Probe ProbeMaker::with_mask(Probe probe, const Array& mask) const {
  const auto own = std::ranges::find(task.arguments, std::string_view("mask"), &Argument::name);
  const bool three_axes = own->axes == "B L L";
  probe.inputs["mask"] = three_axes ? mask : reshape(mask, {mask.size(0), 1, mask.size(1), mask.size(2)});
  return probe;
}

Probe ProbeMaker::with_low_mask(Probe probe, Array mask) const {
  const Array scores = run(task.textbook, probe).at("scores");
  const Index heads = scores.size(1), queries = scores.size(2), keys = scores.size(3);
  for (Index row = 0; row < mask.count() / keys; row += 2) {
    Index lowest = 0;
    const Index own = (row / queries * heads * queries + row % queries) * keys;
    for (Index j = 0; j < keys; ++j) lowest = scores[own + j].value < scores[own + lowest].value ? j : lowest;
    for (Index j = 0; j < keys; ++j) mask[row * keys + j] = j == lowest ? 1 : 0;
  }
  return with_mask(std::move(probe), mask);
}

Array ProbeMaker::padding_mask(Lengths n) const {
  Array mask({n.batch, n.queries, n.keys}, 1);
  for (Index i = 0; i < mask.count(); ++i) {
    if (i % n.keys >= std::max<Index>(1, n.keys - 1 - i / (n.queries * n.keys))) mask[i] = 0;
  }
  return mask;
}

Array ProbeMaker::pair_mask(Lengths n) {
  const Index keys = n.keys;
  Array mask({n.batch, n.queries, keys});
  for (Index row = 0; row < n.batch * n.queries; ++row) {
    for (Index j = 0; j < keys; ++j) mask[row * keys + j] = draw.below(3) > 0 ? 1 : 0;
    mask[row * keys + draw.below(keys)] = 1;
    // Not everything either: a row that sees all keys shows nothing of the mask.
    if (keys > 2) mask[row * keys + (row + 1) % keys] = 0, mask[row * keys + row % keys] = 1;
  }
  return mask;
}

Array ProbeMaker::empty_row_mask(Lengths n) {
  Array mask = pair_mask(n);
  const Index row = std::min<Index>(1, n.batch * n.queries - 1);
  for (Index j = 0; j < n.keys; ++j) mask[row * n.keys + j] = 0;
  return mask;
}

std::vector<Probe> Task::probes(const Sizes& own_sizes, std::uint64_t seed) const {
  ProbeMaker make{*this, own_sizes, Draw(seed)};
  if (!probe_lines.empty()) return text_probes(make);
  if (has("cache")) return cache_probes(make);
  if (has("lm")) return lm_probes(make);
  return has("layer") ? layer_probes(make) : function_probes(make);
}

std::vector<StateDict> make_probes(std::string_view task, const Sizes& sizes, std::uint64_t seed, const Owner& owner) {
  default_sizes(task);  // throws for an unknown one
  const Task& own = *find_task(task);
  const auto lacks = [&](std::string_view name) { return std::ranges::find(owner.absent, name) != owner.absent.end(); };
  std::vector<StateDict> out;
  std::vector<Probe> probes;
  try {
    probes = own.probes(sizes, seed);
  } catch (const NotApplicable&) {
    throw OptionError("[judge] the probes of " + std::string(task) + " cannot have these sizes");
  }
  for (const Probe& probe : probes) check_probe(own, probe);
  for (std::size_t n = 0; n < owner.small.size(); ++n) {
    for (Probe& probe : small_probes(own, owner.small[n])) {
      probe.metadata["small"] = std::to_string(n + 1);
      probes.push_back(std::move(probe));
    }
  }
  for (Probe& probe : probes) {
    if (owner.causal) probe.metadata["causal"] = "1";
    if (owner.dropout && (probe.call("training") || probe.call("evaluation")))
      probe.metadata["dropout"] = std::to_string(*owner.dropout);
    if (lacks("W_o")) probe.metadata["without"] = "output";
    for (const auto& [key, value] : owner.metadata) probe.metadata[key] = value;
    if (owner.metadata.contains("whole")) probe.metadata["steps"] = std::to_string(probe.at("x").size(1));
    for (auto& [name, array] : probe.inputs) {
      if (lacks(name) && array.rank() == 1) array = Array(array.shape, name.starts_with("b_") ? 0 : 1);
    }
    if (lacks("W_g")) probe.inputs.erase("W_g");
    out.push_back(to_state(probe));
  }
  return out;
}

}  // namespace qkv::judge

#include "judge/probes.h"

#include <algorithm>
#include <cmath>

namespace qkv::judge {

Array Draw::array(Shape shape, double deviation) {
  Array out(std::move(shape));
  for (Number& x : out.data) {
    const double unit = static_cast<double>(bits_() >> 11) * 0x1p-52 - 1;  // [-1, 1), deviation 1 / sqrt(3)
    x = std::round(unit * std::sqrt(3.0) * deviation * 4096) / 4096;
  }
  return out;
}

Probe start_probe(std::string_view task, std::string_view name, std::string_view call, const Sizes& sizes) {
  Probe probe;
  probe.metadata = {{"task", std::string(task)},
                    {"name", std::string(name)},
                    {"call", std::string(call)},
                    {"heads", std::to_string(sizes.heads)},
                    {"kv_heads", std::to_string(sizes.kv_heads)},
                    {"causal", "0"}};
  return probe;
}

Probe called_twice(Probe probe) {
  probe.metadata["name"] = "called twice";
  probe.metadata["call"] = "twice";
  return probe;
}

Probe clear_of_overflow(const Textbook& textbook, const std::function<Probe()>& draw) {
  const auto clear = [&](const Probe& probe) {
    const Work work = run(textbook, probe);
    const Array& scores = work.at("scores");
    const Index keys = scores.size(-1);
    for (Index n = 0; n < scores.count(); n += keys) {
      double largest = scores[n].value;
      for (Index j = 1; j < keys; ++j) largest = std::max(largest, scores[n + j].value);
      if ((largest > 80 && largest < 98) || (largest > 690 && largest < 730)) return false;
    }
    return true;
  };
  Probe probe = draw();
  for (int tries = 0; tries < 200 && !clear(probe); ++tries) probe = draw();
  return probe;
}

Array padding_mask(Index batch, Index queries, Index keys) {
  Array mask({batch, queries, keys}, 1);
  for (Index b = 0; b < batch; ++b) {
    const Index length = std::max<Index>(1, keys - 1 - b);
    for (Index i = 0; i < queries; ++i) {
      for (Index j = length; j < keys; ++j) mask[(b * queries + i) * keys + j] = 0;
    }
  }
  return mask;
}

Array pair_mask(Draw& draw, Index batch, Index queries, Index keys) {
  Array mask({batch, queries, keys});
  for (Index row = 0; row < batch * queries; ++row) {
    for (Index j = 0; j < keys; ++j) mask[row * keys + j] = draw.below(3) > 0 ? 1 : 0;
    mask[row * keys + draw.below(keys)] = 1;
    // Not everything either: a row that sees all keys shows nothing of the mask.
    if (keys > 2) mask[row * keys + (row + 1) % keys] = 0, mask[row * keys + row % keys] = 1;
  }
  return mask;
}

Array empty_row_mask(Draw& draw, Index batch, Index queries, Index keys) {
  Array mask = pair_mask(draw, batch, queries, keys);
  for (Index j = 0; j < keys; ++j) mask[keys + j] = 0;
  return mask;
}

}  // namespace qkv::judge

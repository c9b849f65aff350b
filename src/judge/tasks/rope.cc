// rope: rotary positions, alone and in attention. Su 2021 (arXiv:2104.09864), section 3.4.2. Pairs are (i, i + d/2), as in Llama's
// and GPT-NeoX's layers; (2i, 2i + 1) is a convention.
#include <algorithm>
#include <cmath>
#include <string>

#include "judge/probes.h"
#include "judge/tasks/rotary_steps.h"
#include "judge/tasks/steps.h"
#include "qkv/error.h"

namespace qkv::judge {

Number sine(Number angle) {
  const double s = std::sin(angle.value);
  return {s, std::fabs(std::cos(angle.value)) * angle.error + 2 * std::fabs(s)};
}

Number cosine(Number angle) {
  const double c = std::cos(angle.value);
  return {c, std::fabs(std::sin(angle.value)) * angle.error + 2 * std::fabs(c)};
}

Array rotary_angles(const Array& positions, double base, const std::vector<double>& exponents) {
  const auto pairs = static_cast<Index>(exponents.size());
  Array angles({positions.count(), pairs});
  for (Index n = 0; n < angles.count(); ++n) {
    const double exponent = exponents[static_cast<std::size_t>(n % pairs)];
    // base^-e as exp(-e ln base): the exponent's rounding is multiplied by its size.
    angles[n] = positions[n / pairs] * exp(Number(-exponent, exponent) * log(Number(base)));
  }
  return angles;
}

std::vector<double> rotary_exponents(Index width) {
  std::vector<double> exponents;
  for (Index i = 0; i < width / 2; ++i) exponents.push_back(2 * static_cast<double>(i) / static_cast<double>(width));
  return exponents;
}

Array spread_angles(const Array& angles, bool interleaved) {
  const Index pairs = angles.size(1);
  Array columns({angles.size(0), 2 * pairs});
  for (Index n = 0; n < columns.count(); ++n) {
    const Index row = n / (2 * pairs), column = n % (2 * pairs);
    columns[n] = angles[row * pairs + (interleaved ? column / 2 : column % pairs)];
  }
  return columns;
}

Array partners(const Array& x, bool interleaved) {
  Array out = x;
  const Index width = x.size(-1), step = interleaved ? 1 : width / 2;
  for (Index n = 0; n < x.count(); ++n) {
    const Index column = n % width;
    const bool first = interleaved ? column % 2 == 0 : column < step;
    out[n] = first ? -x[n + step] : x[n - step];
  }
  return out;
}

Array turned(const Array& x, const Array& angles, bool interleaved) {
  return x * map(angles, cosine) + partners(x, interleaved) * map(angles, sine);
}

bool interleaved_pairs(const Work& work) { return work.at("interleaved")[0].value != 0; }

namespace {

void given_step(Work& work) {
  const Index width = work.probe.at("x").size(-1);
  if (width < 2 || width % 2 != 0 || !(work.probe.number("base") > 0)) {
    throw OptionError("[judge] a rope probe: an even width and metadata 'base' > 0: got " + std::to_string(width) + " and '" +
                      work.probe.text("base") + "'");
  }
  for (const char* name : {"x", "q", "k", "v", "positions"}) work[name] = work.probe.at(name);
  work["base"] = Array({1}, work.probe.number("base"));
}

/// The function on x and the one on q, k, v are written apart or together: each has stages of its own.
void given_again_step(Work& work) {
  work["positions"] = work.probe.at("positions");
  work["base"] = Array({1}, work.probe.number("base"));
}

void pairs_step(Work& work) { work["interleaved"] = Array({1}, 0); }

void angles_step(Work& work) {
  work["angles"] = rotary_angles(work.at("positions"), work.at("base")[0].value, rotary_exponents(work.at("x").size(-1)));
}

/// columns [T, d].
void spread_step(Work& work) { work["columns"] = spread_angles(work.at("angles"), interleaved_pairs(work)); }

void turn_step(Work& work) { work["turned"] = turned(work.at("x"), work.at("columns"), interleaved_pairs(work)); }

void turn_both_step(Work& work) {
  for (const char* name : {"q", "k"}) work[name] = turned(work.at(name), work.at("columns"), interleaved_pairs(work));
}

Textbook rope_textbook() {
  return {{"given", given_step},        {"pairs", pairs_step},       {"angles", angles_step},
          {"spread", spread_step},      {"turn", turn_step},         {"given q k", given_again_step},
          {"pairs q k", pairs_step},    {"angles q k", angles_step}, {"spread q k", spread_step},
          {"turn q k", turn_both_step}, {"scores", scores_step},     {"scale", scale_step},
          {"softmax", softmax_step},    {"mix", mix_step},           {"output", take_values_step}};
}

std::vector<Probe> rope_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const Index width = s.head_dim + s.head_dim % 2;
  const auto make = [&](std::string_view name, Index batch, const std::vector<double>& positions, double base,
                        double spread_of_q = 2) {
    const auto length = static_cast<Index>(positions.size());
    Probe probe = start_probe("rope", name, "forward", s);
    probe.metadata["base"] = std::to_string(static_cast<Index>(base));
    probe.inputs["positions"] = Array({length});
    for (Index t = 0; t < length; ++t) probe.inputs["positions"][t] = positions[static_cast<std::size_t>(t)];
    for (const char* array : {"x", "q", "k", "v"})
      probe.inputs[array] = draw.array({batch, s.heads, length, width}, array[0] == 'q' ? spread_of_q : 1);
    return probe;
  };
  std::vector<double> ascending, spread;
  for (Index t = 0; t < std::max<Index>(s.length, 5); ++t) {
    ascending.push_back(static_cast<double>(t));
    spread.push_back(static_cast<double>(t * t + 3));
  }
  std::vector<Probe> probes;
  probes.push_back(make("plain", s.batch, ascending, 10000));
  probes.push_back(make("positions with gaps", s.batch, spread, 10000));
  probes.push_back(make("another base", s.batch, spread, 500));
  probes.push_back(make("positions backwards", s.batch, {7, 4, 3, 0, 11}, 10000));
  probes.push_back(make("far positions", s.batch, {0, 40, 41, 97, 160, 161}, 10000));
  probes.push_back(make("large scores", s.batch, ascending, 10000, 1000));
  probes.push_back(make("one token", s.batch, {5}, 10000));
  probes.push_back(make("another batch", s.batch + 2, {2, 0, 1, 9}, 10000));
  return probes;
}

}  // namespace

Task rope_task() {
  return {
      .name = "rope",
      .title = "positions that turn",
      .teaches = "Pairs of numbers of queries and keys are turned by their position, so that their product knows the distance.",
      .article = "none",
      .functions = {"rope", "rope_attention"},
      .classes = {},
      .arguments = {{"x", "B H T d"}, {"positions", "T"}, {"q", "B H T d"}, {"k", "B H T d"}, {"v", "B H T d"}},
      .parts = {"rope", "scores", "softmax", "values"},
      .sizes = {.head_dim = 6},
      .textbook = rope_textbook(),
      .answers = {"out", "turned"},
      .probes = rope_probes};
}

}  // namespace qkv::judge

// Probes for a pencil: whole numbers of one digit, at the smallest sizes that the code can be given.
#include <algorithm>
#include <iterator>

#include "judge/probes/probes.h"

namespace qkv::judge {
namespace {

/// One number a column, so that a product picks features, and no two matrices pick the same. Of a block's inner width
/// two columns are used.
Array picking(std::string_view name, const Shape& shape) {
  struct Matrix {
    std::string_view letters;
    Index shift;
    double digits[3];
  };
  static constexpr Matrix kMatrices[] = {
      {"qu", 1, {1, -1, 1}}, {"kgd", 2, {1, 2, 1}}, {"v", 3, {2, 1, -1}}, {"o", 1, {-1, 1, 2}}};
  const std::string_view letters = name.substr(2);
  const Index rows = letters == "d" ? 2 : shape[0], part = shape[1] / std::ssize(letters);
  Array out(shape);
  for (Index c = 0; c < (letters == "u" || letters == "g" ? 2 : shape[1]); ++c) {
    const char letter = letters[static_cast<std::size_t>(c / part)];
    const Matrix& one = *std::ranges::find_if(
        kMatrices, [&](const Matrix& m) { return m.letters.find(letter) != std::string_view::npos; });
    out[(c + one.shift) % rows * shape[1] + c] = one.digits[c % part % 3];
  }
  return out;
}

Array digits(Draw& draw, std::string_view name, const Array& now) {
  if (name == "mask" || name == "positions" || name == "tokens") return now;
  if (name.size() > 2 && name.starts_with("W_") && now.rank() == 2) return picking(name, now.shape);
  Array out(now.shape);
  if (now.rank() == 1) {  // a gain of ones and a bias of zeros, but for one number
    out = Array(now.shape, name.starts_with("W_") ? 1 : 0);
    const Index most = name == "b_u" || name == "b_g" ? std::min<Index>(2, out.count()) : out.count(),
                at = draw.below(most);
    out[at] = out[at].value + 1;
    return out;
  }
  for (Number& x : out.data) x = static_cast<double>(draw.below(5)) - 2;
  return out;
}

}  // namespace

std::vector<Probe> small_probes(const Task& task, Sizes sizes) {
  if (!task.probe_lines.empty()) return {};
  Draw draw(0);
  const auto of_length = [&](Index length, const char* name) {
    sizes.batch = 1, sizes.length = length, sizes.memory = 3;
    Probe probe = task.probes(sizes, 0).front();
    probe.metadata["name"] = name;
    const auto cut_to = [&](std::string_view array, int axis, Index begin, Index rows) {
      probe.inputs.find(array)->second = slice(probe.at(array), axis, begin, begin + rows);
    };
    if (task.has("rope") && !task.has("cache")) {
      for (const char* array : {"x", "q", "k", "v"}) cut_to(array, 2, 1, length);
      cut_to("positions", 0, 1, length);
    }
    if (task.has("cache")) {
      probe.metadata["steps"] = "2,2,1";
      cut_to("x", 1, 0, 5);
    }
    if (task.has("lm")) {
      constexpr Index kTokens = 3;
      probe.metadata["steps"] = "1", probe.metadata["lr"] = "0.5";
      cut_to("embed", 0, 0, kTokens), cut_to("head", 1, 0, kTokens), cut_to("head_bias", 0, 0, kTokens);
      probe.inputs["tokens"].data = {1, 1, 2};
    }
    for (auto& [array, numbers] : probe.inputs) numbers = digits(draw, array, numbers);
    return probe;
  };
  std::vector<Probe> out = {of_length(task.has("layer") ? 3 : 2, "by hand")};
  if (task.has("backward")) {
    out.push_back(of_length(3, "causal by hand"));
    out.back().metadata["causal"] = "1";
  }
  if (!task.has("mask")) return out;
  Probe masked = of_length(3, "masked by hand");
  const Index keys = masked.at(masked.has("k") ? "k" : masked.has("memory") ? "memory" : "x").shape.rbegin()[1];
  Array mask({1, 3, keys}, 1);
  for (Index i = 0; i < 3; ++i) mask[i * keys + (i + 1) % keys] = 0;
  out.push_back(ProbeMaker{task, sizes, Draw(0)}.with_mask(std::move(masked), mask));
  return out;
}

}  // namespace qkv::judge

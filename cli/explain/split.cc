// q cut into heads in two ways, and what attention makes of each.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "explain/explain.h"

namespace qkv::cli {
namespace {

/// "I, I, like": the tokens whose numbers lie in each row of a head; a row that mixes tokens names them all.
std::string owners(const Array& token, Index head) {
  const Index rows = token.size(2), width = token.size(3);
  std::string text;
  for (Index i = 0; i < rows; ++i) {
    if (i > 0) text += ", ";
    for (Index n = 0; n < width; ++n) {
      const Index at = (head * rows + i) * width + n;
      if (n > 0 && token[at].value == token[at - 1].value) continue;
      text += (n > 0 ? "+" : "") + tokens()[static_cast<std::size_t>(token[at].value)];
    }
  }
  return text;
}

}  // namespace

Example compare_splits(const Example& layer) {
  Example result;
  judge::Arrays& a = result.arrays;
  const Array& joined = layer["q"];  // [1, L, E]
  const judge::Shape heads = layer["q_heads"].shape;
  Array offsets(joined.shape);
  for (Index n = 0; n < offsets.count(); ++n) offsets[n] = static_cast<double>(n);
  const double embed = static_cast<double>(joined.size(-1));
  const auto split = [&](const std::string& name, auto cut, auto join) {
    const Array at = cut(offsets);  // whose numbers lie where, in [L, E]
    a[name + ".token"] = map(at, [&](judge::Number x) { return judge::Number(std::floor(x.value / embed)); });
    a[name + ".feature"] = map(at, [&](judge::Number x) { return judge::Number(std::fmod(x.value, embed)); });
    a[name + ".q"] = cut(joined);
    a[name + ".weights"] =
        softmax(matmul(a[name + ".q"], transpose(cut(layer["k"]))) * judge::Number(1 / std::sqrt(2.0)));
    a[name + ".out"] = matmul(join(matmul(a[name + ".weights"], cut(layer["v"]))), transpose(layer["W_o"]));
  };
  split(
      "right", [&](const Array& x) { return judge::split_heads(x, heads[1]); }, judge::merge_heads);
  split(
      "wrong", [&](const Array& x) { return reshape(x, heads); },
      [&](const Array& x) { return reshape(x, joined.shape); });

  const Array &right = a["right.token"], &wrong = a["wrong.token"];
  double moved = 0;
  bool right_in_order = true, blue_in_head_0 = false;
  for (Index n = 0; n < right.count(); ++n) {
    const Index h = n / (heads[2] * heads[3]), i = n / heads[3] % heads[2];
    const double feature = a["right.feature"][n].value;
    right_in_order &=
        right[n].value == static_cast<double>(i) && feature == static_cast<double>(h * heads[3] + n % heads[3]);
    blue_in_head_0 |= h == 0 && wrong[n].value == static_cast<double>(heads[2] - 1);
    moved += right[n].value != wrong[n].value || feature != a["wrong.feature"][n].value;
  }
  a["moved"] = Array({1}, moved);
  const double apart = largest(a["right.out"] - a["wrong.out"]);
  const double sums = largest(map(sum(a["wrong.weights"], -1), [](judge::Number x) { return x - judge::Number(1); }));
  result.claims = {{"Split rightly, row i of every head holds token i, and head h its features h*d to h*d + d-1.",
                       right_in_order, "head 0: " + owners(right, 0) + "; head 1: " + owners(right, 1)},
      {"Split wrongly, head 0 never sees \"blue\": its rows hold " + owners(wrong, 0) + ".", !blue_in_head_0,
          fmt::format("{:.0f} of {} numbers lie elsewhere", moved, right.count())},
      {"Nothing complains: the shapes are the same and the wrong rows add up to 1 too, but the output is another.",
          a["right.weights"].shape == a["wrong.weights"].shape && apart > 0.1 && sums < 1e-14,
          fmt::format("outputs up to {:.2f} apart", apart)}};
  return result;
}

}  // namespace qkv::cli

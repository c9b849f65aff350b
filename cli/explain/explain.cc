#include "explain/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "forms/truth.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

Tensor<float> tensor_of(std::vector<Index> sizes, std::initializer_list<float> values) {
  Tensor<float> tensor(std::move(sizes));
  std::ranges::copy(values, tensor.data());
  return tensor;
}

/// Part 0, 1, 2 (q, k, v) of projected [1, L, 3E].
Tensor<float> part_of(const Tensor<float>& projected, Index part) {
  const Index length = projected.size(1), embed = projected.size(2) / 3;
  Tensor<float> copy({1, length, embed});
  for (Index i = 0; i < length; ++i) {
    std::copy_n(projected.data() + (3 * i + part) * embed, embed, copy.data() + i * embed);
  }
  return copy;
}

/// Largest |sum of a row - 1|.
template <class T>
double row_sum_error(const Tensor<T>& weights) {
  const Index width = weights.size(3);
  double worst = 0;
  for (Index row = 0; row < weights.count() / width; ++row) {
    double sum = 0;
    for (Index j = 0; j < width; ++j) sum += static_cast<double>(weights.data()[row * width + j]);
    worst = std::max(worst, std::abs(sum - 1));
  }
  return worst;
}

/// What rounding may do to a sum of n weights of type T.
template <class T>
double row_sum_bound(Index n) {
  return 4 * static_cast<double>(n) * static_cast<double>(std::numeric_limits<T>::epsilon());
}

template <class T>
Claim rows_sum_to_one(const Tensor<T>& weights) {
  const double error = row_sum_error(weights);
  return {"Every row of weights adds up to 1.", error <= row_sum_bound<T>(weights.size(3)),
          "largest distance from 1: " + small_text(error)};
}

void set_products(LayerWalk& walk) {
  const auto q = split_heads(View<const float, 3>(walk.q), walk.num_heads);  // [1, H, L, d]
  const auto k = split_heads(View<const float, 3>(walk.k), walk.num_heads);
  walk.products = Tensor<float>({1, walk.num_heads, q.size(2), q.size(2)});
  walk.scores = Tensor<float>(walk.products.sizes());
  const View<float, 4> products = walk.products, scores = walk.scores;
  const float scale = 1 / std::sqrt(static_cast<float>(q.size(3)));
  for (Index h = 0; h < q.size(1); ++h) {
    for (Index i = 0; i < q.size(2); ++i) {
      for (Index j = 0; j < q.size(2); ++j) {
        for (Index n = 0; n < q.size(3); ++n) products(0, h, i, j) += q(0, h, i, n) * k(0, h, j, n);
        scores(0, h, i, j) = scale * products(0, h, i, j);
      }
    }
  }
}

}  // namespace

StateDict parameters_of(const LayerWalk& walk) {
  StateDict state;
  state.add("query_proj.weight", any_tensor(walk.w_q));
  state.add("key_proj.weight", any_tensor(walk.w_k));
  state.add("value_proj.weight", any_tensor(walk.w_v));
  state.add("output_proj.weight", any_tensor(walk.w_o));
  return state;
}

LayerWalk walk_layer(Context& context) {
  LayerWalk walk;
  walk.tokens = {"I", "like", "blue"};
  walk.x = tensor_of({1, 3, 4}, {1, 0, 2, 1, 0, 1, 1, 0, 1, 2, 0, 2});
  walk.w_q = tensor_of({4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});    // q = x
  walk.w_k = tensor_of({4, 4}, {0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0});    // neighbours are exchanged
  walk.w_v = tensor_of({4, 4}, {1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1});    // neighbours are added
  walk.w_o = tensor_of({4, 4}, {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, -1, 0, 0, 1, 0, -1});  // the heads are mixed
  const StateDict parameters = parameters_of(walk);
  const auto layer = nn::load_layer("mha", parameters, {.num_heads = walk.num_heads});
  nn::Saved saved;
  walk.out = layer->forward(walk.x, {.weights = &walk.weights, .context = &context}, &saved);
  walk.q = part_of(saved.projected, 0);
  walk.k = part_of(saved.projected, 1);
  walk.v = part_of(saved.projected, 2);
  walk.merged = saved.attended.clone();
  set_products(walk);

  walk.claims.push_back(rows_sum_to_one(walk.weights));
  Tensor<float> rows = walk.x.clone();
  rows.reshape({3, 4});
  const Truth<double> truth = truth_of(rows, textbook(parameters, walk.num_heads, false), 1);
  const Distance apart = distance(walk.out, truth.exact, truth.bounds);
  walk.claims.push_back({"The layer gives what the same steps in plain loops give.", apart.over_bound <= 1,
                         small_text(apart.largest) + " apart"});
  return walk;
}

namespace {

/// q, k, v [1, L, E] cut by `cut`, attended, and joined again by the same cut.
template <class Cut>
HeadSplit split_and_attend(const LayerWalk& walk, Cut cut, Context& context) {
  HeadSplit split;
  const auto heads = [&](const Tensor<float>& x) { return cut(x.data(), x); };
  const View<const float, 4> q = heads(walk.q);  // [1, H, L, d]
  const Index embed = walk.q.size(2);
  split.token = Tensor<Index>({q.size(0), q.size(1), q.size(2), q.size(3)});
  split.feature = Tensor<Index>(split.token.sizes());
  split.q = Tensor<float>(split.token.sizes());
  const View<Index, 4> token = split.token, feature = split.feature;
  const View<float, 4> value = split.q;
  for (Index h = 0; h < q.size(1); ++h) {
    for (Index i = 0; i < q.size(2); ++i) {
      for (Index n = 0; n < q.size(3); ++n) {
        const Index offset = &q(0, h, i, n) - walk.q.data();  // in [L, E]
        token(0, h, i, n) = offset / embed;
        feature(0, h, i, n) = offset % embed;
        value(0, h, i, n) = q(0, h, i, n);
      }
    }
  }
  split.weights = Tensor<float>(walk.weights.sizes());
  attention_forward(q, heads(walk.k), {}, {.weights = split.weights}, {}, context);
  Tensor<float> merged(walk.merged.sizes());
  attention_forward(q, heads(walk.k), heads(walk.v), {.out = cut(merged.data(), merged)}, {}, context);
  const std::vector<float> w_o(walk.w_o.span().begin(), walk.w_o.span().end());
  merged.reshape({walk.q.size(1), embed});
  split.out = textbook_linear(merged, w_o, {}, kSame);
  split.out.reshape(walk.out.sizes());
  return split;
}

/// "I, I, like": the tokens whose numbers lie in each row of a head; a row that mixes tokens names them all.
std::string owners(const HeadSplit& split, const std::vector<std::string>& tokens, Index head) {
  const View<const Index, 4> token = split.token;
  std::string text;
  for (Index i = 0; i < token.size(2); ++i) {
    if (i > 0) text += ", ";
    for (Index n = 0; n < token.size(3); ++n) {
      if (n > 0 && token(0, head, i, n) == token(0, head, i, n - 1)) continue;
      text += (n > 0 ? "+" : "") + tokens[static_cast<std::size_t>(token(0, head, i, n))];
    }
  }
  return text;
}

std::string tokens_in_order(const std::vector<std::string>& tokens) { return fmt::format("{}", fmt::join(tokens, ", ")); }

}  // namespace

SplitComparison compare_splits(const LayerWalk& walk, Context& context) {
  SplitComparison result;
  const Index heads = walk.num_heads, length = walk.q.size(1), depth = walk.q.size(2) / heads;
  result.right = split_and_attend(
      walk,
      [&](auto* data, const auto& x) {
        return split_heads(View<std::remove_pointer_t<decltype(data)>, 3>(data, {1, x.size(1), x.size(2)}), heads);
      },
      context);
  result.wrong = split_and_attend(
      walk,
      [&](auto* data, const auto&) {
        return View<std::remove_pointer_t<decltype(data)>, 4>(data, {1, heads, length, depth});
      },
      context);
  bool right_in_place = true, blue_in_head_0 = false;
  const View<const Index, 4> right = result.right.token, wrong = result.wrong.token;
  const View<const Index, 4> right_feature = result.right.feature, wrong_feature = result.wrong.feature;
  for (Index h = 0; h < heads; ++h) {
    for (Index i = 0; i < length; ++i) {
      for (Index n = 0; n < depth; ++n) {
        right_in_place &= right(0, h, i, n) == i && right_feature(0, h, i, n) == h * depth + n;
        blue_in_head_0 |= h == 0 && wrong(0, h, i, n) == length - 1;
        result.moved += right(0, h, i, n) != wrong(0, h, i, n) || right_feature(0, h, i, n) != wrong_feature(0, h, i, n);
      }
    }
  }
  double apart = 0;
  for (Index n = 0; n < walk.out.count(); ++n) {
    apart = std::max(apart, static_cast<double>(std::abs(result.right.out.data()[n] - result.wrong.out.data()[n])));
  }
  result.claims = {
      {"Split rightly, row i of every head holds token i, and head h its features h*d to h*d + d-1.", right_in_place,
       "head 0: " + owners(result.right, walk.tokens, 0) + "; head 1: " + owners(result.right, walk.tokens, 1)},
      {"Split wrongly, head 0 never sees \"blue\": its rows hold " + owners(result.wrong, walk.tokens, 0) + ".",
       !blue_in_head_0 && owners(result.wrong, walk.tokens, 0) != tokens_in_order(walk.tokens),
       fmt::format("{} of {} numbers lie elsewhere", result.moved, walk.q.count())},
      {"Nothing complains: the shapes are the same and the wrong rows add up to 1 too, but the output is another.",
       result.right.weights.sizes() == result.wrong.weights.sizes() && apart > 0.1 &&
           row_sum_error(result.wrong.weights) <= row_sum_bound<float>(length),
       fmt::format("outputs up to {:.2f} apart", apart)}};
  return result;
}

}  // namespace qkv::cli

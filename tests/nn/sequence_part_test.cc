// A layer whose tokens are a part of their sequences: positions and dropout count in the whole, and attention is the
// part's.
#include <gtest/gtest.h>

#include "nn_support.h"
#include "qkv/nn/average.h"

namespace qkv {
namespace {

using test::random_tensor;

template <int kRank> void assign(const View<const float, kRank>& from, const View<float, kRank>& to) {
  for (Index n = 0; n < to.count(); ++n) {
    Index rest = n, read = 0, written = 0;
    for (int axis = kRank - 1; axis >= 0; rest /= to.size(axis--)) {
      read += rest % to.size(axis) * from.stride(axis), written += rest % to.size(axis) * to.stride(axis);
    }
    to.data()[written] = from.data()[read];
  }
}

/// Row i of the part is row order[i] of the whole, along an axis; `back`: the whole of a part.
template <int kRank>
Tensor<float> reordered(const View<const float, kRank>& x, int axis, const std::vector<Index>& order, bool back) {
  Tensor<float> made(std::vector<Index>(x.sizes().begin(), x.sizes().end()));
  const View<float, kRank> all = made;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto here = static_cast<Index>(i);
    const Index from = back ? here : order[i], to = back ? order[i] : here;
    assign<kRank>(x.sliced(axis, from, from + 1), all.sliced(axis, to, to + 1));
  }
  return made;
}

/// All tokens, in another order: what a rank would hold if it were alone.
nn::SequencePart shuffled(const std::vector<Index>& order) {
  const auto whole = [order]<int kRank>(const View<const float, kRank>& x) { return reordered(x, 2, order, true); };
  const auto give = [order]<int kRank>(const Tensor<float>& from, const View<float, kRank>& to) {
    assign<kRank>(reordered<kRank>(from, 2, order, false), to);
  };
  using Rows = View<const float, 4>;
  return {.positions = order,
      .forward =
          [=](Rows q, Rows k, Rows v, View<float, 4> out, View<float, 3> lse, const AttentionOptions& options) {
            Tensor<float> whole_out({out.size(0), out.size(1), out.size(2), out.size(3)}),
                whole_lse({lse.size(0), lse.size(1), lse.size(2)});
            attention_forward(whole(q), whole(k), whole(v), {.out = whole_out, .lse = whole_lse}, options);
            give(whole_out, out), give(whole_lse, lse);
          },
      .backward =
          [=](Rows q, Rows k, Rows v, Rows out, View<const float, 3> lse, Rows dout,
              const AttentionGradients<float>& gradients, const AttentionOptions& options) {
            Tensor<float> dq = whole(q), dk = whole(k), dv = whole(v);
            attention_backward(whole(q), whole(k), whole(v), whole(out), whole(lse), whole(dout),
                {.dq = dq, .dk = dk, .dv = dv}, options);
            give(dq, gradients.dq), give(dk, gradients.dk), give(dv, gradients.dv);
          }};
}

TEST(SequencePart, RowsAreThoseOfTheWhole) {
  nn::GroupedQueryAttention layer({.embed_dim = 24,
      .num_heads = 4,
      .num_kv_heads = 2,
      .bias = true,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{},
      .dropout = 0.3F,
      .residual_dropout = 0.2F,
      .causal = true});
  layer.train(true);
  const std::vector<Index> order{7, 8, 9, 0, 1, 2, 3, 4, 5, 6};
  nn::SequencePart part = shuffled(order);
  const Tensor<float> x = random_tensor({2, 10, 24}, 1), dy = random_tensor({2, 10, 24}, 2);
  for (const std::vector<Index>& cut : {std::vector<Index>{}, {1}}) {
    nn::Saved saved, part_saved;
    const Tensor<float> y = layer.forward(x, {.seed = 3, .first_sequence = 5, .cut = cut}, &saved),
                        dx = layer.backward(dy, saved);
    const auto mine = [&](const Tensor<float>& whole) { return reordered<3>(whole, 1, order, false); };
    nn::ForwardOptions options{.seed = 3, .first_sequence = 5, .cut = cut};
    options.part = &part;
    EXPECT_TRUE(test::same_bits(layer.forward(mine(x), options, &part_saved), mine(y)));
    EXPECT_TRUE(test::same_bits(layer.backward(mine(dy), part_saved), mine(dx)));
  }
}

TEST(SequencePart, RefusesWhatItCannotMean) {
  nn::MultiHeadAttention layer({.embed_dim = 8, .num_heads = 2});
  nn::SequencePart part = shuffled({1, 0, 2});
  nn::ForwardOptions options;
  options.part = &part;
  const Tensor<float> x = random_tensor({1, 3, 8}, 1), longer = random_tensor({1, 4, 8}, 1);
  EXPECT_THROW(layer.forward(longer, options), ShapeError);
  EXPECT_THROW(nn::AveragePooling(nn::LayerConfig{}).forward(x, options), UnsupportedError);
  Tensor<BFloat16> narrow({1, 3, 8});
  EXPECT_THROW(layer.forward(narrow, options), UnsupportedError);
  Tensor<float> weights;
  options.weights = &weights;
  EXPECT_THROW(layer.forward(x, options), UnsupportedError);
}

}  // namespace
}  // namespace qkv

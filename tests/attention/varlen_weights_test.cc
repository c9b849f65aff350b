// The weights of a ragged batch: bit-identical to those of each sequence alone, whichever algorithm its output takes, and none
// of the output's bits changed by asking. Not: the output and gradients (varlen_test.cc).
#include <gtest/gtest.h>

#include <cstring>

#include "qkv/qkv.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

constexpr Index kHeads = 4, kKvHeads = 2, kDim = 24, kValueDim = 40;
// Tiled, decode of one part and of several, without keys, without queries, short, and too long for exponentials to be kept.
constexpr std::pair<Index, Index> kLengths[] = {{70, 200}, {2, 90}, {3, 0}, {0, 4}, {5, 5}, {8, 2500}, {40, 9000}};

template <class T>
struct Batch {
  using Sum = Accumulator<T>;
  std::vector<Index> q_offsets{0}, kv_offsets{0};
  Tensor<T> q, k, v, out;    // [total, H, width]
  Tensor<Sum> lse, weights;  // [total_q, H]; all
  AttentionOptions options;

  Batch() {
    for (const auto& [q_len, kv_len] : kLengths) {
      q_offsets.push_back(q_offsets.back() + q_len);
      kv_offsets.push_back(kv_offsets.back() + kv_len);
    }
    Random random(31);
    const auto drawn = [&random](Index tokens, Index heads, Index width) {
      Tensor<T> made({tokens, heads, width});
      for (T& x : made.span()) x = static_cast<T>(static_cast<float>(2 * random.symmetric()));
      return made;
    };
    q = drawn(q_offsets.back(), kHeads, kDim);
    k = drawn(kv_offsets.back(), kKvHeads, kDim);
    v = drawn(kv_offsets.back(), kKvHeads, kValueDim);
    out = Tensor<T>({q.size(0), kHeads, kValueDim});
    lse = Tensor<Sum>({q.size(0), kHeads});
    weights = Tensor<Sum>({ragged_weights_count(offsets(), kHeads)});
    options.mask = Mask::causal(Align::kBottomRight) & (Mask::window(60, -1, Align::kBottomRight) | Mask::first(2));
  }
  RaggedOffsets offsets() const { return {q_offsets, kv_offsets}; }

  /// Sequence b of tokens as [1, heads, T, width].
  static View<const T, 4> alone(const Tensor<T>& tokens, const std::vector<Index>& its_offsets, std::size_t b) {
    const View<const T, 3> all = tokens.template view<3>();
    return {all.data() + its_offsets[b] * all.stride(0),
            {1, all.size(1), its_offsets[b + 1] - its_offsets[b], all.size(2)},
            {0, all.stride(1), all.stride(0), 1}};
  }
};

template <class T>
bool same(const View<const T, 4>& a, const View<const T, 4>& b) {
  if (a.sizes() != b.sizes()) return false;
  for (Index h = 0; h < a.size(1); ++h) {
    for (Index i = 0; i < a.size(2); ++i) {
      for (Index d = 0; d < a.size(3); ++d) {
        if (std::memcmp(&a(0, h, i, d), &b(0, h, i, d), sizeof(T)) != 0) return false;
      }
    }
  }
  return true;
}

template <class T>
class VarlenWeights : public testing::Test {};
TYPED_TEST_SUITE(VarlenWeights, StorageTypes);

TYPED_TEST(VarlenWeights, AreThoseOfEachSequenceAlone) {
  using Sum = Accumulator<TypeParam>;
  for_each_isa(3, [](Context& context) {
    for (const bool dropped : {false, true}) {
      for (const EmptyRow empty_row : {EmptyRow::kZero, EmptyRow::kMean}) {
        Batch<TypeParam> batch;
        AttentionOptions& options = batch.options;
        options.empty_row = empty_row;
        options.dropout = {.p = 0.3, .seed = 4, .training = dropped};
        const WeightsKind kind = dropped ? WeightsKind::kApplied : WeightsKind::kSoftmax;
        Tensor<Sum> only(batch.weights.sizes());
        Tensor<TypeParam> plain(batch.out.sizes());
        attention_varlen_forward(batch.q, batch.k, {}, {.weights = only, .kind = kind}, batch.offsets(), options, context);
        attention_varlen_forward(batch.q, batch.k, batch.v, {.out = plain}, batch.offsets(), options, context);
        attention_varlen_forward(batch.q, batch.k, batch.v,
                                 {.out = batch.out, .lse = batch.lse, .weights = batch.weights, .kind = kind}, batch.offsets(),
                                 options, context);
        EXPECT_EQ(std::memcmp(plain.data(), batch.out.data(), static_cast<std::size_t>(plain.count()) * sizeof(TypeParam)), 0);
        for (std::size_t b = 0; b < std::size(kLengths); ++b) {
          SCOPED_TRACE(testing::Message() << "sequence " << b << (dropped ? ", dropout" : ""));
          options.dropout.first_sequence = static_cast<Index>(b);
          const auto q = batch.alone(batch.q, batch.q_offsets, b), k = batch.alone(batch.k, batch.kv_offsets, b),
                     v = batch.alone(batch.v, batch.kv_offsets, b);
          Tensor<Sum> weights({1, kHeads, q.size(2), k.size(2)});
          Tensor<TypeParam> out({1, kHeads, q.size(2), kValueDim});
          const auto of_batch = [&](Tensor<Sum>& all) {
            const View<Sum, 3> own = ragged_weights(all.template view<1>(), batch.offsets(), kHeads, static_cast<Index>(b));
            return View<const Sum, 4>(own.data(), {1, own.size(0), own.size(1), own.size(2)});
          };
          attention_forward(q, k, {}, {.weights = weights, .kind = kind}, options, context);
          EXPECT_TRUE(same<Sum>(of_batch(only), weights)) << "weights alone";
          attention_forward(q, k, v, {.out = out, .weights = weights, .kind = kind}, options, context);
          EXPECT_TRUE(same<Sum>(of_batch(batch.weights), weights)) << "weights beside the output";
          EXPECT_TRUE(same<TypeParam>(batch.alone(batch.out, batch.q_offsets, b), out)) << "output";
        }
      }
    }
  });
}

TEST(VarlenWeightsCall, ChecksTheOutput) {
  Batch<float> batch;
  Tensor<float> small({batch.weights.count() - 1});
  EXPECT_THROW(attention_varlen_forward(batch.q, batch.k, {}, {.weights = small}, batch.offsets()), ShapeError);
  const View<float, 1> overlapping(batch.q.data(), {batch.weights.count()});
  EXPECT_THROW(attention_varlen_forward(batch.q, batch.k, {}, {.weights = overlapping}, batch.offsets()), ShapeError);
  const View<float, 1> apart(batch.weights.data(), {batch.weights.count()}, {2});
  EXPECT_THROW(attention_varlen_forward(batch.q, batch.k, {}, {.weights = apart}, batch.offsets()), ShapeError);
}

}  // namespace
}  // namespace qkv::test

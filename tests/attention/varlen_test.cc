// In a ragged batch every sequence is bit-identical to the same one alone: forward, weights beside it and backward, any
// mask, dropout, bias, type and number of threads. The sequences alone are held against the textbook elsewhere
// (cases_test.cc).
#include <gtest/gtest.h>

#include "support/cases/ragged.h"
#include "support/random.h"

namespace qkv::test {
namespace {

template <class T> class Varlen : public testing::Test {};
TYPED_TEST_SUITE(Varlen, StorageTypes);

TYPED_TEST(Varlen, SameBitsAsEachSequenceAlone) {
  for (const RaggedSetting& setting : ragged_settings()) check_ragged<TypeParam>(setting, {1, 5});
}

TEST(VarlenErrors, OffsetsAreChecked) {
  Tensor<float> q({4, 2, 8}), k({5, 1, 8}), v({5, 1, 8}), out({4, 2, 8});
  const std::vector<Index> good_q{0, 3, 4}, good_k{0, 3, 5};
  const auto error = [&](std::vector<Index> q_offsets, std::vector<Index> kv_offsets, AttentionOptions options = {}) {
    try {
      attention_varlen_forward(q, k, v, {.out = out}, {q_offsets, kv_offsets}, options);
    } catch (const Error& wrong) {
      return std::string(wrong.what());
    }
    return std::string();
  };
  EXPECT_EQ(error(good_q, good_k), "");
  EXPECT_EQ(error({}, {}),
      "[attention_varlen_forward] q_offsets must have one number more than there are sequences: got none");
  EXPECT_EQ(error({0, 4}, good_k),
      "[attention_varlen_forward] q_offsets and kv_offsets must have the same number of sequences: got 2 and 3 "
      "numbers");
  EXPECT_EQ(error({1, 3, 4}, good_k), "[attention_varlen_forward] q_offsets must start at 0: got 1");
  EXPECT_EQ(error(good_q, {0, 6, 5}), "[attention_varlen_forward] kv_offsets must not decrease: got 6, then 5 at 2");
  EXPECT_EQ(
      error({0, 3, 3}, good_k), "[attention_varlen_forward] q_offsets must end at the number of tokens: got 3 for 4");
  EXPECT_NE(error(good_q, good_k, {.mask = Mask::causal()}), "");  // the second sequence has Tq 1, Tk 2
  const Tensor<float> small({1, 2, 3, 2});
  EXPECT_EQ(error(good_q, good_k, {.bias = small}),
      "[attention_varlen_forward] bias must have sizes [B|1, H|1, longest Tq|1, longest Tk|1]: got [1, 2, 3, 2] for "
      "[2, 2, 3, 3]");
}

TEST(VarlenErrors, OutputsAreChecked) {
  Tensor<float> q({4, 2, 8}), k({5, 1, 8}), v({5, 1, 8}), out({4, 2, 8}), dk({5, 2, 8}), lse({4, 2});
  const std::vector<Index> q_offsets{0, 3, 4}, kv_offsets{0, 3, 5};
  EXPECT_THROW(attention_varlen_forward(q, k, v, {.out = v}, {q_offsets, kv_offsets}), ShapeError);
  EXPECT_THROW(attention_varlen_forward(q, k, v, {.out = q}, {q_offsets, kv_offsets}), ShapeError);
  EXPECT_THROW(attention_varlen_backward(q, k, v, out, lse, out, {.dk = dk}, {q_offsets, kv_offsets}), ShapeError);
}

TEST(VarlenErrors, WeightsAreChecked) {
  Ragged<float> batch(ragged_settings()[0]);
  const auto refused = [&](const View<float, 1>& weights) {
    EXPECT_THROW(
        attention_varlen_forward(batch.q.view, batch.k.view, {}, {.weights = weights}, batch.offsets()), ShapeError);
  };
  const Index count = batch.weights.count();
  refused(View<float, 1>(batch.weights.data(), {count - 1}));
  refused(View<float, 1>(batch.q.memory.data(), {count}));
  refused(View<float, 1>(batch.weights.data(), {count}, {2}));
}

/// Each sequence's list is checked against its own length.
TEST(Varlen, ListsOfKeysUpToEachLength) {
  const std::vector<Index> queries{0, 1, 2}, keys{0, 5, 15};
  const Tensor<float> q({2, 1, 8});
  Tensor<float> k({15, 1, 8}), out({2, 1, 8});
  for (Index n = 0; n < k.count(); ++n) k.data()[n] = static_cast<float>(n / 8);
  Tensor<std::int32_t> lists({2, 1, 1, 2});
  const auto run = [&](std::array<std::int32_t, 4> numbers) {
    std::ranges::copy(numbers, lists.data());
    attention_varlen_forward(q, k, k, {.out = out}, {queries, keys}, {.mask = Mask::keys(lists)});
  };
  run({0, 4, 1, 9});
  EXPECT_EQ(out.data()[0], 2);  // the mean of keys 0 and 4
  EXPECT_EQ(out.data()[8], 10);
  EXPECT_THROW(run({0, 5, 1, 9}), OptionError);
  EXPECT_THROW(run({0, 4, 1, 10}), OptionError);
}

TEST(VarlenErrors, NoSequences) {
  const Tensor<float> q({0, 2, 8}), k({0, 1, 8}), v({0, 1, 8});
  Tensor<float> out({0, 2, 8}), dq({0, 2, 8}), lse({0, 2}), dsinks({2});
  const Tensor<float> sinks({2});
  const std::vector<Index> none{0};
  EXPECT_NO_THROW(attention_varlen_forward(q, k, v, {.out = out}, {none, none}));
  EXPECT_EQ(attention_varlen_plan(q, k, v, {none, none}).algorithm, "none");
  std::ranges::fill(dsinks.span(), 7.0F);
  attention_varlen_backward(q, k, v, out, lse, out, {.dq = dq, .dsinks = dsinks}, {none, none}, {.sinks = sinks});
  for (const float x : dsinks.span()) EXPECT_EQ(x, 0) << "what is asked for is overwritten, by nothing";
}

/// cu_seqlens as FlashAttention takes them.
TEST(Varlen, OffsetsMayBeOfEitherWidth) {
  const std::vector<Index> q_wide{0, 3, 4, 4, 9}, k_wide{0, 3, 5, 6, 11};
  const std::vector<std::int32_t> q_narrow(q_wide.begin(), q_wide.end());
  const std::array<std::int32_t, 5> k_narrow{0, 3, 5, 6, 11};
  Random random(3);
  Tensor<float> q({9, 2, 8}), k({11, 1, 8}), v({11, 1, 8}), dout(q.sizes()), weights({2 * (9 + 2 + 25)});
  for (Tensor<float>* t : {&q, &k, &v, &dout}) {
    for (float& x : t->span()) x = static_cast<float>(random.symmetric());
  }
  const auto run = [&](const RaggedOffsets& offsets) {
    std::vector<Tensor<float>> results;
    for (const auto& sizes : {q.sizes(), std::vector<Index>{9, 2}, q.sizes(), k.sizes(), v.sizes(), weights.sizes()}) {
      results.emplace_back(sizes);
    }
    const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight)};
    EXPECT_EQ(ragged_weights_count(offsets, 2), weights.count());
    attention_varlen_forward(q, k, v, {.out = results[0], .lse = results[1]}, offsets, options);
    attention_varlen_backward(q, k, v, results[0], results[1], dout,
        {.dq = results[2], .dk = results[3], .dv = results[4]}, offsets, options);
    attention_varlen_forward(q, k, {}, {.weights = results[5]}, offsets, options);
    EXPECT_EQ(ragged_weights(View<float, 1>(results[5]), offsets, 2, 3).sizes(), (View<float, 3>::Sizes{2, 5, 5}));
    return results;
  };
  const auto wide = run({q_wide, k_wide}), narrow = run({q_narrow, k_narrow}), mixed = run({q_narrow, k_wide});
  for (std::size_t n = 0; n < wide.size(); ++n) {
    EXPECT_TRUE(same_bits(narrow[n], wide[n])) << n;
    EXPECT_TRUE(same_bits(mixed[n], wide[n])) << n;
  }
  const Mask inside = Mask::causal(Align::kBottomRight);
  EXPECT_EQ(Mask::documents(q_narrow, k_narrow, inside).describe(), Mask::documents(q_wide, k_wide, inside).describe());
  Tensor<std::uint8_t> a({1, 1, 9, 11}), b(a.sizes());
  mask_to_dense(Mask::documents(q_narrow, k_narrow, inside), a);
  mask_to_dense(Mask::documents(q_wide, k_wide, inside), b);
  EXPECT_TRUE(same_bits(a, b));
}

}  // namespace
}  // namespace qkv::test

// Keys in chunks over ranks, by ring and all-gather: many chunks, rows that need none, rows that meet their keys
// twice.
#include "cut_sequence.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T> class InChunks : public testing::Test {};
TYPED_TEST_SUITE(InChunks, StorageTypes);

// Keys of 128 and more numbers: a chunk is 64 to 128 of them, so that chunks have several owners and masks skip some.
// Logits whose exponentials overflow meet all keys twice.
TYPED_TEST(InChunks, OfManyOwners) {
  Worst worst;
  std::vector<AttentionCase> cases;
  for (const MaskKind mask : {MaskKind::kCausalBottomRight, MaskKind::kCausalBottomRight, MaskKind::kDocuments,
           MaskKind::kWindow, MaskKind::kNone}) {
    cases.push_back({1, 4, 2, mask == MaskKind::kDocuments ? 390 : 205, 390, 128, 136, mask});
    cases.back().dropout = 0.1, cases.back().sinks = SinkKind::kSome;
  }
  cases[0].fill = Fill::kHugeLogits;
  for (const AttentionCase& each : part_for<TypeParam>(cases, sizeof(TypeParam) == 2 ? 1 : 2)) {
    expect_cut_is_whole<TypeParam>(each,
        {{.layout = kContiguous, .method = Method::kRing, .chunk = 1},
            {.layout = kZigZag, .method = Method::kRing, .turns = 2, .chunk = 300},
            {.layout = kContiguous, .method = Method::kAllGather, .chunk = 1},
            {.layout = kZigZag, .method = Method::kAllGather, .turns = 2, .chunk = 300}},
        {2, 4}, tested_isas().back(), worst);
  }
  EXPECT_GT(worst.compared(), 100);
}

// Rank 0 of the two needs no key: nothing is sent to it, and its rows are written all the same. And no rank has a key.
TYPED_TEST(InChunks, RowsWithoutKeys) {
  using Sum = Accumulator<TypeParam>;
  for (const Index keys : {Index{256}, Index{0}}) {
    for (const Index block : {Index{32}, Index{1}}) {
      for (const auto& [method, chunk] :
          {std::pair(Method::kRing, 1), {Method::kAllGather, 1}, {Method::kAllGather, 0}}) {
        dist::run_in_process(2, [&](Transport& transport) {
          Context context({.threads = 1, .executor = nullptr});
          ContextParallel cp(transport, {.method = method, .block = block, .chunk = chunk}, context);
          const auto count = [](const std::vector<Rows>& rows) { return rows.empty() ? 0 : rows[0].count(); };
          const Index mine = count(cp.rows(256)), my_keys = count(cp.rows(keys));
          Tensor<TypeParam> q({2, 2, mine, 16}), k({2, 2, my_keys, 16}), out(q.sizes());
          Tensor<Sum> lse({2, 2, mine});
          std::ranges::fill(k.span(), static_cast<TypeParam>(1.0F));
          for (TypeParam& x : out.span()) x = static_cast<TypeParam>(std::nanf(""));
          std::ranges::fill(lse.span(), std::numeric_limits<Sum>::quiet_NaN());
          cp.forward(q, k, k, out, lse, {.mask = Mask::causal(std::vector<Index>(2, -128))});
          // Queries 128 and on attend key 0 at least.
          const std::vector<Rows> rows = cp.rows(256);
          constexpr Sum eps = std::numeric_limits<Sum>::epsilon();
          const bool attends = keys > 0 && !rows.empty() && rows[0].begin >= 128;
          for (const TypeParam x : out.span()) EXPECT_NEAR(static_cast<Sum>(x), attends ? 1 : 0, attends ? 2 * eps : 0);
          for (const Sum x : lse.span()) EXPECT_EQ(std::isinf(x) && x < 0, !attends) << x;
        });
      }
    }
  }
}

// Weights of 2^16 times values of 1e35 overflow in the rows of one rank alone: all ranks pass the keys on a second
// time.
TEST(InChunksTwice, RowsThatOverflow) {
  constexpr Index length = 390, half = 196, width = 128;
  Tensor<float> q({1, 2, length, width}), k({1, 1, length, width}), v(k.sizes()), out(q.sizes()), lse({1, 2, length});
  std::ranges::fill(k.span(), 1.0F);
  std::ranges::fill(v.span(), 1e35F);
  std::fill_n(q.data() + half * width, (length - half) * width, 1.0F);  // of the first head
  Context context({.threads = 1, .executor = nullptr});
  attention_forward(q, k, v, {.out = out, .lse = lse}, {}, context);
  std::mutex comparing;  // same_bits notes what it compares
  const auto run = [&](Transport& transport, Method method) {
    Context own({.threads = 1, .executor = nullptr});
    ContextParallel cp(transport, {.method = method, .block = half, .chunk = 1}, own);
    const auto rows = cp.rows(length);
    const Tensor<float> my_q = local_of(View<const float, 4>(q), rows), my_k = local_of(View<const float, 4>(k), rows),
                        my_v = local_of(View<const float, 4>(v), rows);
    Tensor<float> my_out(my_q.sizes()), my_lse({1, 2, my_q.size(2)});
    cp.forward(my_q, my_k, my_v, my_out, my_lse, {});
    const std::lock_guard lock(comparing);
    EXPECT_TRUE(same_bits(my_out, local_of(View<const float, 4>(out), rows)));
    EXPECT_TRUE(std::ranges::all_of(my_out.span(), [](float x) { return std::isfinite(x); }));
  };
  for (const Method method : {Method::kRing, Method::kAllGather})
    dist::run_in_process(2, [&](Transport& transport) { run(transport, method); });
}

}  // namespace
}  // namespace qkv::test

// Few queries against many keys: against the oracle across the borders of chunks and parts, bit-identical across
// lengths and types, and what the plan says of it. The pairwise list (cases_test.cc) is decoded too where its shapes
// are such.
#include <gtest/gtest.h>

#include "attention/plan/choose.h"
#include "support/cases/cached_case.h"
#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class Decode : public testing::Test {};
TYPED_TEST_SUITE(Decode, FloatTypes);

/// Lengths around the borders of chunks (64 to 256 keys) and parts (four chunks), widths around those of vectors.
std::vector<AttentionCase> border_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](Index group, Index q_len, Index kv_len, Index head_dim, Index v_head_dim) -> AttentionCase& {
    cases.push_back(cached_case(group, q_len, kv_len, head_dim, v_head_dim));
    return cases.back();
  };
  for (const Index kv_len : {64, 65, 127, 192, 255, 256, 257, 320, 511, 1023, 1024, 1025, 1281, 2050})
    add(4, 1, kv_len, 20, 20);
  for (const Index width : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 40, 59, 64, 80, 111, 128, 130})
    add(2, 1, 300, width, width);
  for (Index q_len = 1; q_len <= 8; ++q_len) {
    for (const Index group : {1, 2, 4, 8}) {
      if (q_len * group <= 16) add(group, q_len, 333, 24, 24).layout = Layout::kBthd;
    }
  }
  add(3, 5, 700, 17, 40).layout = Layout::kPaddedRows;
  add(1, 1, 5000, 64, 64).layout = Layout::kMisaligned;
  add(4, 1, 5000, 40, 8);
  add(1, 13, 600, 8, 111);
  add(4, 4, 1100, 33, 64).fill = Fill::kHugeLogits;
  add(4, 2, 1100, 33, 64).fill = Fill::kOneHot;
  add(1, 3, 150, 728, 728);
  add(2, 2, 150, 1024, 1);
  return cases;
}

std::vector<AttentionCase> masked_cases() {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1;
  for (std::size_t kind = 1; kind < kMaskNames.size(); ++kind) {
    for (const Fill fill : {Fill::kUniform, Fill::kNanBehindMask}) {
      AttentionCase made = cached_case(2, 3, 1100, 9, 20, static_cast<MaskKind>(kind));
      made.batch = 2;
      made.fill = fill;
      made.empty_row = static_cast<EmptyRow>(seed % 3);
      made.bias = static_cast<BiasKind>(seed % kBiasNames.size());
      made.softcap = seed % 4 == 0 ? 5 : 0;
      made.dropout = seed % 5 == 0 ? 0.3 : 0;
      made.seed = seed++;
      if (made.legal()) cases.push_back(made);
    }
  }
  return cases;
}

template <class T> void expect_within_bounds(const std::vector<AttentionCase>& cases, const char* title) {
  Worst worst;
  for (const AttentionCase& each : cases) {
    SCOPED_TRACE(each.name());
    const Problem<T> problem(each);
    const Expectation<T> expectation(problem, false);
    for_each_isa(2, [&](Context& context) {
      const std::string algorithm =
          attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm;
      ASSERT_TRUE(algorithm == "decode" || (algorithm == "lists" && mask_name(each.mask).starts_with("keys")))
          << algorithm;
      Result<T> result(problem);
      result.run_forward(problem, context);
      EXPECT_TRUE(expectation.holds_forward(result, each.name() + " " + std::string(isa_name(context.isa())), worst));
      EXPECT_TRUE(result.sentinels_intact()) << "an element outside the outputs was written";
    });
  }
  worst.print(title);
}

TEST(DecodeCases, BordersF32) { expect_within_bounds<float>(border_cases(), "decode borders f32"); }
TEST(DecodeCases, BordersF64) { expect_within_bounds<double>(border_cases(), "decode borders f64"); }
TEST(DecodeCases, MasksF32) { expect_within_bounds<float>(masked_cases(), "decode masks f32"); }
TEST(DecodeCases, MasksF64) { expect_within_bounds<double>(masked_cases(), "decode masks f64"); }

/// A cache with room to spare is bit-identical to one without: what lies behind the length enters no sum and no order
/// of sums.
TYPED_TEST(Decode, RoomBehindTheLengthChangesNoBits) {
  using T = TypeParam;
  for (const Index length : {64, 65, 100, 255, 256, 300, 700, 1024, 1500}) {
    SCOPED_TRACE(length);
    Problem<T> problem(cached_case(4, 1, 2100, 20, 36));
    const Problem<T>& read = problem;
    for_each_isa(3, [&](Context& context) {
      problem.options.mask = Mask::key_lengths(std::span<const Index>(&length, 1));
      Result<T> roomy(problem), exact(problem);
      roomy.run_forward(read, context);
      attention_forward(read.q(), read.k().sliced(2, 0, length), read.v().sliced(2, 0, length),
          {.out = exact.out.view, .lse = exact.lse}, {}, context);
      EXPECT_TRUE(same_bits(copy_as<T>(roomy.out.view), copy_as<T>(exact.out.view)));
      EXPECT_TRUE(same_bits(roomy.lse, exact.lse));
    });
  }
}

/// Rows of 16 bits are widened exactly and summed as floats are, so out is the float result rounded once.
template <class Half> void expect_rounded_floats(Index head_dim) {
  for (const Index q_len : {1, 3, 8}) {
    const Problem<float> problem(cached_case(1, q_len, 1100, head_dim, 33, MaskKind::kCausalBottomRight));
    const auto rounded = [](const View<float, 4>& from) {
      for_each_index({from.size(1), from.size(2), from.size(3)},
          [&](Index h, Index t, Index d) { from(0, h, t, d) = static_cast<float>(Half(from(0, h, t, d))); });
      return copy_as<Half>(from);
    };
    const Tensor<Half> q = rounded(problem.q()), k = rounded(problem.k()), v = rounded(problem.v());
    for_each_isa(2, [&](Context& context) {
      ASSERT_EQ(attention_plan(q, k, v, problem.options, context).algorithm, "decode");
      Result<float> wide(problem);
      wide.run_forward(problem, context);
      Tensor<Half> out({1, 2, q_len, 33});
      Tensor<float> lse({1, 2, q_len});
      attention_forward(q, k, v, {.out = out, .lse = lse}, problem.options, context);
      EXPECT_TRUE(same_bits(out, copy_as<Half>(wide.out.view)));
      EXPECT_TRUE(same_bits(lse, wide.lse));
    });
  }
}
TEST(DecodeHalf, IsTheFloatResultRounded) {
  expect_rounded_floats<BFloat16>(
      7);  // two vectors of a longer row of bf16 are summed as numbers of even and of odd index
  expect_rounded_floats<Float16>(40);
}

TEST(DecodePlan, SaysWhyByShapeAlone) {
  const auto plan_of = [](Index heads, Index kv_heads, Index q_len, Index kv_len, int threads) {
    const Tensor<float> q({2, heads, q_len, 16}), k({2, kv_heads, kv_len, 16});
    Context context({.threads = threads});
    return attention_plan(q, k, k, {}, context);
  };
  const auto reason = [](const AttentionPlan& plan, const std::string& begin) {
    for (const std::string& each : plan.skipped) {
      if (each.starts_with(begin)) return each;
    }
    return std::string();
  };
  for (const int threads : {1, 4}) {
    const AttentionPlan decode = plan_of(8, 2, 4, 5000, threads);
    EXPECT_EQ(decode.algorithm, "decode");
    EXPECT_EQ(reason(decode, "tiled: "),
        "tiled: reads K and V once for each query head; here are 16 queries (Tq * H/Hkv) to a key/value head, decode "
        "takes 16");
    EXPECT_EQ(decode.work_items % 4, 0) << "2 sequences, 2 key/value heads, parts of the keys";
    EXPECT_GT(decode.work_items, 4);
    EXPECT_EQ(decode.forward_flops, 2.0 * (16 + 16) * 2 * 8 * 4 * 5000);
    const AttentionPlan many = plan_of(8, 2, 5, 5000, threads);
    EXPECT_EQ(many.algorithm, "tiled");
    EXPECT_EQ(reason(many, "decode: "), "decode: 20 queries (Tq * H/Hkv) to a key/value head, more than 16");
    const AttentionPlan few = plan_of(8, 2, 1, kDecodeMinKeys - 1, threads);
    EXPECT_EQ(few.algorithm, "tiled");
    EXPECT_EQ(reason(few, "decode: "), "decode: 63 keys, less than 64");
  }
}

TEST(DecodePlan, MemoryDoesNotGrowWithTheKeys) {
  const auto bytes = [](Index kv_len) {
    const Tensor<float> q({1, 16, 1, 128}), k({1, 1, kv_len, 128});
    Tensor<float> out(q.sizes()), lse({1, 16, 1});
    Context context({.threads = 2});
    attention_forward(q, k, k, {.out = out, .lse = lse}, {}, context);
    EXPECT_LE(attention_plan(q, k, k, {}, context).forward_scratch_bytes, std::size_t{2} << 20);
    return context.scratch_bytes();
  };
  EXPECT_EQ(bytes(2000), bytes(20000));
}

}  // namespace
}  // namespace qkv::test

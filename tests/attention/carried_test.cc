// Keys that arrive in chunks, each as tensors of its own: out, lse and dq have the bits of one call on all keys.
#include <gtest/gtest.h>

#include "attention/backward/carried_backward.h"
#include "attention/forward/carried_forward.h"
#include "support/cases/listed_case.h"
#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T>
class CarriedKeys : public testing::Test {};
TYPED_TEST_SUITE(CarriedKeys, StorageTypes);

template <class E>
Tensor<E> copy_of(const View<const E, 4>& x) {
  Tensor<E> copy({x.size(0), x.size(1), x.size(2), x.size(3)});
  E* to = copy.data();
  for (Index b = 0; b < x.size(0); ++b) {
    for (Index h = 0; h < x.size(1); ++h) {
      for (Index i = 0; i < x.size(2); ++i, to += x.size(3)) std::copy_n(&x(b, h, i, 0), x.size(3), to);
    }
  }
  return copy;
}

/// The same numbers; zeros of either sign, any NaN.
template <class E>
bool equal_numbers(const Tensor<E>& a, const Tensor<E>& b) {
  return std::ranges::equal(a.span(), b.span(), [](const E& x, const E& y) {
    const auto p = number_as<double>(x), q = number_as<double>(y);
    return p == q || (std::isnan(p) && std::isnan(q));
  });
}

/// body(chunk) for the keys of a problem, `step` at a time; at least once.
template <class T, class Body>
void each_chunk(const Problem<T>& problem, Index step, const Body& body) {
  const Index length = problem.c.kv_len;
  Index begin = 0;
  do {
    const Index end = std::min(begin + step, length);
    const Tensor<T> k = copy_of<T>(problem.k().sliced(2, begin, end)), v = copy_of<T>(problem.v().sliced(2, begin, end));
    body(KeyChunk<T>{k, v, begin});
    begin = end;
  } while (begin < length);
}

/// Queries [begin, end) of the problem, and its keys in chunks.
template <class T>
void expect_part(const Problem<T>& problem, const Result<T>& whole, Index begin, Index end, Context& context) {
  using Sum = Accumulator<T>;
  const AttentionCase& c = problem.c;
  const KeySizes keys{c.num_kv_heads, c.kv_len, c.v_head_dim};
  const auto rows = [&](const auto& x) { return x.sliced(2, begin, end); };
  AttentionOptions options = problem.options;
  options.place = {begin, c.q_len, 0, c.num_heads};
  const View<const T, 4> q = rows(problem.q());
  const Index step = carried_step<T>(c.head_dim, c.v_head_dim, options, context);
  const View<const T, 4> its_out = rows(View<const T, 4>(whole.out.view));
  const View<const Sum, 3> its_lse = rows(View<const Sum, 3>(whole.lse));
  if (carries_forward(q, keys, c.q_len, options, context)) {
    Tensor<T> out({c.batch, c.num_heads, end - begin, c.v_head_dim});
    Tensor<Sum> lse({c.batch, c.num_heads, end - begin});
    CarriedForward<T> forward(q, keys, out, lse, options, context);
    const auto add_all = [&] { each_chunk(problem, step, [&](const KeyChunk<T>& chunk) { forward.add(chunk); }); };
    add_all();
    if (forward.finish()) {
      add_all();
      EXPECT_FALSE(forward.finish());
    }
    EXPECT_TRUE(same_bits(out, copy_of<T>(its_out))) << "out";
    const View<const Sum, 4> wide(its_lse.data(), {c.batch, c.num_heads, end - begin, 1},
                                  {its_lse.stride(0), its_lse.stride(1), its_lse.stride(2), 1});
    Tensor<Sum> lse_of_whole = copy_of<Sum>(wide);
    lse_of_whole.reshape({c.batch, c.num_heads, end - begin});
    EXPECT_TRUE(same_bits(lse, lse_of_whole)) << "lse";
  }
  if (!carries_backward(q, keys, c.q_len, options, context)) return;
  Tensor<T> dq({c.batch, c.num_heads, end - begin, c.head_dim});
  AttentionGradients<T> wanted;
  wanted.dq = dq;
  wanted.dlse = rows(View<const Sum, 3>(problem.dlse));
  CarriedBackward<T> backward(q, keys, {its_out, its_lse, rows(View<const T, 4>(problem.dout.view))}, wanted, options, context);
  if (lse_is_coarse(its_lse)) {
    each_chunk(problem, step, [&](const KeyChunk<T>& chunk) { backward.add_maxima(chunk); });
    backward.end_maxima();
  }
  each_chunk(problem, step, [&](const KeyChunk<T>& chunk) {
    const Index count = chunk.k.size(2);
    Tensor<Sum> dk({c.batch, c.num_kv_heads, count, c.head_dim}), dv({c.batch, c.num_kv_heads, count, c.v_head_dim});
    backward.add(chunk, dk, dv, {});
    if (begin > 0 || end < c.q_len || c.num_heads == 0) return;  // sums over all queries are those of one machine
    const auto rounded = [](const Tensor<Sum>& sums) {
      Tensor<T> x(sums.sizes());
      for (Index n = 0; n < x.count(); ++n) x.data()[n] = static_cast<T>(sums.data()[n]);
      return x;
    };
    const auto theirs = [&](int n) {
      return copy_of<T>(View<const T, 4>(whole.gradients.views[n]).sliced(2, chunk.begin, chunk.end()));
    };
    EXPECT_TRUE(equal_numbers(rounded(dk), theirs(1))) << "dk";
    EXPECT_TRUE(equal_numbers(rounded(dv), theirs(2))) << "dv";
  });
  const Tensor<T> its_dq = copy_of<T>(rows(View<const T, 4>(whole.gradients.views[0])));
  if (c.scale == ScaleKind::kZero) {  // of either sign
    EXPECT_TRUE(equal_numbers(dq, its_dq)) << "dq";
  } else {
    EXPECT_TRUE(same_bits(dq, its_dq)) << "dq";
  }
}

template <class T>
void expect_carried(const Problem<T>& problem, Isa isa) {
  const AttentionCase& each = problem.c;
  SCOPED_TRACE(each.name());
  Context context({.threads = 2, .isa = isa, .executor = nullptr});
  Result<T> whole(problem);
  whole.run_forward(problem, context);
  whole.run_backward(problem, context);
  const Index third = each.q_len / 3, strip = each.q_len / 2 / 32 * 32;
  expect_part(problem, whole, 0, each.q_len, context);
  expect_part(problem, whole, third, each.q_len, context);
  expect_part(problem, whole, 0, strip, context);
}

TYPED_TEST(CarriedKeys, HaveTheBitsOfAllKeysInEveryCase) {
  std::vector<AttentionCase> without_cache = pairwise_cases();
  std::erase_if(without_cache, [](const AttentionCase& each) { return each.cache != CacheKind::kNone; });
  const std::vector<AttentionCase> cases = part_for<TypeParam>(without_cache, 10);
  EXPECT_GT(cases.size(), 10);
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(isa_name(isa));
    for (const AttentionCase& each : cases) expect_carried(Problem<TypeParam>(each), isa);
  }
}

// Many chunks; exponentials that overflow, whose rows meet all keys twice; an lse that was rounded.
TYPED_TEST(CarriedKeys, HaveTheBitsOfAllKeysInManyChunks) {
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(isa_name(isa));
    for (const MaskKind mask : {MaskKind::kCausalBottomRight, MaskKind::kWindow, MaskKind::kDocuments, MaskKind::kNone}) {
      for (const Fill fill : {Fill::kUniform, Fill::kHugeLogits}) {
        expect_carried(Problem<TypeParam>({.batch = 1,
                                           .num_heads = 4,
                                           .num_kv_heads = 2,
                                           .q_len = mask == MaskKind::kDocuments ? 520 : 130,
                                           .kv_len = 520,
                                           .head_dim = 128,
                                           .v_head_dim = 16,
                                           .mask = mask,
                                           .dropout = 0.1,
                                           .fill = fill}),
                       isa);
      }
    }
  }
}

// What the whole reads by lists is not carried; some rows of it are decided for as all of them.
TYPED_TEST(CarriedKeys, AreNotThoseOfListsThatAreReadAlone) {
  using T = TypeParam;
  std::vector<ListShape> shapes = kListShapes;
  shapes.push_back({1, 2, 2, 40, 128, 16, 16, 1, 50});
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Context context({.threads = 2, .isa = isa, .executor = nullptr});
    int carried_forward = 0, carried_backward = 0, carried_neither = 0;
    for (const ListShape& s : shapes) {
      const ListedProblem<T> problem(s, s.as_case());
      const View<const T, 4> q = problem.q().sliced(2, s.q_len / 2, s.q_len);
      const KeySizes keys{s.num_kv_heads, s.kv_len, s.v_head_dim};
      const bool forward = carries_forward(q, keys, s.q_len, problem.options, context),
                 backward = carries_backward(q, keys, s.q_len, problem.options, context);
      EXPECT_EQ(forward, attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm == "tiled");
      EXPECT_TRUE(backward || !forward);
      carried_forward += forward ? 1 : 0;
      carried_backward += backward ? 1 : 0;
      carried_neither += forward || backward ? 0 : 1;
      expect_carried(problem, isa);
    }
    EXPECT_GT(carried_forward, 0);
    EXPECT_GT(carried_backward, carried_forward);
    EXPECT_GT(carried_neither, 0);
  }
}

}  // namespace
}  // namespace qkv::test

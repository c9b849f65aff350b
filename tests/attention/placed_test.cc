// A part of a larger problem (AttentionOptions::place): rows and heads computed alone have the bits of the whole call, and their
// shares of gradients sum up to it.
#include <gtest/gtest.h>

#include "qkv/varlen.h"
#include "support/checks/expect.h"
#include "support/errors.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T>
class PlacedPart : public testing::Test {};
using PlacedTypes = StorageTypes;
TYPED_TEST_SUITE(PlacedPart, PlacedTypes);

/// Refused with a place: such calls go by the lists, which a part would not.
bool lists_keys(const AttentionCase& each) {
  return Problem<float>(each).options.mask.describe().find("keys[") != std::string::npos;
}

/// Cases without a cache and lists of keys, every `step`-th, and some whose rows lie in many strips.
std::vector<AttentionCase> placed_cases(std::size_t step) {
  std::vector<AttentionCase> some;
  const std::vector<AttentionCase> all = pairwise_cases();
  for (std::size_t n = 0; n < all.size(); n += step) {
    if (all[n].cache == CacheKind::kNone && !lists_keys(all[n])) some.push_back(all[n]);
  }
  for (const MaskKind mask : {MaskKind::kCausalBottomRight, MaskKind::kWindow, MaskKind::kNone}) {
    some.push_back({.batch = 2,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .q_len = 333,
                    .kv_len = 600,
                    .head_dim = 24,
                    .v_head_dim = 20,
                    .mask = mask,
                    .bias = BiasKind::kHeads,
                    .dropout = 0.1});
  }
  return some;
}

/// Where rows are cut: at strips of any instruction set, and anywhere.
std::vector<Index> cuts_of(Index length, bool anywhere) {
  std::vector<Index> cuts{0};
  for (const Index part : {1, 2}) {
    const Index at = length * part / 3, cut = anywhere ? at : at / 32 * 32;
    if (cut > cuts.back()) cuts.push_back(cut);
  }
  cuts.push_back(length);
  return cuts;
}

template <class E>
void add_to(Tensor<E>& sum, const Tensor<E>& part) {
  for (std::size_t n = 0; n < sum.span().size(); ++n) sum.span()[n] += part.span()[n];
}

/// Gradients of a part that are summed over all parts.
template <class T>
struct Shares {
  using Sum = Accumulator<T>;
  Tensor<Sum> dk, dv, dbias, dsinks, dposition;

  explicit Shares(const Problem<T>& problem, Index kv_heads)
      : dk({problem.c.batch, kv_heads, problem.c.kv_len, problem.c.head_dim}),
        dv({problem.c.batch, kv_heads, problem.c.kv_len, problem.c.v_head_dim}) {
    Result<T> zeros(problem);
    for (const auto& [mine, tensor] :
         {std::pair(&dbias, &zeros.dbias), {&dsinks, &zeros.dsinks}, {&dposition, &zeros.dposition}}) {
      if (tensor->data() != nullptr) *mine = Tensor<Sum>(tensor->sizes());
    }
  }
  void ask(const Problem<T>& problem, AttentionGradients<T>& wanted) {
    wanted.dk_sums = dk;
    wanted.dv_sums = dv;
    if (!problem.bias.is_null()) wanted.dbias = dbias;
    if (dsinks.data() != nullptr) wanted.dsinks = dsinks;
    if (dposition.data() != nullptr) wanted.dposition_bias = dposition;
  }
};

/// What a part gives beside shares, as copies.
template <class T>
struct Part {
  using Sum = Accumulator<T>;
  Tensor<T> out, dq;
  Tensor<Sum> lse, weights;
  bool scale_is_zero;

  /// Rows [begin, end) and heads [head, head + heads) of the problem, whose out and lse are in `whole`.
  Part(const Problem<T>& problem, const Result<T>& whole, Index begin, Index end, Index head, Index heads, Shares<T>& shares,
       Context& context)
      : out({problem.c.batch, heads, end - begin, problem.c.v_head_dim}),
        dq({problem.c.batch, heads, end - begin, problem.c.head_dim}),
        lse({problem.c.batch, heads, end - begin}),
        weights({problem.c.batch, heads, end - begin, problem.c.kv_len}),
        scale_is_zero(problem.c.scale == ScaleKind::kZero) {
    const Index group = problem.c.num_heads / problem.c.num_kv_heads;
    const auto of_queries = [&](const auto& view) { return view.sliced(2, begin, end).sliced(1, head, head + heads); };
    const auto of_keys = [&](const auto& view) { return view.sliced(1, head / group, (head + heads) / group); };
    const View<const T, 4> q = of_queries(problem.q()), k = of_keys(problem.k()), v = of_keys(problem.v());
    AttentionOptions options = problem.options;
    options.place = {begin, problem.c.q_len, head, problem.c.num_heads};
    attention_forward(q, k, v, {.out = out, .lse = lse}, options, context);
    attention_forward(q, k, {}, {.weights = weights}, options, context);
    AttentionGradients<T> wanted;
    wanted.dq = dq;
    wanted.dlse = of_queries(View<const Sum, 3>(problem.dlse));
    shares.ask(problem, wanted);
    attention_backward(q, k, v, of_queries(View<const T, 4>(whole.out.view)), of_queries(View<const Sum, 3>(whole.lse)),
                       of_queries(View<const T, 4>(problem.dout.view)), wanted, options, context);
  }

  void expect_equal(const Result<T>& whole, Index begin, Index end, Index head, Index heads) const {
    const auto same = [&](const auto& view, const auto& mine) {
      const auto theirs = view.sliced(2, begin, end).sliced(1, head, head + heads);
      return equal_bits(theirs, mine);
    };
    EXPECT_TRUE(same(View<const T, 4>(whole.out.view), out)) << "out";
    EXPECT_TRUE(same(View<const Sum, 3>(whole.lse), lse)) << "lse";
    EXPECT_TRUE(same(View<const Sum, 4>(whole.weights), weights)) << "weights";
    if (scale_is_zero) {  // dq is zero, of either sign
      for (const T& x : dq.span()) EXPECT_FALSE(number_as<double>(x) != 0 && !std::isnan(number_as<double>(x))) << "dq";
      return;
    }
    EXPECT_TRUE(same(View<const T, 4>(whole.gradients.views[0]), dq)) << "dq";
  }

  template <class E, int kRank>
  static bool equal_bits(const View<const E, kRank>& theirs, const Tensor<E>& mine) {
    Tensor<E> copy(mine.sizes());
    const View<E, kRank> to = copy;
    for (Index b = 0; b < to.size(0); ++b) {
      for (Index h = 0; h < to.size(1); ++h) {
        for (Index i = 0; i < to.size(2); ++i) {
          if constexpr (kRank == 3) {
            to(b, h, i) = theirs(b, h, i);
          } else {
            for (Index d = 0; d < to.size(3); ++d) to(b, h, i, d) = theirs(b, h, i, d);
          }
        }
      }
    }
    return same_bits(copy, mine);
  }
};

TYPED_TEST(PlacedPart, RowsHaveTheBitsOfTheWhole) {
  using T = TypeParam;
  Worst worst;
  for (const AttentionCase& each : placed_cases(12)) {
    SCOPED_TRACE(each.name());
    const Problem<T> problem(each);
    const Expectation<T> expected(problem);
    for_each_isa(2, [&](Context& context) {
      Result<T> whole(problem);
      whole.run(problem, context);
      for (const bool anywhere : {false, true}) {
        const std::vector<Index> cuts = cuts_of(each.q_len, anywhere);
        Shares<T> sum(problem, each.num_kv_heads);
        for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
          SCOPED_TRACE("rows " + std::to_string(cuts[n]) + " to " + std::to_string(cuts[n + 1]));
          Shares<T> shares(problem, each.num_kv_heads);
          const Part<T> part(problem, whole, cuts[n], cuts[n + 1], 0, each.num_heads, shares, context);
          part.expect_equal(whole, cuts[n], cuts[n + 1], 0, each.num_heads);
          for (const auto tensor :
               {&Shares<T>::dk, &Shares<T>::dv, &Shares<T>::dbias, &Shares<T>::dsinks, &Shares<T>::dposition})
            add_to(sum.*tensor, shares.*tensor);
        }
        Result<T> summed(problem);
        summed.run(problem, context);
        for (const auto& [view, share] :
             {std::pair(summed.gradients.views[1], &sum.dk), {summed.gradients.views[2], &sum.dv}}) {
          const View<Accumulator<T>, 4> from = *share;
          for (Index b = 0; b < view.size(0); ++b)
            for (Index h = 0; h < view.size(1); ++h)
              for (Index j = 0; j < view.size(2); ++j)
                for (Index d = 0; d < view.size(3); ++d) view(b, h, j, d) = number_as<T>(from(b, h, j, d));
        }
        summed.dbias = std::move(sum.dbias);
        summed.dsinks = std::move(sum.dsinks);
        summed.dposition = std::move(sum.dposition);
        EXPECT_TRUE(expected.holds_backward(summed, each.name(), worst));
      }
    });
  }
  worst.print("shares of rows, summed");
}

TYPED_TEST(PlacedPart, HeadsHaveTheBitsOfTheWhole) {
  using T = TypeParam;
  int compared = 0;
  for (const AttentionCase& each : placed_cases(4)) {
    if (each.num_kv_heads == 1 || each.q_len == 0) continue;
    SCOPED_TRACE(each.name());
    const Problem<T> problem(each);
    const Index group = each.num_heads / each.num_kv_heads;
    for_each_isa(2, [&](Context& context) {
      Result<T> whole(problem);
      whole.run(problem, context);
      for (Index g = 0; g < each.num_kv_heads; ++g) {
        Shares<T> shares(problem, 1);
        const Part<T> part(problem, whole, 0, each.q_len, g * group, group, shares, context);
        part.expect_equal(whole, 0, each.q_len, g * group, group);
        const auto same = [&](const View<T, 4>& theirs, const View<const Accumulator<T>, 4>& mine) {
          for (Index b = 0; b < theirs.size(0); ++b)
            for (Index j = 0; j < theirs.size(2); ++j)
              for (Index d = 0; d < theirs.size(3); ++d) {
                const T rounded = number_as<T>(mine(b, 0, j, d));
                if (std::memcmp(&rounded, &theirs(b, g, j, d), sizeof(T)) != 0 && !std::isnan(number_as<double>(rounded)))
                  return false;
              }
          return true;
        };
        EXPECT_TRUE(same(whole.gradients.views[1], shares.dk)) << "dk of key/value head " << g;
        EXPECT_TRUE(same(whole.gradients.views[2], shares.dv)) << "dv of key/value head " << g;
        ++compared;
      }
    });
  }
  EXPECT_GT(compared, 10);
}

TEST(PlacedPart, ListsOfKeysAreRefused) {
  const std::int32_t listed[] = {0, 1};
  Tensor<float> q({1, 1, 2, 4}), k({1, 1, 2, 4}), out({1, 1, 2, 4});
  const AttentionOptions options{.mask = Mask::keys(View<const std::int32_t, 4>(listed, {1, 1, 2, 1})),
                                 .place = {.first_query = 0, .queries = 4}};
  EXPECT_THROW(attention_forward(q, k, k, {.out = out}, options), Error);  // two rows are listed, four would be there
  const std::int32_t all[] = {0, 1, 0, 1};
  const AttentionOptions placed{.mask = Mask::keys(View<const std::int32_t, 4>(all, {1, 1, 4, 1})),
                                .place = {.first_query = 0, .queries = 4}};
  EXPECT_THROW(attention_forward(q, k, k, {.out = out}, placed), UnsupportedError);
}

TEST(PlacedPart, WhatAMaskMayKeepHoldsAllThatItKeeps) {
  int promises = 0;
  for (const AttentionCase& each : pairwise_cases()) {
    if (each.bias != BiasKind::kNone && each.bias != BiasKind::kHeads) continue;
    SCOPED_TRACE(each.name());
    const Problem<float> problem(each);
    for (Index i = 0; i < each.q_len; i += 40) {
      for (Index j = 0; j < each.kv_len; j += 30) {
        const Index i_end = std::min(i + 40, each.q_len), j_end = std::min(j + 30, each.kv_len);
        if (mask_may_keep(problem.options.mask, {each.batch, each.num_heads, each.q_len, each.kv_len}, i, i_end, j, j_end))
          continue;
        ++promises;
        for (Index b = 0; b < each.batch; ++b)
          for (Index h = 0; h < each.num_heads; ++h)
            for (Index row = i; row < i_end; ++row)
              for (Index key = j; key < j_end; ++key) ASSERT_FALSE(problem.kept(b, h, row, key));
      }
    }
  }
  EXPECT_GT(promises, 100);
}

TEST(PlacedPart, WhatDoesNotFitIsRefusedByName) {
  Tensor<float> q({1, 2, 40, 8}), k({1, 1, 40, 8}), out(q.sizes());
  const auto call = [&](const Placement& place, CaptureRequest capture = {}) {
    attention_forward(q, k, k, {.out = out}, {.capture = capture, .place = place});
  };
  expect_parts(text_of<ShapeError>([&] { call({.first_query = 1}); }), {"[attention_forward] place", "first_query 1", "Tq 40"});
  expect_parts(text_of<ShapeError>([&] { call({.first_query = 10, .queries = 49}); }), {"queries 49"});
  expect_parts(text_of<ShapeError>([&] { call({.first_head = 3, .heads = 4}); }), {"first_head 3", "heads 4"});
  CaptureResult seen;
  const Capture what{.statistics = true};
  expect_parts(text_of<UnsupportedError>([&] { call({.queries = 80}, CaptureRequest(what, seen)); }), {"place", "capture"});
  const std::vector<Index> offsets{0, 40};
  Tensor<float> rows({40, 2, 8}), keys({40, 1, 8}), result({40, 2, 8});
  expect_parts(text_of<UnsupportedError>([&] {
                 attention_varlen_forward(rows, keys, keys, {.out = result}, {offsets, offsets}, {.place = {.queries = 80}});
               }),
               {"[attention_varlen_forward] place", "ragged"});
}

}  // namespace
}  // namespace qkv::test

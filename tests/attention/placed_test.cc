// A part of a larger problem (AttentionOptions::place): rows and heads computed alone have the bits of the whole call, and their
// shares of gradients sum up to it.
#include <gtest/gtest.h>

#include <set>

#include "qkv/varlen.h"
#include "support/cases/listed_case.h"
#include "support/checks/expect.h"
#include "support/errors.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T>
class PlacedPart : public testing::Test {};
using PlacedTypes = StorageTypes;
TYPED_TEST_SUITE(PlacedPart, PlacedTypes);

/// Cases without a cache, every `step`-th, and some whose rows lie in many strips.
template <class T>
std::vector<AttentionCase> placed_cases(std::size_t step) {
  std::vector<AttentionCase> without_cache = pairwise_cases();
  std::erase_if(without_cache, [](const AttentionCase& each) { return each.cache != CacheKind::kNone; });
  std::vector<AttentionCase> some = part_for<T>(without_cache, step);
  EXPECT_GT(some.size(), 5);
  for (const MaskKind mask : {MaskKind::kCausalBottomRight, MaskKind::kWindow, MaskKind::kNone}) {
    some.push_back({.num_heads = 4,
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

/// Rows cut anywhere or at strips, computed alone, against the whole; their shares, summed, against the textbook.
template <class T>
void expect_rows(const Problem<T>& problem, Worst& worst) {
  const AttentionCase& each = problem.c;
  SCOPED_TRACE(each.name());
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
        for (const auto tensor : {&Shares<T>::dk, &Shares<T>::dv, &Shares<T>::dbias, &Shares<T>::dsinks, &Shares<T>::dposition})
          add_to(sum.*tensor, shares.*tensor);
      }
      Result<T> summed(problem);
      summed.run(problem, context);
      for (const auto& [view, share] : {std::pair(summed.gradients.views[1], &sum.dk), {summed.gradients.views[2], &sum.dv}}) {
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

/// Each key/value head and the heads that read it, computed alone, against the whole.
template <class T>
void expect_heads(const Problem<T>& problem) {
  const AttentionCase& each = problem.c;
  SCOPED_TRACE(each.name());
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
    }
  });
}

TYPED_TEST(PlacedPart, RowsHaveTheBitsOfTheWhole) {
  Worst worst;
  for (const AttentionCase& each : placed_cases<TypeParam>(16)) expect_rows(Problem<TypeParam>(each), worst);
  worst.print("shares of rows, summed");
}

TYPED_TEST(PlacedPart, HeadsHaveTheBitsOfTheWhole) {
  int compared = 0;
  for (const AttentionCase& each : placed_cases<TypeParam>(8)) {
    if (each.num_kv_heads == 1 || each.q_len == 0) continue;
    expect_heads(Problem<TypeParam>(each));
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

/// body(problem) for lists that the whole call reads alone, in forward or backward too, and lists that it does not, but that fewer
/// rows or heads would.
template <class T, class Body>
void each_listed(const Body& body) {
  std::vector<ListShape> shapes{
      {1, 2, 2, 40, 128, 16, 16, 1, 50}, {2, 6, 2, 40, 400, 20, 24, 2, 15}, {1, 16, 1, 20, 2300, 16, 16, 1, 300}};
  for (const ListShape& s : kListShapes) {
    if (s.as_case().work() < 2e7) shapes.push_back(s);
  }
  std::uint64_t number = 0;
  for (const ListShape& s : shapes) {
    AttentionCase made = s.as_case();
    made.sinks = number % 3 == 1 ? SinkKind::kUniform : SinkKind::kNone;
    made.fill = number % 4 == 3 ? Fill::kHugeLogits : Fill::kUniform;
    made.empty_row = static_cast<EmptyRow>(number % 5 == 4 ? 2 : 0);
    made.layout = number++ % 2 == 1 ? Layout::kBthd : Layout::kBhtd;
    body(ListedProblem<T>(s, made));
    if (s.q_len == 1) continue;
    made.fill = Fill::kUniform;
    const Mask causal = Mask::causal(Align::kBottomRight);
    ListedProblem<T> joined(s, made, &causal);
    joined.options.scale = 6;  // many an lse is beyond 16, where it is rounded coarsely
    body(joined);
  }
}

TYPED_TEST(PlacedPart, RowsByListsHaveTheBitsOfTheWhole) {
  Worst worst;
  each_listed<TypeParam>([&](const auto& problem) { expect_rows<TypeParam>(problem, worst); });
  worst.print("shares of rows by lists, summed");
}

TYPED_TEST(PlacedPart, HeadsByListsHaveTheBitsOfTheWhole) {
  each_listed<TypeParam>([](const auto& problem) {
    if (problem.c.num_kv_heads > 1) expect_heads<TypeParam>(problem);
  });
}

// By the plan and beside weights, which tiles compute.
TYPED_TEST(PlacedPart, GoesByListsWhereTheWholeDoes) {
  using T = TypeParam;
  std::set<std::string> algorithms;
  each_listed<T>([&](const Problem<T>& problem) {
    const AttentionCase& c = problem.c;
    for_each_isa(2, [&](Context& context) {
      const std::string algorithm = attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm;
      algorithms.insert(algorithm);
      Tensor<T> whole({c.batch, c.num_heads, c.q_len, c.v_head_dim});
      Tensor<Accumulator<T>> all_weights({c.batch, c.num_heads, c.q_len, c.kv_len});
      attention_forward(problem.q(), problem.k(), problem.v(), {.out = whole, .weights = all_weights}, problem.options,
                        context);
      const Index begin = c.q_len / 3, end = std::max(c.q_len / 2, begin + 1);
      AttentionOptions options = problem.options;
      options.place = {begin, c.q_len, 0, c.num_heads};
      const View<const T, 4> q = problem.q().sliced(2, begin, end);
      EXPECT_EQ(attention_plan(q, problem.k(), problem.v(), options, context).algorithm, algorithm) << c.name();
      Tensor<T> out({c.batch, c.num_heads, end - begin, c.v_head_dim});
      Tensor<Accumulator<T>> weights({c.batch, c.num_heads, end - begin, c.kv_len});
      attention_forward(q, problem.k(), problem.v(), {.out = out, .weights = weights}, options, context);
      EXPECT_TRUE(Part<T>::equal_bits(View<const T, 4>(whole).sliced(2, begin, end), out)) << c.name();
      const View<const Accumulator<T>, 4> its_weights = all_weights;
      EXPECT_TRUE(Part<T>::equal_bits(its_weights.sliced(2, begin, end), weights)) << c.name();
    });
  });
  EXPECT_EQ(algorithms, (std::set<std::string>{"lists", "tiled"}));
}

TEST(PlacedPart, ListsThatDoNotFitAreRefused) {
  Tensor<float> q({1, 2, 2, 4}), k({1, 1, 2, 4}), out({1, 2, 2, 4});
  Tensor<std::int32_t> two({1, 1, 2, 1}), four({1, 1, 4, 1});
  const auto call = [&](const View<const std::int32_t, 4>& index, const Placement& place) {
    attention_forward(q, k, k, {.out = out}, {.mask = Mask::keys(index), .place = place});
  };
  EXPECT_THROW(call(two, {.queries = 4}), ShapeError) << "two rows are listed, four would be there";
  call(four, {.queries = 4, .first_head = 2, .heads = 4});
  expect_parts(text_of<ShapeError>([&] { call(four, {.queries = 4, .first_head = 1, .heads = 4}); }),
               {"[attention_forward] place", "first_head must be a multiple of 2", "got 1"});
}

// Also where the rows are computed among others of their strip.
TEST(PlacedPart, CapturesAreRefusedAndWriteNothing) {
  for (const Index length : {8, 64}) {
    const Tensor<float> q({1, 1, 5, 4}), k({1, 1, length, 4}), row({1, 1, 5});
    Tensor<float> out(q.sizes()), dq(q.sizes());
    const Capture statistics{.statistics = true}, gradient{.top_k = 1, .of = CaptureOf::kGradient};
    CaptureResult result;
    AttentionOptions options{.place = {3, length}};
    options.capture = {statistics, result};
    EXPECT_THROW(attention_forward(q, k, k, {.out = out}, options), UnsupportedError) << length;
    options.capture = {gradient, result};
    EXPECT_THROW(attention_backward(q, k, k, out, row, out, {.dq = dq}, options), UnsupportedError) << length;
    EXPECT_TRUE(result.statistics.entropy.sizes().empty() && result.top_weights.sizes().empty());
  }
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

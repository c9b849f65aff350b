// merge_attention: keys computed in parts and merged are the keys computed at once, forward and backward; lse = -inf is
// the identity.
#include <gtest/gtest.h>

#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

template <class T> class Merge : public testing::Test {};
TYPED_TEST_SUITE(Merge, FloatTypes);
template <class T> class MergeStored : public testing::Test {};
TYPED_TEST_SUITE(MergeStored, StorageTypes);

/// Parts of an attention: outs[n] [B, H, Tq, Dv], lses[n] [B, H, Tq].
template <class T> struct Parts {
  using Sum = Accumulator<T>;
  std::vector<Tensor<T>> outs;
  std::vector<Tensor<Sum>> lses;

  void add(const std::vector<Index>& out_sizes) {
    outs.emplace_back(out_sizes);
    lses.emplace_back(std::vector<Index>(out_sizes.begin(), out_sizes.end() - 1));
  }
  std::vector<View<const T, 4>> out_views() const { return {outs.begin(), outs.end()}; }
  std::vector<View<const Sum, 3>> lse_views() const { return {lses.begin(), lses.end()}; }
};

template <class T> void fill_randomly(Tensor<T>& tensor, double largest, Random& random) {
  for (T& x : tensor.span()) x = number_as<T>(largest * random.symmetric());
}

/// `count` parts of random numbers.
template <class T>
Parts<T> random_parts(int count, const std::vector<Index>& out_sizes, double largest_lse, Random& random) {
  Parts<T> parts;
  for (int n = 0; n < count; ++n) {
    parts.add(out_sizes);
    fill_randomly(parts.outs.back(), 1, random);
    fill_randomly(parts.lses.back(), largest_lse, random);
  }
  return parts;
}

template <class From> std::vector<Tensor<double>> copies(const std::vector<Tensor<From>>& tensors) {
  std::vector<Tensor<double>> all;
  for (const Tensor<From>& one : tensors) all.push_back(widened(one));
  return all;
}

TYPED_TEST(Merge, SplitKeysAreTheUnsplitOnes) {
  using T = TypeParam;
  AttentionCase each{2, 4, 2, 19, 300, 24, 17};
  each.bias = BiasKind::kWithInfinity;
  each.sinks = SinkKind::kUniform;  // one part more, of which out and lse are views that repeat
  const Tensor<T> zero({1});
  for (const Fill fill : {Fill::kUniform, Fill::kHugeLogits, Fill::kOneHot}) {
    each.fill = fill;
    const Problem<T> problem(each);
    const Expectation<T> expectation(problem, false);
    Worst worst;
    for_each_isa(1, [&](Context& context) {
      const std::vector<Index> cuts = {0, 17, 18, 18, 200, 300};  // one part without a key
      Parts<T> parts;
      for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
        parts.add({2, 4, 19, 17});
        AttentionOptions options = problem.options;
        options.bias = problem.bias.sliced(3, cuts[n], cuts[n + 1]);
        options.sinks = {};
        attention_forward(problem.q(), problem.k().sliced(2, cuts[n], cuts[n + 1]),
            problem.v().sliced(2, cuts[n], cuts[n + 1]), {.out = parts.outs.back(), .lse = parts.lses.back()}, options,
            context);
      }
      Result<T> merged(problem);
      auto outs = parts.out_views();
      auto lses = parts.lse_views();
      outs.push_back({zero.data(), {2, 4, 19, 17}, {0, 0, 0, 0}});
      lses.push_back({problem.sinks.data(), {2, 4, 19}, {0, 1, 0}});
      merge_attention(outs, lses, merged.out.view, merged.lse);
      EXPECT_TRUE(expectation.holds_forward(merged, each.name(), worst));
      EXPECT_TRUE(merged.sentinels_intact());
    });
    worst.print("merge");
  }
}

/// A ring: each part of the keys gets out and lse of all of them and gives its share of the gradients. One-hot rows
/// have |lse| up to 60, where a backward that trusted its own part's sum instead would be entirely wrong.
TYPED_TEST(Merge, BackwardInPartsIsTheUnsplitOne) {
  using T = TypeParam;
  AttentionCase each{2, 4, 2, 150, 300, 24, 17};
  for (const Fill fill : {Fill::kUniform, Fill::kOneHot}) {
    each.fill = fill;
    const Problem<T> problem(each);
    for_each_isa(2, [&](Context& context) {
      Result<T> whole(problem);
      whole.run(problem, context);
      const auto gradients = [&](Index begin, Index end) {
        const auto keys = [&](const View<T, 4>& view) { return view.sliced(2, begin, end); };
        Tensor<T> dq({2, 4, 150, 24}), dk({2, 2, end - begin, 24}), dv({2, 2, end - begin, 17});
        attention_backward(problem.q(), keys(problem.k()), keys(problem.v()), whole.out.view, whole.lse,
            problem.dout.view, {.dq = dq, .dk = dk, .dv = dv}, problem.options, context);
        return std::array<Tensor<T>, 3>{std::move(dq), std::move(dk), std::move(dv)};
      };
      const auto all = gradients(0, 300), first = gradients(0, 170), second = gradients(170, 300);
      double largest_lse = 1;
      for (const T lse : whole.lse.span()) largest_lse = std::max(largest_lse, std::abs(static_cast<double>(lse)));
      const auto expect_near = [&](double got, double wanted, double largest) {
        EXPECT_NEAR(got, wanted, 8 * largest_lse * std::numeric_limits<T>::epsilon() * largest);
      };
      const auto largest_of = [](const Tensor<T>& t) {
        double largest = 0;
        for (const T x : t.span()) largest = std::max(largest, std::abs(static_cast<double>(x)));
        return largest;
      };
      const double largest_dq = largest_of(all[0]);
      for (Index n = 0; n < all[0].count(); ++n) {
        expect_near(first[0].data()[n] + second[0].data()[n], all[0].data()[n], largest_dq);
      }
      for (std::size_t g : {1U, 2U}) {
        const View<const T, 4> a(all[g]), x(first[g]), y(second[g]);
        for (Index j = 0; j < 300; ++j) {
          const T got = j < 170 ? x(1, 1, j, 3) : y(1, 1, j - 170, 3);
          expect_near(got, a(1, 1, j, 3), largest_of(all[g]));
        }
      }
    });
  }
}

TYPED_TEST(MergeStored, MinusInfinityIsTheIdentity) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Random random(5);
  Parts<T> parts = random_parts<T>(3, {1, 2, 3, 4}, 1, random);
  std::ranges::fill(parts.lses[1].span(), -std::numeric_limits<Sum>::infinity());
  for (T& x : parts.outs[1].span()) x = number_as<T>(std::nan(""));  // kNaN's empty rows: not read
  const auto outs = parts.out_views();
  const auto lses = parts.lse_views();
  const std::array<View<const T, 4>, 2> two_outs = {outs[0], outs[2]};
  const std::array<View<const Sum, 3>, 2> two_lses = {lses[0], lses[2]};
  Tensor<T> out3({1, 2, 3, 4}), out2({1, 2, 3, 4});
  Tensor<Sum> lse3({1, 2, 3}), lse2({1, 2, 3});
  merge_attention(outs, lses, out3, lse3);
  merge_attention(two_outs, two_lses, out2, lse2);
  EXPECT_TRUE(same_bits(out3, out2));
  EXPECT_TRUE(same_bits(lse3, lse2));

  const std::array<View<const T, 4>, 1> one_out = {outs[0]};
  const std::array<View<const Sum, 3>, 1> one_lse = {lses[0]};
  merge_attention(one_out, one_lse, out2, lse2);
  EXPECT_TRUE(same_bits(out2, parts.outs[0])) << "one part alone is itself";
  EXPECT_TRUE(same_bits(lse2, parts.lses[0]));

  for (Tensor<Sum>& lse : parts.lses) std::ranges::fill(lse.span(), -std::numeric_limits<Sum>::infinity());
  merge_attention(outs, lses, out3, lse3);
  for (const T x : out3.span()) EXPECT_EQ(number_as<Sum>(x), 0);
  for (const Sum x : lse3.span()) EXPECT_EQ(x, -std::numeric_limits<Sum>::infinity());
}

/// Rows are merged by themselves, so threads change nothing: shapes of less than an item, of several, and with a rest.
TYPED_TEST(MergeStored, AnyNumberOfThreadsGivesTheSameBits) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  for (const Index length : {1, 5, 77}) {
    const std::vector<Index> sizes = {2, 3, length, 19}, rows = {2, 3, length};
    Random random(static_cast<std::uint64_t>(length));
    const Parts<T> parts = random_parts<T>(3, sizes, 4, random);
    const auto run = [&](Context& context) {
      std::pair<Tensor<T>, Tensor<Sum>> merged(sizes, rows);
      merge_attention(parts.out_views(), parts.lse_views(), merged.first, merged.second, context);
      return merged;
    };
    Context one({.threads = 1});
    const auto expected = run(one);
    for (const int threads : {2, 3, 5}) {
      Context many({.threads = threads});
      many.impl().region_flops = 0;
      const auto got = run(many);
      EXPECT_TRUE(same_bits(got.first, expected.first)) << threads << " threads";
      EXPECT_TRUE(same_bits(got.second, expected.second)) << threads << " threads";
    }
  }
}

/// Weights that are made of a rounded total would not add up to 1 where lse is large.
TYPED_TEST(MergeStored, OnesStayOnesAtAnyLse) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Tensor<T> out({1, 1, 1, 3});
  Tensor<Sum> lse({1, 1, 1});
  for (const double size : {0.0, -300.0, 1e4, 1e6, 1e12}) {
    Parts<T> parts;
    for (const double more : {0.0, 0.3, -1.1}) {
      std::ranges::fill(parts.outs.emplace_back(Tensor<T>({1, 1, 1, 3})).span(), static_cast<T>(1));
      parts.lses.emplace_back(Tensor<Sum>({1, 1, 1})).data()[0] = static_cast<Sum>(size + more);
    }
    merge_attention(parts.out_views(), parts.lse_views(), out, lse);
    const double bound = 4 * static_cast<double>(std::numeric_limits<Sum>::epsilon()) + kUnitRoundoff<T>;
    for (const T x : out.span()) EXPECT_NEAR(number_as<double>(x), 1, bound) << "lse about " << size;
  }
}

/// Every result is that of f64 on the same numbers but for a rounding of what is stored and a few of the sums: terms of
/// out are at most 1 and weigh 1 together.
TYPED_TEST(MergeStored, IsTheMergeInF64) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  constexpr Index width = 33;
  Random random(21);
  const Parts<T> parts = random_parts<T>(4, {2, 2, 5, width}, 4, random);
  Tensor<T> out(parts.outs[0].sizes());
  Tensor<Sum> lse(parts.lses[0].sizes());
  merge_attention(parts.out_views(), parts.lse_views(), out, lse);

  Parts<double> exact{copies(parts.outs), copies(parts.lses)};
  Tensor<double> exact_out(out.sizes()), exact_lse(lse.sizes());
  merge_attention(exact.out_views(), exact.lse_views(), exact_out, exact_lse);
  const double eps = static_cast<double>(std::numeric_limits<Sum>::epsilon());
  const auto expect_near = [&](const auto& got, const Tensor<double>& want, double terms, const char* name) {
    for (Index n = 0; n < want.count(); ++n) {
      const double value = number_as<double>(got.data()[n]), exact_value = want.data()[n];
      const double stored = sizeof(*got.data()) == 2 ? kUnitRoundoff<T> * std::abs(exact_value) + 0x1p-25 : 0;
      EXPECT_NEAR(value, exact_value, stored + 16 * eps * terms) << name << " " << n;
    }
  };
  expect_near(out, exact_out, 1, "out");
  expect_near(lse, exact_lse, 4, "lse");
}

}  // namespace
}  // namespace qkv::test

// Gradients that are sums over all tokens: f32 beside f64, with an error of the roundings of one part and of the sums
// of parts, not of one for each token. All terms are positive, so that it is a share of the result.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/linear_attention/scan_params.h"
#include "qkv/linear_attention.h"
#include "qkv/state_space.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

constexpr Index kTokens = 300'000;

template <class T> Tensor<T> filled(std::initializer_list<Index> sizes, double x) {
  Tensor<T> to(sizes);
  std::ranges::fill(to.span(), static_cast<T>(static_cast<float>(x)));
  return to;
}
template <class T, int kRank> View<const T, kRank> read(const Tensor<T>& x) { return x.template view<kRank>(); }

/// sums(T, context): the gradients as a list of numbers.
template <class Sums> void expect_few_roundings(const Sums& sums) {
  constexpr double bound = 2.0 * (kSumTokens + kTokens / kSumTokens) * std::numeric_limits<float>::epsilon() / 2;
  for_each_isa(3, [&](Context& context) {
    const auto exact = sums(double{}, context);
    const auto got = sums(float{}, context);
    for (std::size_t n = 0; n < exact.size(); ++n) {
      EXPECT_GT(exact[n], 0) << n;
      EXPECT_NEAR(got[n], exact[n], bound * exact[n]) << n;
    }
  });
}

TEST(SumsOverTokens, OfTheScan) {
  expect_few_roundings([]<class T>(T, Context& context) {
    const auto u = filled<T>({1, kTokens, 1}, 0.1), a = filled<T>({1, 1}, -0.3), b = filled<T>({1, kTokens, 1, 1}, 0.7),
               skip = filled<T>({1}, 0.3);
    Tensor<T> kept({1, (kTokens + kSelectiveScanChunk - 1) / kSelectiveScanChunk, 1, 1}), out(u.sizes()), da({1, 1}),
        dskip({1});
    const SelectiveScanInputs<T> in{
        read<T, 3>(u), read<T, 3>(u), read<T, 2>(a), read<T, 4>(b), read<T, 4>(b), read<T, 1>(skip)};
    selective_scan_forward(in, {.out = out, .kept = kept}, context);
    selective_scan_backward(in, kept, read<T, 3>(u), {.da = da, .dskip = dskip}, context);
    return std::vector<double>{da.data()[0], dskip.data()[0]};
  });
}

TEST(SumsOverTokens, OfTheConvolution) {
  expect_few_roundings([]<class T>(T, Context& context) {
    const auto x = filled<T>({1, kTokens, 1}, 0.1), weight = filled<T>({1, 2}, 0.3);
    Tensor<T> dweight({1, 2}), dbias({1});
    short_convolution_backward(
        {read<T, 3>(x), read<T, 2>(weight)}, read<T, 3>(x), {.dweight = dweight, .dbias = dbias}, context);
    return std::vector<double>{dweight.data()[0], dweight.data()[1], dbias.data()[0]};
  });
}

TEST(SumsOverTokens, OfDecaysThatRepeat) {
  expect_few_roundings([]<class T>(T, Context& context) {
    const auto x = filled<T>({1, 1, kTokens, 1}, 0.3), decay = filled<T>({1, 1, 1}, -0.1),
               channels = filled<T>({1, 1, 1, 1}, -0.1);
    Tensor<T> ddecay({1, 1, 1}), dchannels({1, 1, 1, 1});
    LinearAttentionOptions<T> options{.feature_map = FeatureMap::kIdentity, .causal = true, .normalized = false};
    const auto run = [&](const LinearAttentionGradients<T>& to) {
      const auto rows = read<T, 4>(x);
      linear_attention_backward(rows, rows, rows, {}, {}, rows, to, options, context);
    };
    options.log_decay = read<T, 3>(decay);
    run({.dlog_decay = ddecay});
    options.log_decay = {}, options.log_decay_channels = read<T, 4>(channels);
    run({.dlog_decay_channels = dchannels});
    return std::vector<double>{ddecay.data()[0], dchannels.data()[0]};
  });
}

}  // namespace
}  // namespace qkv::test

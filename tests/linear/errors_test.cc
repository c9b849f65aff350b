// Refused calls: each error's type, the function it names, and both sides of a mismatch; memory shared by inputs and
// outputs; and the purpose of random features.
#include "support/errors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/threads/context_impl.h"
#include "qkv/linear_attention.h"
#include "qkv/state_space.h"
#include "support/allocations.h"
#include "support/random.h"
#include "support/storage.h"

namespace qkv::test {
namespace {

/// A valid call, of which a test then breaks one part.
struct Call {
  Tensor<float> q{2, 4, 5, 8}, k{2, 2, 5, 8}, v{2, 2, 5, 6}, out{2, 4, 5, 6}, normalizer{2, 4, 5}, dout{2, 4, 5, 6};
  Tensor<float> dq{2, 4, 5, 8}, dk{2, 2, 5, 8}, dv{2, 2, 5, 6}, kv{2, 2, 8, 6}, z{2, 2, 8}, tokens{2, 2, 5};
  LinearAttentionOptions<float> options{.causal = true};
  LinearState<float> final;
  LinearAttentionGradients<float> gradients;
  View<float, 3> n;

  Call() {
    n = normalizer;
    gradients.dq = dq, gradients.dk = dk, gradients.dv = dv;
  }
  void forward() { linear_attention_forward(q, k, v, out, n, options, final); }
  void backward() { linear_attention_backward(q, k, v, out, View<const float, 3>(n), dout, gradients, options); }
};

using Parts = std::initializer_list<std::string_view>;
/// The call with a change throws an E that names the function and every part.
template <class E> void refuses(Parts parts, const char* function, void (Call::*run)(), auto&& change) {
  Call call;
  change(call);
  const std::string text = text_of<E>([&] { (call.*run)(); });
  expect_parts(text, {function});
  expect_parts(text, parts);
}
template <class E> void forward_refuses(Parts parts, auto&& change) {
  refuses<E>(parts, "[linear_attention_forward]", &Call::forward, change);
}
template <class E> void backward_refuses(Parts parts, auto&& change) {
  refuses<E>(parts, "[linear_attention_backward]", &Call::backward, change);
}

TEST(LinearErrors, TheLegalCallIsLegal) {
  Call call;
  EXPECT_NO_THROW(call.forward());
  EXPECT_NO_THROW(call.backward());
}

TEST(LinearErrors, ShapesThatDoNotFitAreBothNamed) {
  forward_refuses<ShapeError>({"[2, 4, 5, 8]", "[2, 2, 5, 9]"}, [](Call& c) { c.k = Tensor<float>({2, 2, 5, 9}); });
  forward_refuses<ShapeError>({"[2, 2, 5, 8]", "[2, 2, 4, 6]"}, [](Call& c) { c.v = Tensor<float>({2, 2, 4, 6}); });
  forward_refuses<ShapeError>({"[2, 3, 5, 8]"}, [](Call& c) { c.q = Tensor<float>({2, 3, 5, 8}); });
  forward_refuses<ShapeError>({"value groups", "[2, 4, 5, 6]"}, [](Call& c) { c.v = Tensor<float>({2, 4, 5, 6}); });
  forward_refuses<ShapeError>({"value groups", "[2, 3, 5, 6]"}, [](Call& c) {
    c.q = Tensor<float>({2, 2, 5, 8}), c.v = Tensor<float>({2, 3, 5, 6});
  });
  forward_refuses<ShapeError>({"[2, 4, 5, 7]", "[2, 4, 5, 6]"}, [](Call& c) { c.out = Tensor<float>({2, 4, 5, 7}); });
  forward_refuses<ShapeError>({"causal", "[2, 4, 5, 8]", "[2, 2, 6, 8]"}, [](Call& c) {
    c.k = Tensor<float>({2, 2, 6, 8}), c.v = Tensor<float>({2, 2, 6, 6});
  });
  forward_refuses<ShapeError>({"[2, 4, 4]"}, [](Call& c) { c.n = View<float, 3>(c.normalizer.data(), {2, 4, 4}); });
  forward_refuses<ShapeError>({"log_decay", "[2, 2, 4]", "[2, 2, 5]"}, [](Call& c) {
    c.options.log_decay = View<const float, 3>(c.tokens.data(), {2, 2, 4});
  });
  forward_refuses<ShapeError>({"final.z", "[2, 2, 8]"}, [](Call& c) { c.final.kv = c.kv; });
  forward_refuses<ShapeError>({"initial.kv", "[2, 2, 6, 8]", "[2, 2, 8, 6]"}, [](Call& c) {
    c.options.initial = {.kv = View<const float, 4>(c.kv.data(), {2, 2, 6, 8}), .z = c.z};
  });
  backward_refuses<ShapeError>({"dk"}, [](Call& c) { c.gradients.dk = View<float, 4>(c.dk.data(), {2, 2, 5, 7}); });
  backward_refuses<ShapeError>({"normalizer"}, [](Call& c) { c.n = {}; });
  backward_refuses<ShapeError>({"dlog_decay"}, [](Call& c) { c.gradients.dlog_decay = c.tokens; });
}

TEST(LinearErrors, OptionsThatMakeNoSense) {
  forward_refuses<OptionError>({"random_features"}, [](Call& c) { c.options.feature_map = FeatureMap::kSoftmax; });
  const Tensor<float> rows({3, 8});
  forward_refuses<OptionError>({"kSoftmax", "[3, 8]"}, [&](Call& c) { c.options.features = rows; });
  forward_refuses<ShapeError>({"[3, 7]"}, [&](Call& c) {
    c.options.feature_map = FeatureMap::kSoftmax, c.options.features = View<const float, 2>(rows.data(), {3, 7});
  });
  forward_refuses<OptionError>({"scale", "-1"}, [&](Call& c) {
    c.options.feature_map = FeatureMap::kSoftmax, c.options.features = rows, c.options.scale = -1.0;
  });
  forward_refuses<OptionError>({"scale", "nan"}, [](Call& c) { c.options.scale = std::nan(""); });
  forward_refuses<OptionError>({"normalizer"}, [](Call& c) { c.options.normalized = false; });
  forward_refuses<OptionError>(
      {"final.z"}, [](Call& c) { c.options.normalized = false, c.n = {}, c.final = {.kv = c.kv, .z = c.z}; });
}

TEST(LinearErrors, CombinationsThatAreNotComputedAreNamed) {
  forward_refuses<UnsupportedError>(
      {"log_decay", "causal"}, [](Call& c) { c.options.causal = false, c.options.log_decay = c.tokens; });
  forward_refuses<UnsupportedError>(
      {"delta rule", "causal"}, [](Call& c) { c.options.causal = false, c.options.beta = c.tokens; });
  forward_refuses<UnsupportedError>({"delta rule", "normalised"}, [](Call& c) { c.options.beta = c.tokens; });
  const Tensor<float> channels({2, 2, 5, 8});
  forward_refuses<UnsupportedError>(
      {"log_decay_channels", "normalised"}, [&](Call& c) { c.options.log_decay_channels = channels; });
  forward_refuses<UnsupportedError>({"log_decay_channels", "causal"}, [&](Call& c) {
    c.options.causal = c.options.normalized = false, c.n = {}, c.options.log_decay_channels = channels;
  });
  forward_refuses<OptionError>({"log_decay_channels", "replaces", "[2, 2, 5]", "[2, 2, 5, 8]"},
      [&](Call& c) { c.options.log_decay_channels = channels, c.options.log_decay = c.tokens; });
  forward_refuses<ShapeError>({"log_decay_channels", "[2, 2, 5, 7]", "[2, 2, 5, 8]"}, [&](Call& c) {
    c.options.normalized = false, c.n = {};
    c.options.log_decay_channels = View<const float, 4>(channels.data(), {2, 2, 5, 7});
  });
  backward_refuses<ShapeError>({"dlog_decay_channels", "[2, 2, 5, 7]", "[2, 2, 5, 8]"}, [&](Call& c) {
    c.options.normalized = false, c.n = {}, c.options.log_decay_channels = channels;
    c.gradients.dlog_decay_channels = c.dk.view<4>().sliced(3, 0, 7);
  });
  forward_refuses<UnsupportedError>(
      {"kRecurrent", "causal"}, [](Call& c) { c.options.causal = false, c.options.form = LinearForm::kRecurrent; });
}

TEST(LinearErrors, OutputsShareNoElement) {
  forward_refuses<ShapeError>({"final.kv", "final.z", "share no element"}, [](Call& c) {
    c.final = {.kv = c.kv, .z = View<float, 3>(c.kv.data(), {2, 2, 8})};
  });
  Call call;  // in place is allowed, half in place is not
  call.final = {.kv = call.kv, .z = call.z};
  call.options.initial = {.kv = call.kv, .z = call.z};
  EXPECT_NO_THROW(call.forward());
  Tensor<float> longer({2, 2, 9, 6});
  call.final.kv = View<float, 4>(longer.data(), {2, 2, 8, 6}, {108, 54, 6, 1});
  call.options.initial.kv = View<const float, 4>(longer.data() + 6, {2, 2, 8, 6}, {108, 54, 6, 1});
  expect_parts(text_of<ShapeError>([&] { call.forward(); }), {"final.kv", "initial.kv"});
  backward_refuses<ShapeError>({"dq", "share no element"}, [](Call& c) {
    c.gradients.dq = View<float, 4>(c.q.data(), {2, 4, 5, 8});
  });
}

TEST(LinearMemory, NothingIsAllocatedAfterTheFirstCall) {
  Call call;
  call.options.log_decay = call.tokens;
  call.gradients.dlog_decay = View<float, 3>(call.z.data(), {2, 2, 5});
  Context context({.threads = 2});
  context.impl().region_flops = 0;
  expect_no_allocation_after_the_first(context, [&] {
    linear_attention_forward(call.q, call.k, call.v, call.out, call.n, call.options, {}, context);
    linear_attention_backward(call.q, call.k, call.v, call.out, View<const float, 3>(call.n), call.dout, call.gradients,
        call.options, context);
  });
}

TEST(LinearMemory, ForwardHoldsLittleAtAnyLength) {
  std::size_t bytes[2];
  for (int n = 0; n < 2; ++n) {
    const Index length = n == 0 ? 4096 : 65536;
    const Tensor<float> x({1, 2, length, 64});
    Tensor<float> out(x.sizes());
    Context context({.threads = 2});
    linear_attention_forward(x, x, x, out, {}, {.causal = true}, {}, context);
    bytes[n] = context.scratch_bytes();
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LE(bytes[1], 2 * (std::size_t{2} << 20));
}

std::vector<double> linear(LinearAttentionOptions<float> options, Context& context) {
  const Index features = options.features.is_null() ? 8 : options.features.size(0);
  const auto q = test::random_tensor({2, 4, 5, 8}, 1), keys = test::random_tensor({2, 2, 5, 8}, 2),
             dout = test::random_tensor({2, 4, 5, 8}, 4);
  Tensor<float> out(q.sizes()), n({2, 4, 5}), dq(q.sizes()), dk(keys.sizes()), dv(keys.sizes()),
      kv({2, 2, features, 8}), z({2, 2, features});
  const View<float, 3> normalizer = options.normalized ? View<float, 3>(n) : View<float, 3>();
  const LinearState<float> final{.kv = kv, .z = options.normalized ? View<float, 3>(z) : View<float, 3>()};
  linear_attention_forward(q, keys, keys, out, normalizer, options, final, context);
  linear_attention_backward(q, keys, keys, out, normalizer, dout, {.dq = dq, .dk = dk, .dv = dv}, options, context);
  return numbers_of(out.span(), kv.span(), dq.span(), dk.span(), dv.span());
}

TEST(LinearMemory, OutInLinearAttentionAndScansIsBadAlloc) {
  const auto log_decay = test::random_tensor({2, 2, 5}, 9), channels = test::random_tensor({2, 2, 5, 8}, 8);
  Tensor<float> beta({2, 2, 5});
  std::ranges::fill(beta.span(), 0.5F);
  const auto delta_rule = [&](LinearAttentionOptions<float> options) {
    options.feature_map = FeatureMap::kUnit, options.causal = true, options.normalized = false, options.beta = beta;
    return linear(options, TwoThreads());
  };
  expect_only_bad_alloc_of({
      {"random features",
          [] {
            Tensor<float> features({6, 8});
            random_features(3, features);
            return linear(
                {.feature_map = FeatureMap::kSoftmax, .features = features, .normalized = true}, TwoThreads());
          }},
      {"causal", [] { return linear({.causal = true, .normalized = true}, TwoThreads()); }},
      {"delta rule, decay", [&] { return delta_rule({.log_decay = log_decay}); }},
      {"decay per channel", [&] { return delta_rule({.log_decay_channels = channels}); }},
      {"token by token",
          [] { return linear({.causal = true, .normalized = true, .form = LinearForm::kRecurrent}, TwoThreads()); }},
      {"selective scan",
          [] {
            const auto u = test::random_tensor({2, 20, 6}, 1), dt = test::random_tensor({2, 20, 6}, 2),
                       a = test::random_tensor({6, 4}, 3), b = test::random_tensor({2, 20, 2, 4}, 4);
            const SelectiveScanInputs<float> inputs{.u = u, .dt = dt, .a = a, .b = b, .c = b};
            Tensor<float> out(u.sizes()), kept({2, 2, 4, 6}), du(u.sizes()), ddt(u.sizes()), da(a.sizes()),
                db(b.sizes()), dc(b.sizes());
            TwoThreads two;
            selective_scan_forward(inputs, {.out = out, .kept = kept}, two);
            selective_scan_backward(inputs, kept, u, {.du = du, .ddt = ddt, .da = da, .db = db, .dc = dc}, two);
            return numbers_of(out.span(), du.span(), ddt.span(), da.span(), db.span(), dc.span());
          }},
      {"short convolution",
          [] {
            const auto x = test::random_tensor({2, 20, 6}, 1), weight = test::random_tensor({6, 4}, 2);
            const ShortConvolutionInputs<float> inputs{.x = x, .weight = weight, .silu = true};
            Tensor<float> out(x.sizes()), dx(x.sizes()), dweight(weight.sizes());
            TwoThreads two;
            short_convolution_forward(inputs, out, two);
            short_convolution_backward(inputs, x, {.dx = dx, .dweight = dweight}, two);
            return numbers_of(out.span(), dx.span(), dweight.span());
          }},
  });
}

TEST(RandomFeatures, AreOrthogonalWithinABlockAndSeeded) {
  Tensor<double> a({19, 8}), b({19, 8});
  random_features(5, View<double, 2>(a));
  random_features(5, View<double, 2>(b));
  EXPECT_EQ(
      std::vector<double>(a.span().begin(), a.span().end()), std::vector<double>(b.span().begin(), b.span().end()));
  random_features(6, View<double, 2>(b));
  EXPECT_NE(a.data()[0], b.data()[0]);
  const View<const double, 2> rows = a;
  const auto dot = [&](Index x, Index y) {
    double sum = 0;
    for (Index d = 0; d < 8; ++d) sum += rows(x, d) * rows(y, d);
    return sum;
  };
  for (Index x = 0; x < 19; ++x) {
    for (Index y = x / 8 * 8; y < x; ++y) EXPECT_NEAR(dot(x, y) / std::sqrt(dot(x, x) * dot(y, y)), 0, 1e-14);
  }
}

TEST(RandomFeatures, ApproachSoftmax) {
  // phi(q).phi(k) has the mean exp(scale q.k): the error of the weights falls as the number of features grows.
  const Index length = 24, width = 8;
  Random random(11);
  Tensor<double> q({1, 1, length, width}), k(q.sizes()), v({1, 1, length, length}), out(v.sizes());
  for (Tensor<double>* each : {&q, &k}) {
    for (double& x : each->span()) x = random.symmetric();
  }
  for (Index i = 0; i < length; ++i) v.view<4>()(0, 0, i, i) = 1;  // out is the weights
  std::vector<double> errors;
  for (const Index count : {16, 4096}) {
    Tensor<double> features({count, width});
    random_features(1, View<double, 2>(features));
    linear_attention_forward(q, k, v, out, {}, {.feature_map = FeatureMap::kSoftmax, .features = features});
    double error = 0;
    for (Index i = 0; i < length; ++i) {
      std::vector<double> exact;
      double sum = 0;
      for (Index j = 0; j < length; ++j) {
        double score = 0;
        for (Index d = 0; d < width; ++d) score += q.view<4>()(0, 0, i, d) * k.view<4>()(0, 0, j, d);
        exact.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
        sum += exact.back();
      }
      for (Index j = 0; j < length; ++j) {
        const double gap = std::abs(out.view<4>()(0, 0, i, j) - exact[static_cast<std::size_t>(j)] / sum);
        if (!(gap <= error)) error = gap;  // NaN too
      }
    }
    errors.push_back(error);
  }
  std::printf("largest error of a weight: %.4f with 16 features, %.4f with 4096\n", errors[0], errors[1]);
  EXPECT_LT(errors[1], errors[0] / 4);
  EXPECT_LT(errors[1], 0.01);
}

}  // namespace
}  // namespace qkv::test

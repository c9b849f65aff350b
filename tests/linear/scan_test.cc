// The selective scan and the short convolution against the reference: every instruction set, both types, strided
// views, zero sizes; the reference against finite differences; threads; errors.
#include <gtest/gtest.h>

#include <cmath>

#include "linear/measured.h"
#include "reference/selective_scan.h"
#include "support/checks/bounds.h"
#include "support/errors.h"
#include "support/index.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

/// Numbers of T in [low, 1), as N; empty sizes: not given.
template <class N, class T>
Tensor<N> drawn(std::initializer_list<Index> sizes, std::uint64_t seed, double low = -1, bool given = true) {
  if (!given) return {};
  Tensor<N> to(sizes);
  Random random(seed);
  for (N& x : to.span()) x = N(static_cast<double>(static_cast<T>(low + (1 - low) * random.unit())));
  return to;
}
template <int kRank, class T> View<T, kRank> view_of(Tensor<T>& x) {
  return x.data() == nullptr ? View<T, kRank>() : x.template view<kRank>();
}
template <int kRank, class T> View<const T, kRank> read(const Tensor<T>& x) {
  return x.data() == nullptr ? View<const T, kRank>() : x.template view<kRank>();
}
template <class N> std::vector<Tensor<N>> listed(auto&... tensors) {
  std::vector<Tensor<N>> all;
  (all.push_back(std::move(tensors)), ...);
  return all;
}
template <class N> N dot(const Tensor<N>& a, const Tensor<N>& b) {
  N sum = N(0);
  for (Index n = 0; n < b.count(); ++n) sum += a.data()[n] * b.data()[n];
  return sum;
}

struct ScanCase {
  Index batch, length, channels, groups, states;
  bool skip, initial, dfinal;
};

/// A case's tensors of N, which hold numbers of T; results in the order of kNames, the first with cotangents.
template <class N, class T = N> struct Scan {
  using Case = ScanCase;
  static constexpr const char* kNames[] = {"out", "final", "du", "ddt", "da", "db", "dc", "dskip", "dinitial"};
  Case s;
  Tensor<N> u = drawn<N, T>({s.batch, s.length, s.channels}, 1),
            dt = drawn<N, T>({s.batch, s.length, s.channels}, 2, 0);
  Tensor<N> a = drawn<N, T>({s.channels, s.states}, 3, -4), b = drawn<N, T>({s.batch, s.length, s.groups, s.states}, 4),
            c = drawn<N, T>({s.batch, s.length, s.groups, s.states}, 5),
            skip = drawn<N, T>({s.channels}, 6, -1, s.skip),
            initial = drawn<N, T>({s.batch, s.channels, s.states}, 7, -1, s.initial),
            dout = drawn<N, T>({s.batch, s.length, s.channels}, 8),
            dfinal = drawn<N, T>({s.batch, s.channels, s.states}, 9, -1, s.dfinal);

  std::vector<Tensor<N>*> inputs() { return {&u, &dt, &a, &b, &c, &skip, &initial}; }
  SelectiveScanInputs<N> views() const {
    return {read<3>(u), read<3>(dt), read<2>(a), read<4>(b), read<4>(c), read<1>(skip), read<3>(initial)};
  }
  std::vector<Tensor<N>> textbook() const {
    auto r = reference::selective_scan<N>(views(), read<3>(dout), read<3>(dfinal));
    if (!s.skip) r.dskip = Tensor<N>({s.channels});
    return listed<N>(r.out, r.final, r.du, r.ddt, r.da, r.db, r.dc, r.dskip, r.dinitial);
  }
  N loss() const {
    const auto r = textbook();
    return dot(r[0], dout) + dot(r[1], dfinal);
  }

  std::vector<Tensor<N>> run(Context& context) const {
    Tensor<N> out(u.sizes()), final({s.batch, s.channels, s.states}), du(u.sizes()), ddt(u.sizes()), da(a.sizes()),
        db(b.sizes()), dc(b.sizes()), dskip({s.channels}), dinitial(final.sizes());
    Tensor<N> kept({s.batch, (s.length + kSelectiveScanChunk - 1) / kSelectiveScanChunk, s.states, s.channels});
    // B as [B, G, N, T] memory and A as [N, C], which are read where they lie.
    Tensor<N> b_memory({s.batch, s.groups, s.states, s.length}), a_memory({s.states, s.channels});
    const View<N, 4> turned = b_memory.template view<4>().transposed(1, 3).transposed(2, 3);
    const View<N, 2> a_turned = a_memory.template view<2>().transposed(0, 1);
    for_each_index(
        turned.sizes(), [&](Index i, Index t, Index g, Index n) { turned(i, t, g, n) = read<4>(b)(i, t, g, n); });
    for_each_index(a_turned.sizes(), [&](Index channel, Index n) { a_turned(channel, n) = read<2>(a)(channel, n); });
    SelectiveScanInputs<N> in = views();
    in.b = turned;
    in.a = a_turned;
    selective_scan_forward(in, {out, final, kept}, context);
    SelectiveScanGradients<N> g{du, ddt, da, db, dc, {}, dinitial, read<3>(dfinal)};
    if (s.skip) g.dskip = dskip;
    selective_scan_backward(in, kept, dout, g, context);
    return listed<N>(out, final, du, ddt, da, db, dc, dskip, dinitial);
  }
};
const ScanCase kScanCases[] = {{1, 1, 1, 1, 1, false, false, false}, {2, 17, 5, 1, 3, true, true, true},
    {1, 40, 70, 1, 16, true, true, true}, {2, 16, 132, 2, 17, false, true, false}, {1, 33, 6, 6, 4, true, false, true},
    {3, 3, 130, 1, 8, true, true, true}, {1, 0, 3, 1, 2, true, true, true}, {0, 4, 3, 1, 2, true, false, false},
    {2, 5, 0, 1, 2, true, false, false}};

struct ConvolutionCase {
  Index batch, length, channels, width;
  bool silu, bias, before, sequence;
};

template <class N, class T = N> struct Convolution {
  using Case = ConvolutionCase;
  static constexpr const char* kNames[] = {"out", "dx", "dweight", "dbias", "dbefore"};
  Case s;
  Tensor<N> x = drawn<N, T>({s.batch, s.length, s.channels}, 1, -2), weight = drawn<N, T>({s.channels, s.width}, 2),
            bias = drawn<N, T>({s.channels}, 3, -1, s.bias),
            before = drawn<N, T>({s.batch, s.width - 1, s.channels}, 4, -1, s.before),
            dout = drawn<N, T>({s.batch, s.length, s.channels}, 5);

  std::vector<Tensor<N>*> inputs() { return {&x, &weight, &bias, &before}; }
  Tensor<std::int32_t> sequence() const {
    if (!s.sequence) return {};
    Tensor<std::int32_t> of({s.batch, s.length});
    for (Index n = 0; n < of.count(); ++n) of.data()[n] = n % 7 == 6 ? -1 : static_cast<std::int32_t>(n / 3 % 2);
    return of;
  }
  ShortConvolutionInputs<N> views(const Tensor<std::int32_t>& of) const {
    return {read<3>(x), read<2>(weight), read<1>(bias), read<3>(before), read<2>(of), s.silu};
  }
  std::vector<Tensor<N>> textbook() const {
    auto r = reference::short_convolution<N>(views(sequence()), read<3>(dout));
    return listed<N>(r.out, r.dx, r.dweight, r.dbias, r.dbefore);
  }
  N loss() const { return dot(textbook()[0], dout); }
  std::vector<Tensor<N>> run(Context& context) const {
    const auto of = sequence();
    Tensor<N> out(x.sizes()), dx(x.sizes()), dweight(weight.sizes()), dbias({s.channels}),
        dbefore({s.batch, s.width - 1, s.channels});
    if (s.before) std::ranges::fill(dbefore.span(), N(9));  // overwritten
    short_convolution_forward(views(of), out, context);
    short_convolution_backward(
        views(of), dout, {dx, dweight, dbias, s.before ? view_of<3>(dbefore) : View<N, 3>()}, context);
    return listed<N>(out, dx, dweight, dbias, dbefore);
  }
};
const ConvolutionCase kConvolutionCases[] = {{1, 1, 1, 4, true, true, false, false},
    {2, 70, 5, 4, true, true, true, false}, {1, 3, 67, 2, false, false, false, false},
    {2, 40, 300, 3, true, false, false, true}, {1, 130, 70, 4, true, true, false, true},
    {2, 5, 33, 7, false, true, true, false}, {1, 9, 16, 1, true, true, false, false},
    {1, 0, 3, 4, true, true, true, false}, {0, 4, 3, 2, false, true, false, false},
    {2, 5, 0, 3, true, false, false, false}};

/// P: Scan or Convolution.
template <class T, template <class, class> class P> void hold(const typename P<T, T>::Case& s, Worst& worst) {
  const P<T, T> problem{s};
  const auto exact = P<Wider<T>, T>{s}.textbook();
  const auto naive = problem.textbook();
  const auto measured = P<Measured, T>{s}.textbook();
  for_each_isa(3, [&](Context& context) {
    const auto got = problem.run(context);
    for (std::size_t n = 0; n < got.size(); ++n) {
      Tensor<double> size(measured[n].sizes());
      for (Index e = 0; e < size.count(); ++e) size.data()[e] = measured[n].data()[e].size;
      const std::string name = P<T, T>::kNames[n];
      const Expected<T> expected(exact[n].clone(), naive[n], size, name[0] == 'd' ? 3 : 2);
      EXPECT_TRUE(within(expected, got[n], name, std::to_string(s.length) + " x " + std::to_string(s.channels), worst));
    }
  });
}
template <class T, template <class, class> class P> void same_on_threads(const typename P<T, T>::Case& s) {
  const P<T, T> problem{s};
  for (const Isa isa : tested_isas()) {
    Context one({.threads = 1, .isa = isa, .executor = nullptr}), many({.threads = 5, .isa = isa, .executor = nullptr});
    many.impl().region_flops = 0;
    const auto expected = problem.run(one), got = problem.run(many);
    for (std::size_t n = 0; n < got.size(); ++n) EXPECT_TRUE(same_bits(got[n], expected[n])) << P<T, T>::kNames[n];
  }
}
template <class T, template <class, class> class P> void same_everywhere(const typename P<T, T>::Case& s) {
  const P<T, T> problem{s};
  expect_on_every_isa([&](Context& context) { return problem.run(context); },
      [](const auto& got, const auto& first) {
        for (std::size_t n = 0; n < got.size(); ++n) EXPECT_TRUE(same_bits(got[n], first[n])) << P<T, T>::kNames[n];
      });
}
template <template <class, class> class P> void differences(const typename P<double, double>::Case& s) {
  P<long double, double> problem{s};
  const auto all = problem.textbook();
  const auto inputs = problem.inputs();
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    for (Index e = 0; e < inputs[n]->count(); ++e) {
      const auto at = [&](long double by) {
        inputs[n]->data()[e] += by;
        const long double loss = problem.loss();
        inputs[n]->data()[e] -= by;
        return loss;
      };
      const std::size_t result = all.size() - inputs.size() + n;
      EXPECT_NEAR(
          static_cast<double>(all[result].data()[e]), static_cast<double>((at(1e-6L) - at(-1e-6L)) / 2e-6L), 1e-9)
          << P<double, double>::kNames[result];
    }
  }
}

template <class T> class ScanTest : public testing::Test {};
TYPED_TEST_SUITE(ScanTest, FloatTypes);

TYPED_TEST(ScanTest, CasesAreWithinTheirBounds) {
  Worst worst;
  for (const ScanCase& s : kScanCases) hold<TypeParam, Scan>(s, worst);
  for (const ConvolutionCase& s : kConvolutionCases) hold<TypeParam, Convolution>(s, worst);
  worst.print("scan");
}

TYPED_TEST(ScanTest, BitsAreTheSameForAnyNumberOfThreads) {
  same_on_threads<TypeParam, Scan>({2, 37, 150, 2, 5, true, true, true});
  same_on_threads<TypeParam, Convolution>({2, 150, 530, 4, true, true, false, true});
}

TYPED_TEST(ScanTest, InvariantBitsAreThoseOfEveryInstructionSet) {
  for (const ScanCase& s : kScanCases) same_everywhere<TypeParam, Scan>(s);
  for (const ConvolutionCase& s : kConvolutionCases) same_everywhere<TypeParam, Convolution>(s);
}

TEST(ScanTextbook, GradientsAreThoseOfFiniteDifferences) {
  differences<Scan>({1, 5, 4, 2, 3, true, true, true});
  differences<Convolution>({1, 8, 2, 3, true, true, true, false});
  differences<Convolution>({1, 8, 2, 3, true, true, false, true});
}

/// Decays of any size, on a state that is updated in place.
TYPED_TEST(ScanTest, DecaysOverflowToInfinity) {
  using T = TypeParam;
  const T large = std::numeric_limits<T>::max_exponent * static_cast<T>(0.69);  // e^large is just finite
  for (const T log : {T{0}, -large * 2, T{-1}, large, large * 2, large * large}) {
    Tensor<T> u({1, 1, 1}), dt({1, 1, 1}), a({1, 1}), bc({1, 1, 1, 1}), out({1, 1, 1}), state({1, 1, 1});
    dt.data()[0] = 1, a.data()[0] = log;
    for_each_isa(1, [&](Context& context) {
      state.data()[0] = 1;
      selective_scan_forward({u, dt, a, bc, bc, {}, read<3>(state)}, {out, state}, context);
      const T wanted = std::exp(log), got = state.data()[0];
      const bool normal = std::isnormal(wanted);
      EXPECT_NEAR(normal ? got / wanted : T{1}, 1, 1e-4) << log;
      EXPECT_TRUE(normal || got == wanted) << log;
    });
  }
}

TEST(ScanErrors, ShapesAndOptionsThatDoNotFitAreNamed) {
  Tensor<float> u({2, 5, 6}), other({2, 5, 7}), a({6, 4}), b({2, 5, 2, 4}), odd({2, 5, 4, 4}), out({2, 5, 6});
  const auto scan = [&](std::initializer_list<std::string_view> parts, auto&& change) {
    SelectiveScanInputs<float> in{u, u, a, b, b};
    SelectiveScanOutputs<float> to{out};
    change(in, to);
    expect_error<ShapeError>([&] { selective_scan_forward(in, to); }, parts);
  };
  scan({"[selective_scan_forward]", "dt", "[2, 5, 6]", "[2, 5, 7]"}, [&](auto& in, auto&) { in.dt = other; });
  scan({"dt", "not given"}, [&](auto& in, auto&) { in.dt = {}; });
  scan({"a must be [6, 6]", "[4, 6]"}, [&](auto& in, auto&) { in.a = read<2>(a).transposed(0, 1); });
  scan({"C a multiple of G", "[2, 5, 4, 4]"}, [&](auto& in, auto&) { in.b = odd; });
  scan({"c must be", "[2, 5, 4, 4]"}, [&](auto& in, auto&) { in.c = odd; });
  scan({"final", "[2, 5, 7]"}, [&](auto&, auto& to) { to.final = other; });
  scan({"out", "u"}, [&](auto&, auto& to) { to.out = u; });
  const SelectiveScanInputs<float> in{u, u, a, b, b};
  expect_error<ShapeError>([&] { selective_scan_backward(in, {}, out, {}); }, {"[selective_scan_backward]", "kept"});
  Tensor<float> weight({6, 3}), before({2, 2, 6}), x({2, 5, 6});
  Tensor<std::int32_t> sequence({2, 5}), shorter({2, 4});
  const auto convolution = [&]<class E>(std::initializer_list<std::string_view> parts, auto&& change) {
    ShortConvolutionInputs<float> changed{x, weight};
    change(changed);
    expect_error<E>([&] { short_convolution_forward(changed, out); }, parts);
  };
  convolution.operator()<ShapeError>({"[short_convolution_forward]", "weight"}, [&](auto& c) {
    c.weight = a;
    c.x = other;
  });
  convolution.operator()<ShapeError>({"sequence", "[2, 4]"}, [&](auto& c) { c.sequence = shorter; });
  convolution.operator()<ShapeError>({"before", "[2, 5, 6]"}, [&](auto& c) { c.before = x; });
  convolution.operator()<OptionError>(
      {"before", "sequence"}, [&](auto& c) { c.before = before, c.sequence = sequence; });
  const ShortConvolutionInputs<float> plain{x, weight};
  expect_error<ShapeError>([&] { short_convolution_backward(plain, out, {.dx = x}); }, {"dx", "x"});
  expect_error<ShapeError>(
      [&] { short_convolution_backward(plain, out, {.dbefore = before}); }, {"dbefore", "[2, 2, 6]"});
  expect_error<ShapeError>([&] { short_convolution_backward(plain, {}, {}); }, {"dout", "not given"});
}

}  // namespace
}  // namespace qkv::test

// A cut sequence at the edges: rows that are computed twice, infinite keys, vast logits, ranks and keys that are none.
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/dist/context_parallel.h"
#include "qkv/dist/in_process.h"
#include "qkv/dist/merge.h"
#include "support/errors.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

using namespace dist;

const ContextParallelOptions kMethods[] = {{.method = Method::kAllGather, .block = 1},
    {.method = Method::kAllGather, .block = 1, .chunk = 1}, {.method = Method::kRing, .block = 1, .chunk = 1}};

Tensor<float> waves(Index rows, Index width, float phase) {
  Tensor<float> x({1, 1, rows, width});
  for (Index n = 0; n < x.count(); ++n) x.data()[n] = std::sin(static_cast<float>(n) * 7.1F + phase);
  return x;
}

/// One head of T rows, whole and by two ranks.
struct Call {
  Call(Index length, Index width)
      : q(waves(length, width, 1)),
        k(waves(length, width, 2)),
        v(waves(length, width, 3)),
        dout(waves(length, width, 4)) {}

  struct Results {
    explicit Results(const Tensor<float>& q)
        : out(q.sizes()), lse({1, 1, q.size(2)}), dq(q.sizes()), dk(q.sizes()), dv(q.sizes()) {}
    Tensor<float> out, lse, dq, dk, dv;
  };
  Results whole() const {
    Results r(q);
    attention_forward(q, k, v, {.out = r.out, .lse = r.lse}, options);
    attention_backward(q, k, v, r.out, r.lse, dout, {.dq = r.dq, .dk = r.dk, .dv = r.dv}, options);
    return r;
  }
  Results on_ranks(const ContextParallelOptions& cut) const {
    Results r(q);
    run_in_process(2, [&](Transport& transport) {
      Context context({.threads = 1, .executor = nullptr});
      ContextParallel parallel(transport, cut, context);
      const Rows rows = parallel.rows(q.size(2)).front();
      const auto mine = [&](const Tensor<float>& x) { return x.view<4>().sliced(2, rows.begin, rows.end); };
      const auto written = [&](Tensor<float>& x) { return x.view<4>().sliced(2, rows.begin, rows.end); };
      const View<float, 3> lse = r.lse.view<3>().sliced(2, rows.begin, rows.end);
      parallel.forward(mine(q), mine(k), mine(v), written(r.out), lse, options);
      parallel.backward(mine(q), mine(k), mine(v), mine(r.out), lse, mine(dout),
          {.dq = written(r.dq), .dk = written(r.dk), .dv = written(r.dv)}, options);
    });
    return r;
  }

  Tensor<float> q, k, v, dout;
  AttentionOptions options;
};

bool same(const Tensor<float>& a, const Tensor<float>& b) {
  return std::ranges::equal(
      a.span(), b.span(), [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}
void expect_near(const Tensor<float>& a, const Tensor<float>& b) {
  for (Index n = 0; n < a.count(); ++n) ASSERT_NEAR(a.data()[n], b.data()[n], 1e-5) << n;
}

/// dq in its bits, and dk, dv.
void expect_whole(const Call& call) {
  const Call::Results whole = call.whole();
  for (const ContextParallelOptions& cut : kMethods) {
    const Call::Results r = call.on_ranks(cut);
    EXPECT_TRUE(same(r.dq, whole.dq));
    expect_near(r.dk, whole.dk);
    expect_near(r.dv, whole.dv);
  }
}

TEST(CutEdges, RowsBesideOnesThatAreComputedAgain) {
  constexpr Index length = 384, width = 16;
  for (const Bits bits : {Bits::kFast, Bits::kInvariant}) {
    Call call(length, width);
    std::vector<std::uint8_t> keep(length * length, 1);
    std::ranges::fill(call.q.span(), 0.0F);
    std::ranges::fill(call.k.span(), 0.0F);
    for (Index i = 0; i < length; ++i) {
      const auto at = static_cast<float>(i);
      if (i % 2 == 0) call.q.data()[i * width] = 1 + 0.002F * at;
      // The maximum of a row moves late, from key tile to key tile.
      call.k.data()[i * width] = i < 128   ? -41 + 0.37F * std::sin(at)
                                 : i < 256 ? -15 + 0.7F * std::sin(at * 5)
                                           : 5 + 0.3F * std::sin(at * 3);
      for (Index j = 0; j < length; ++j)
        keep[static_cast<std::size_t>(i * length + j)] = j == 5 ? i % 32 == 1 : i % 2 == 1 || j % 9 == 3;
    }
    call.v.data()[5 * width] = std::numeric_limits<float>::quiet_NaN();
    call.options.mask = Mask::keep(View<const std::uint8_t, 2>(keep.data(), {length, length}), MaskAxes::kQk);
    call.options.bits = bits;
    const Call::Results whole = call.whole();
    for (const ContextParallelOptions& cut : kMethods) {
      const Call::Results r = call.on_ranks(cut);
      EXPECT_TRUE(same(r.out, whole.out) && same(r.lse, whole.lse)) << "chunk " << cut.chunk;
    }
  }
}

TEST(CutEdges, AnInfiniteKeyThatNoRowReads) {
  for (const double cap : {0.0, 5.0}) {
    Call call(40, 4);
    for (float& x : call.q.span()) x = std::abs(x) + 0.1F;
    call.k.data()[3 * 4] = -std::numeric_limits<float>::infinity();
    call.options.softcap = cap;
    expect_whole(call);
  }
}

TEST(CutEdges, RowsOfOneVastScore) {
  Call call(64, 2);
  Tensor<float> bias({1, 1, 64, 1});
  std::ranges::fill(bias.span(), -1e20F);
  call.options.bias = bias;
  EXPECT_GT(std::abs(call.whole().dq.data()[0]), 1e-4);
  expect_whole(call);
}

TEST(CutEdges, AScoreModWithoutSlope) {
  Call call(64, 2);
  call.options.score_mod = score_mod([](auto s, Index, Index, Index, Index) { return s; });
  for (const ContextParallelOptions& cut : kMethods)
    expect_error<OptionError>([&] { call.on_ranks(cut); }, {"score_mod must have a slope"});
}

TEST(CutEdges, NoKeysGiveSinksNothing) {
  run_in_process(2, [](Transport& transport) {
    for (const ContextParallelOptions& cut : kMethods) {
      Context context({.threads = 1, .executor = nullptr});
      ContextParallel parallel(transport, cut, context);
      const Index rows = parallel.rows(41).front().count();
      Tensor<float> q({1, 1, rows, 4}), out(q.sizes()), dq(q.sizes()), lse({1, 1, rows}), sinks({1}), dsinks({1});
      const Tensor<float> none({1, 1, 0, 4});
      sinks.data()[0] = 2;
      const AttentionOptions options{.sinks = sinks};
      parallel.forward(q, none, none, out, lse, options);
      parallel.backward(q, none, none, out, lse, out, {.dq = dq, .dsinks = dsinks}, options);
      EXPECT_EQ(dsinks.data()[0], 0);
    }
  });
}

TEST(CutEdges, ARankWithoutRowsHasNoMemory) {
  for (const Method method : {Method::kAllGather, Method::kUlysses, Method::kRing}) {
    run_in_process(2, [&](Transport& transport) {
      ContextParallel parallel(transport, {.method = method});
      const std::vector<Rows> rows = parallel.rows(20);
      const Index count = rows.empty() ? 0 : rows.front().count();
      std::vector<float> x(static_cast<std::size_t>(count * 8), 1), out(x), dq(x),
          lse(static_cast<std::size_t>(count * 2));
      const auto view = [&](std::vector<float>& of) {
        return View<float, 4>(of.empty() ? nullptr : of.data(), {1, 2, count, 4});
      };
      const View<float, 3> sums(lse.empty() ? nullptr : lse.data(), {1, 2, count});
      parallel.forward(view(x), view(x), view(x), view(out), sums);
      parallel.backward(view(x), view(x), view(x), view(out), sums, view(x), {.dq = view(dq)});
    });
  }
}

TEST(CutEdges, MergingIsForAnyInstructionSets) {
  const std::vector<Isa> isas = tested_isas();
  run_in_process(2, [&](Transport& transport) {
    Context context({.threads = 1, .isa = transport.rank() == 0 ? isas.front() : isas.back()});
    Tensor<float> out({1, 1, 3, 4}), lse({1, 1, 3});
    EXPECT_NO_THROW(merge_over_ranks(transport, out, lse, context));
  });
}

TEST(CutEdges, TheLongestLengthLosesNoRow) {
  constexpr Index most = std::numeric_limits<Index>::max();
  for (const Index block : {Index{1}, Index{32}, Index{1} << 62}) {
    for (const dist::Layout layout : {dist::Layout::kContiguous, dist::Layout::kZigZag}) {
      Index sum = 0;
      for (int rank = 0; rank < 3; ++rank) {
        for (const Rows& rows : rows_of_rank({.layout = layout, .block = block}, most, rank, 3)) sum += rows.count();
      }
      EXPECT_EQ(sum, most) << block;
    }
  }
}

}  // namespace
}  // namespace qkv::test

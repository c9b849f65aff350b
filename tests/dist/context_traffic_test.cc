// Bytes that ranks send for a sequence that is cut over them, and what they say when they do not want the same.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "qkv/dist/context_parallel.h"
#include "qkv/dist/in_process.h"
#include "support/errors.h"
#include "watched.h"

namespace qkv::test {
namespace {

using dist::ContextParallel;
using dist::ContextParallelOptions;
using dist::Method;
using dist::Transport;

// A window reaches into the piece before at most, a document not at all: their keys alone are sent.
TEST(CutTraffic, OnlyKeysThatMayBeAttendedTravel) {
  constexpr Index length = 2048, width = 16;
  constexpr int ranks = 4;
  const auto bytes_of = [&](const Mask& mask, EmptyRow empty_row, Method method = Method::kAllGather) {
    std::array<Index, ranks> sent{};
    dist::run_in_process(ranks, [&](Transport& inner) {
      Index& bytes = sent[static_cast<std::size_t>(inner.rank())];
      Watched transport(inner, [&](std::size_t more) { bytes += static_cast<Index>(more); });
      Context context({.threads = 1, .executor = nullptr});
      ContextParallel cp(transport, {.method = method}, context);
      const Index rows = length / ranks;
      Tensor<BFloat16> x({1, ranks, rows, width}), out(x.sizes());
      cp.forward(x, x, x, out, {}, {.mask = mask, .empty_row = empty_row});
    });
    return sent;
  };
  constexpr Index whole = Index{ranks} * length / ranks * width * 2 * 2;  // K and V of a rank's rows as bf16, in bytes
  constexpr Index agreement = 4096;                                       // at most, of texts and lengths
  const auto near = [&](Index sent, Index payload) { return sent >= payload && sent <= payload + agreement; };
  for (const Index sent : bytes_of({}, EmptyRow::kZero)) EXPECT_TRUE(near(sent, 3 * whole)) << sent;
  // Rank r is read by itself and later ranks.
  const auto causal = bytes_of(Mask::causal(), EmptyRow::kZero);
  for (std::size_t r = 0; r < ranks; ++r)
    EXPECT_TRUE(near(causal[r], static_cast<Index>(3 - r) * whole)) << r << ": " << causal[r];
  // Of each rank the last block of 128 keys, by the next one.
  const auto window = bytes_of(Mask::window(100, 0), EmptyRow::kZero);
  for (std::size_t r = 0; r < 3; ++r) EXPECT_TRUE(near(window[r], whole * 128 / 512)) << r << ": " << window[r];
  EXPECT_TRUE(near(window[3], 0)) << window[3];
  const std::vector<Index> begins{0, 256, 512, 1024, 1536, 2048};
  const Mask documents = Mask::documents(begins);
  for (const Index sent : bytes_of(documents, EmptyRow::kZero)) EXPECT_TRUE(near(sent, 0)) << sent;
  // A mean over all values reads all values.
  for (const Index sent : bytes_of(documents, EmptyRow::kMean)) EXPECT_TRUE(near(sent, 3 * whole)) << sent;
  // A ring passes each row on once: to the next rank but that of its owner, or no further than it is needed.
  for (const Index sent : bytes_of({}, EmptyRow::kZero, Method::kRing)) EXPECT_TRUE(near(sent, 3 * whole)) << sent;
  const auto ring = bytes_of(Mask::causal(), EmptyRow::kZero, Method::kRing);
  for (std::size_t r = 0; r < ranks; ++r)
    EXPECT_TRUE(near(ring[r], static_cast<Index>(r == 3 ? 0 : r + 1) * whole)) << r << ": " << ring[r];
  // Ulysses: of q, k and v the heads of the three other ranks, then out back.
  for (const Index sent : bytes_of({}, EmptyRow::kZero, Method::kUlysses))
    EXPECT_TRUE(near(sent, 3 * 2 * whole / ranks)) << sent;
}

// A ring passes on what others need until they have what they can have; then they learn that this rank is gone.
TEST(CutTraffic, ACallbackThatThrowsOnOneRankEndsAll) {
  for (const auto& [method, chunk] :
      {std::pair(Method::kAllGather, 0), {Method::kAllGather, 1}, {Method::kUlysses, 0}, {Method::kRing, 1}}) {
    const auto run = [&](bool forward, int thrower) {
      dist::run_in_process(3, [&](Transport& transport) {
        Context context({.threads = 1, .executor = nullptr});
        ContextParallel cp(transport, {.method = method, .chunk = chunk}, context);
        const bool throws = transport.rank() == thrower;
        AttentionOptions options;
        options.score_mod = score_mod(
            [throws](auto s, Index, Index, Index, Index key) {
              if (throws && key > 300) throw OptionError("mine");
              return s;
            },
            [](auto, Index, Index, Index, Index) { return 1; });
        const auto rows = cp.rows(700);
        const Index count = rows[0].count();
        Tensor<float> mine({1, 3, count, 128}), out(mine.sizes()), my_lse({1, 3, count}), dq(mine.sizes()),
            dk(mine.sizes());
        if (forward) return cp.forward(mine, mine, mine, out, my_lse, options);
        AttentionGradients<float> wanted;
        wanted.dq = dq, wanted.dk = dk;
        cp.backward(mine, mine, mine, out, my_lse, mine, wanted, options);
      });
    };
    for (int thrower = 0; thrower < 3; ++thrower) {
      EXPECT_EQ(text_of<OptionError>([&] { run(true, thrower); }), "mine");
      EXPECT_EQ(text_of<OptionError>([&] { run(false, thrower); }), "mine");
    }
  }
}

TEST(CutTraffic, ADifferenceIsTheSameErrorOnEveryRank) {
  Tensor<float> q({1, 2, 32, 8}), narrow_q({1, 2, 32, 4}), out({1, 2, 32, 8});
  const auto error_of = [&](const auto& call) {
    std::vector<std::string> texts(3);
    dist::run_in_process(3, [&](Transport& transport) {
      Context context({.threads = 1, .executor = nullptr});
      Tensor<float> own_out({1, 2, 32, 8});
      texts[static_cast<std::size_t>(transport.rank())] =
          text_of<Error>([&] { call(transport, context, own_out, transport.rank() == 1); });
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    return texts[0];
  };
  const auto forward = [&](Transport& transport, Context& context, Tensor<float>& to, ContextParallelOptions cut,
                           const AttentionOptions& options, const Tensor<float>& x) {
    ContextParallel(transport, cut, context).forward(x, x, q, to, {}, options);
  };
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool other) {
    forward(t, c, to, {}, {.softcap = other ? 5.0 : 0.0}, q);
  }),
      {"softcap", "rank 0 has 0", "rank 1 has 5"});
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool other) {
    forward(t, c, to, {}, {.mask = other ? Mask::causal() : Mask()}, q);
  }),
      {"mask", "everything", "causal"});
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool other) {
    forward(t, c, to, {}, {}, other ? narrow_q : q);
  }),
      {"the same q", "f32 [1, 2, T, 8]", "f32 [1, 2, T, 4]"});
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool other) {
    forward(t, c, to, {.layout = other ? dist::Layout::kZigZag : dist::Layout::kContiguous}, {}, q);
  }),
      {"layout", "zig-zag"});
  expect_parts(error_of([&](Transport& t, Context&, Tensor<float>& to, bool other) {
    Context own({.threads = 1, .isa = other ? Isa::kScalar : supported_isas().back(), .executor = nullptr});
    forward(t, own, to, {}, {}, q);
  }),
      {"instruction set", "scalar"});
  // Wrong on every rank alike, or in lengths: still no wait without end.
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool) {
    const Tensor<float> spread({1, 2, 32, 16});
    const View<const float, 4> every_other(spread.data(), {1, 2, 32, 8}, {1024, 512, 16, 2});
    ContextParallel(t, {}, c).forward(q, every_other, q, to, {}, {});
  }),
      {"the last axis of k", "stride 2"});
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool) {
    forward(t, c, to, {.method = Method::kUlysses}, {}, q);
  }),
      {"Ulysses", "got 2 heads, 3 ranks", "kAllGather"});
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool) {
    forward(t, c, to, {}, {.part = {.queries = 96}}, q);
  }),
      {"part"});
  expect_parts(error_of([&](Transport& t, Context& c, Tensor<float>& to, bool other) {
    const Tensor<float> less({1, 2, 31, 8});
    Tensor<float> less_out({1, 2, 31, 8});
    ContextParallel(t, {}, c).forward(other ? less : q, q, q, other ? less_out : to, {}, {});
  }),
      {"rows(T)", "rank 1 must hold 32", "got 31"});
}

}  // namespace
}  // namespace qkv::test

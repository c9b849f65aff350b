// Bits::kInvariant: a row of out and lse has one set of bits, alone or among any others: token by token on any cache,
// in chunks, in the whole sequence, in any ragged batch, with any number of threads. Under any mask: tests/invariant.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "qkv/kv_cache.h"
#include "qkv/varlen.h"
#include "support/cases/caches.h"
#include "support/checks/bounds.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/random.h"

namespace qkv::test {
namespace {

template <class T> class Invariant : public testing::Test {};
TYPED_TEST_SUITE(Invariant, StorageTypes);

/// One sequence, and what its queries see of it: query i stands at position i.
struct Row {
  const char* name;
  Index group, length, head_dim, v_head_dim;
  Mask mask;
  bool sinks = false, bias = false, alibi = false;
  double softcap = 0;
  bool wild = false;  // rows whose scores and values leave the safe range of the fast softmax
};

std::vector<Row> rows() {
  const Mask causal = Mask::causal(Align::kBottomRight);
  const auto window = [](Index keys) { return Mask::window(keys - 1, 0, Align::kBottomRight); };
  return {
      {"causal", 1, 300, 24, 20, causal},
      {"causal, groups of 4", 4, 260, 16, 16, causal},
      {"causal, groups of 3, narrow", 3, 150, 5, 3, causal},
      {"causal, wide", 2, 140, 80, 72, causal},
      {"causal, groups of 8, odd", 8, 150, 37, 45, causal},
      {"window", 2, 330, 20, 12, window(37)},
      {"window and first keys", 2, 300, 16, 16, causal & (window(50) | Mask::first(3))},
      {"dilated", 1, 280, 16, 16, causal & Mask::dilated(3, Align::kBottomRight)},
      {"soft cap, sinks", 2, 200, 12, 12, causal, true, false, false, 5},
      {"bias by key", 4, 270, 16, 24, causal, false, true},
      {"ALiBi", 2, 230, 16, 16, causal, false, false, true},
      {"ALiBi and bias, window", 1, 300, 8, 8, window(70), false, true, true},
      {"wild", 1, 300, 16, 16, causal, false, false, false, 0, true},
      {"wild, groups, window", 2, 300, 16, 16, window(90), true, false, false, 0, true},
  };
}

/// Tokens [begin, end) of [B, H, T, width].
template <class T> View<const T, 4> tokens(const Tensor<T>& x, Index begin, Index end) {
  return View<const T, 4>(x).sliced(2, begin, end);
}

/// [1, heads, T, width] random numbers. Wild: some rows are larger, by a factor of up to `most`.
template <class T>
Tensor<T> random_rows(Index heads, Index length, Index width, std::uint64_t seed, bool wild, double most) {
  Tensor<T> x({1, heads, length, width});
  Random random(seed);
  double factor = 1;
  for (Index n = 0; n < x.count(); ++n) {
    if (n % width == 0) factor = wild && random.below(5) == 0 ? std::pow(most, random.unit()) : 1;
    x.data()[n] = number_as<T>(factor * random.symmetric());
  }
  return x;
}

template <class T> struct Sequence {
  using Sum = Accumulator<T>;
  static constexpr Index kHeads = 2;  // of keys and values
  Row row;
  Tensor<T> q, k, v;
  Tensor<Sum> sinks{{kHeads * row.group}}, bias{{1, 1, 1, row.length}};

  explicit Sequence(const Row& r, std::uint64_t seed = 1)
      : row(r),
        q(random_rows<T>(kHeads * r.group, r.length, r.head_dim, seed, r.wild, 300)),
        k(random_rows<T>(kHeads, r.length, r.head_dim, seed + 1, r.wild, 30)),
        v(random_rows<T>(kHeads, r.length, r.v_head_dim, seed + 2, r.wild, 1e4)) {
    Random random(seed + 3);
    for (Sum& x : sinks.span()) x = static_cast<Sum>(random.symmetric());
    for (Sum& x : bias.span())
      x = random.below(9) == 0 ? -std::numeric_limits<Sum>::infinity() : Sum(random.symmetric());
  }

  /// Options of a call that sees the first `keys` keys.
  AttentionOptions options(Index keys) const {
    AttentionOptions o{.mask = row.mask, .softcap = row.softcap, .bits = Bits::kInvariant};
    if (row.sinks) o.sinks = SinkView(View<const Sum, 1>(sinks));
    if (row.bias) o.bias = BiasView(View<const Sum, 4>(bias.data(), {1, 1, 1, keys}));
    if (row.alibi) o.position_bias = PositionBias::alibi(alibi_slopes(kHeads * row.group), Align::kBottomRight);
    return o;
  }
};

/// The same bits, or both NaN.
template <class T> bool same_number(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(number_as<double>(a)) && std::isnan(number_as<double>(b)));
}

/// out and lse of the sequence. Queries arrive in pieces [begin, next(begin)), each with the keys up to its end: dense,
/// or on a cache.
template <class T> struct Pieces {
  Tensor<T> out;
  Tensor<Accumulator<T>> lse;

  template <class Next> Pieces(const Sequence<T>& s, Context& context, const Next& next, KVCache* cache = nullptr)
      : out({1, s.q.size(1), s.row.length, s.row.v_head_dim}), lse({1, s.q.size(1), s.row.length}) {
    for (Index begin = 0, end; begin < s.row.length; begin = end) {
      end = std::min(next(begin), s.row.length);
      const AttentionOutputs<T> piece{
          .out = View<T, 4>(out).sliced(2, begin, end), .lse = View<Accumulator<T>, 3>(lse).sliced(2, begin, end)};
      if (cache == nullptr) {
        attention_forward(
            tokens(s.q, begin, end), tokens(s.k, 0, end), tokens(s.v, 0, end), piece, s.options(end), context);
        continue;
      }
      cache->append(tokens(s.k, begin, end), tokens(s.v, begin, end));
      attention_forward(tokens(s.q, begin, end), cache->key_value(), piece, s.options(end), context);
    }
  }
  bool operator==(const Pieces& other) const {
    return std::ranges::equal(out.span(), other.out.span(), same_number<T>) &&
           std::ranges::equal(lse.span(), other.lse.span(), same_number<Accumulator<T>>);
  }
};

/// All of it in one call.
template <class T> Pieces<T> whole(const Sequence<T>& s, Context& context) {
  return Pieces<T>(s, context, [&](Index) { return s.row.length; });
}

TYPED_TEST(Invariant, ChunksAndEveryCacheAreTheWhole) {
  using T = TypeParam;
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    const Sequence<T> s(row);
    const Index last = row.length - 40;  // the rows that are computed one by one
    for (const CacheKind kind :
        {CacheKind::kContiguous, CacheKind::kPages1, CacheKind::kPages16, CacheKind::kPages100}) {
      for_each_isa(2, [&](Context& context) {
        KVCache cache = empty_cache(kind, kStorageOf<T>, 1, 2, row.head_dim, row.v_head_dim, row.length);
        const auto next = [&](Index begin) { return begin < last ? std::min(begin + 57, last) : begin + 1; };
        const Pieces<T> expected = whole(s, context);
        EXPECT_TRUE(Pieces<T>(s, context, next, &cache) == expected) << cache_name(kind);
        if (kind != CacheKind::kContiguous) return;
        EXPECT_TRUE(Pieces<T>(s, context, next) == expected) << "dense";
      });
    }
  }
}

/// A cache of bf16 holds what bf16 tensors hold.
TEST(InvariantStorage, ABf16CacheIsTheRoundedWhole) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    Sequence<float> s(row);
    for (Tensor<float>* x : {&s.k, &s.v}) {
      for (float& number : x->span()) number = static_cast<float>(BFloat16(number));
    }
    for_each_isa(2, [&](Context& context) {
      KVCache cache =
          empty_cache(CacheKind::kPages16, CacheStorage::kBF16, 1, 2, row.head_dim, row.v_head_dim, row.length);
      const auto next = [](Index begin) { return begin + (begin % 3 == 0 ? 1 : 5); };
      EXPECT_TRUE(Pieces<float>(s, context, next, &cache) == whole(s, context));
    });
  }
}

TYPED_TEST(Invariant, ARingIsTheWindow) {
  using T = TypeParam;
  const Row row{"ring", 2, 200, 16, 16,
      Mask::causal(Align::kBottomRight) & (Mask::window(39, -1, Align::kBottomRight) | Mask::first(2))};
  const Sequence<T> s(row);
  for_each_isa(2, [&](Context& context) {
    KVCache ring = empty_cache(CacheKind::kRing, kStorageOf<T>, 1, 2, 16, 16, row.length, 40, 9, 2);
    const auto next = [](Index begin) { return begin + (begin % 2 == 0 ? 1 : 9); };
    EXPECT_TRUE(Pieces<T>(s, context, next, &ring) == whole(s, context));
  });
}

TYPED_TEST(Invariant, RaggedBatchesAndThreadsAreEachAlone) {
  using T = TypeParam;
  for (const Row& row : rows()) {
    if (row.bias || row.alibi) continue;  // differ per sequence
    SCOPED_TRACE(row.name);
    const Sequence<T> s(row);
    const std::vector<Index> lengths = {1, 90, row.length, 64, 17};
    std::vector<Index> offsets = {0};
    for (const Index length : lengths) offsets.push_back(offsets.back() + length);
    const Index total = offsets.back(), heads = s.q.size(1);
    Tensor<T> q({total, heads, row.head_dim}), k({total, 2, row.head_dim}), v({total, 2, row.v_head_dim});
    // Token t of sequence n is token t of s: a causal row depends on no later one.
    const auto each = [&](const Tensor<T>& of, const View<T, 3>& to, const auto& visit) {
      for (std::size_t n = 0; n < lengths.size(); ++n) {
        for_each_index({lengths[n], of.size(1), of.size(3)},
            [&](Index t, Index h, Index d) { visit(of.template view<4>()(0, h, t, d), to(offsets[n] + t, h, d)); });
      }
    };
    const auto copy = [](const T& from, T& to) { to = from; };
    each(s.q, q, copy);
    each(s.k, k, copy);
    each(s.v, v, copy);
    for_each_isa(3, [&](Context& context) {
      Context one({.threads = 1, .isa = context.isa()});
      Tensor<T> out({total, heads, row.v_head_dim});
      attention_varlen_forward(View<const T, 3>(q), View<const T, 3>(k), View<const T, 3>(v), {.out = out},
          {offsets, offsets}, s.options(row.length), context);
      each(whole(s, one).out, out, [](const T& alone, T& together) { ASSERT_TRUE(same_number(alone, together)); });
    });
  }
}

}  // namespace
}  // namespace qkv::test

// KVCache without attention: what it holds after any sequence of operations, and what rounding costs. The model is a
// vector of rows per sequence.
#include "qkv/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <span>

#include "support/cases/cache_rows.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

/// The tokens appended to a sequence; a ring holds its first tokens and those from `oldest` on.
struct Sequence {
  std::vector<Row> rows;
  Index oldest = 0;
};
using Model = std::map<Index, Sequence>;

void expect_is(const KVCache& cache, const Model& model) {
  std::vector<Index> numbers;
  for (const auto& [number, sequence] : model) numbers.push_back(number);
  ASSERT_TRUE(std::ranges::equal(cache.sequences(), numbers));
  for (const auto& [number, sequence] : model) {
    SCOPED_TRACE("sequence " + std::to_string(number));
    const auto rows = [&rows = sequence.rows](Index begin, Index end) {
      return std::vector<Row>(rows.begin() + begin, rows.begin() + end);
    };
    const Index end = std::ssize(sequence.rows), pinned = std::min(end, cache.config().first),
                begin = std::max(pinned, sequence.oldest);
    ASSERT_EQ(cache.length(number), end);
    ASSERT_EQ(held(cache, number, begin, end), rows(begin, end));
    ASSERT_EQ(held(cache, number, 0, pinned), rows(0, pinned));
    if (begin == pinned) continue;
    EXPECT_THROW(held(cache, number, begin - 1, end), OptionError);
    EXPECT_THROW(held(cache, number, 0, end), OptionError);
  }
}

/// Random operations on a cache and on its model.
struct Operations {
  KVCache cache;
  Model model;
  Random random;
  Index refused_full = 0, forks = 0;

  Operations(const KVCacheConfig& config, std::uint64_t seed) : cache(config), random(seed) {
    for (const Index s : cache.sequences()) model[s] = {};
  }

  Index any_sequence() {
    auto at = model.begin();
    std::advance(at, random.below(std::ssize(model)));
    return at->first;
  }

  void append() {
    std::vector<Index> sequences;
    for (const auto& [s, rows] : model) {
      if (random.below(2) == 0) sequences.push_back(s);
    }
    if (random.below(2) == 0) std::ranges::reverse(sequences);
    const KVCacheConfig& config = cache.config();
    const bool ring = config.layout == CacheLayout::kRing;
    const Index n = random.below(ring ? config.max_append + 1 : 9), before = cache.free_pages();
    const Rows rows = random_rows(std::ssize(sequences), n, random);
    try {
      cache.append(sequences, rows.k, rows.v);
    } catch (const CacheFullError&) {
      ++refused_full;
      EXPECT_EQ(cache.free_pages(), before);
      return;
    }
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      Sequence& sequence = model[sequences[b]];
      for (Index j = 0; j < n; ++j) sequence.rows.push_back(rows.row(static_cast<Index>(b), j));
      const Index kept = config.window + config.max_append - 1;
      if (ring) sequence.oldest = std::max(sequence.oldest, std::ssize(sequence.rows) - kept);
    }
  }
  void fork() {
    if (std::ssize(model) == cache.config().max_sequences) {
      EXPECT_THROW(cache.fork(any_sequence()), CacheFullError);
      return;
    }
    const Index from = any_sequence(), before = cache.free_pages();
    model[cache.fork(from)] = model[from];
    EXPECT_EQ(cache.free_pages(), before) << "a fork copies nothing";
    ++forks;
  }
  /// Refused where a ring has overwritten what the shorter sequence would see.
  void truncate() {
    const Index s = any_sequence(), length = std::ssize(model[s].rows), first = cache.config().first;
    const Index end = random.below(3) == 0 ? random.below(length + 1) : std::max<Index>(0, length - random.below(3));
    if (end > first && model[s].oldest > std::max(first, end - cache.config().window)) {
      EXPECT_THROW(cache.truncate(s, end), OptionError);
      return;
    }
    cache.truncate(s, end);
    model[s].rows.resize(static_cast<std::size_t>(end));
    if (end <= first) model[s].oldest = 0;
  }
  void free() {
    if (model.size() == 1) return;
    const Index s = any_sequence();
    cache.free(s);
    model.erase(s);
  }
  void add() {
    if (std::ssize(model) == cache.config().max_sequences) return;
    model[cache.add_sequence()] = {};
  }

  void step() {
    switch (random.below(8)) {
      case 0: return fork();
      case 1: return truncate();
      case 2: return random.below(2) == 0 ? free() : add();
      default: return append();
    }
  }
  void run(int steps) {
    for (int n = 0; n < steps; ++n) {
      step();
      ASSERT_NO_FATAL_FAILURE(expect_is(cache, model)) << "after operation " << n;
    }
  }
};

TEST(KVCache, AnyOperationsHoldWhatTheModelHolds) {
  for (const CacheLayout layout : {CacheLayout::kContiguous, CacheLayout::kPaged}) {
    Index full = 0, forks = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Operations operations(small_config(layout), seed);
      ASSERT_NO_FATAL_FAILURE(operations.run(60));
      full += operations.refused_full;
      forks += operations.forks;
      for (const auto& [s, rows] : operations.model) operations.cache.free(s);
      EXPECT_EQ(operations.cache.free_pages(), layout == CacheLayout::kPaged ? 25 : 5) << "a page was lost";
    }
    EXPECT_GT(full, 50);
    EXPECT_GT(forks, 100);
  }
}

/// A refusal for lack of pages is right: the sequences need more pages than there are, shared ones counted once.
TEST(KVCache, RefusesOnlyWhatDoesNotFit) {
  KVCacheConfig config = small_config(CacheLayout::kPaged);
  config.pages = 3;
  config.sequences = 1;
  KVCache cache(config);
  Random random(3);
  const Index zero = 0;
  const Rows six = random_rows(1, 6, random);
  cache.append({&zero, 1}, six.k, six.v);  // pages of 4: one full, one half
  const Index fork = cache.fork(0);
  EXPECT_EQ(cache.free_pages(), 1);
  const Rows one = random_rows(2, 1, random);
  const std::vector<Index> both = {0, fork};
  cache.append(both, one.k, one.v);  // one copies the half page, the other keeps it
  EXPECT_EQ(cache.free_pages(), 0);
  EXPECT_EQ(held(cache, 0).back(), one.row(0, 0));
  EXPECT_EQ(held(cache, fork).back(), one.row(1, 0));
  const Rows two = random_rows(2, 2, random);
  EXPECT_THROW(cache.append(both, two.k, two.v), CacheFullError);
  cache.append(both, one.k, one.v);
  EXPECT_EQ(cache.length(fork), 8);
}

/// Any appends, forks and truncations: the first tokens and the last ones are those of the model, the others are
/// refused.
TEST(KVCache, ARingHoldsItsLastTokensAndItsFirstForEver) {
  constexpr Index kWindow = 7, kAppend = 4, kSlots = kWindow + kAppend - 1;
  for (const Index first : {0, 1, 3, 12, 30}) {
    SCOPED_TRACE(first);
    KVCacheConfig config = small_config(CacheLayout::kRing);
    config.window = kWindow, config.max_append = kAppend, config.first = first, config.capacity = 0,
    config.sequences = 1;
    Operations operations(config, static_cast<std::uint64_t>(first));
    EXPECT_EQ(operations.cache.bytes(),
        static_cast<std::size_t>(5 * kHeads * (kSlots + first) * (kWidth + kValueWidth)) * sizeof(float));
    ASSERT_NO_FATAL_FAILURE(operations.run(400));
    EXPECT_GT(operations.forks, 5);
  }
}

TEST(KVCache, RoundsOnceToWhatItStores) {
  Random random(11);
  const Rows rows = random_rows(1, 30, random);
  const auto stored = [&](CacheStorage storage) {
    KVCacheConfig config = small_config(CacheLayout::kContiguous);
    config.sequences = 1;
    config.storage = storage;
    KVCache cache(config);
    cache.append(rows.k, rows.v);
    return held(cache, 0);
  };
  const auto f32 = stored(CacheStorage::kF32), bf16 = stored(CacheStorage::kBF16), f16 = stored(CacheStorage::kF16);
  for (Index j = 0; j < 30; ++j) {
    const Row exact = rows.row(0, j);
    const auto at = static_cast<std::size_t>(j);
    EXPECT_EQ(f32[at], exact);
    for (std::size_t d = 0; d < exact.size(); ++d) {
      EXPECT_EQ(bf16[at][d], static_cast<float>(BFloat16(exact[d])));
      EXPECT_EQ(f16[at][d], static_cast<float>(Float16(exact[d])));
    }
  }
}

/// |x - stored| <= max |row| / 254, and a little for the roundings of float; 0 for a row below 2^-100.
TEST(KVCache, IntegersAreOffByHalfAStepAtMost) {
  Random random(13);
  constexpr Index n = 200, width = 40;
  Tensor<float> k({1, 1, n, width}), v({1, 1, n, width}), read_k(k.sizes()), read_v(v.sizes());
  for (Tensor<float>* t : {&k, &v}) {
    for (Index j = 0; j < n; ++j) {
      const double size = std::ldexp(1.0, static_cast<int>(random.below(200)) - 120);
      for (Index d = 0; d < width; ++d) t->data()[j * width + d] = static_cast<float>(size * random.symmetric());
    }
  }
  KVCache cache({.head_dim = width, .storage = CacheStorage::kInt8, .capacity = n});
  cache.append(k, v);
  EXPECT_EQ(cache.bytes(), static_cast<std::size_t>(n * (2 * width + 8)));
  cache.read(0, 0, View<float, 3>(read_k.data(), {1, n, width}), View<float, 3>(read_v.data(), {1, n, width}));
  double worst = 0;
  for (const auto& [exact, got] : {std::pair(&k, &read_k), std::pair(&v, &read_v)}) {
    for (Index j = 0; j < n; ++j) {
      double largest = 0;
      for (Index d = 0; d < width; ++d) largest = std::max(largest, std::abs(double{exact->data()[j * width + d]}));
      for (Index d = 0; d < width; ++d) {
        const double error = std::abs(double{exact->data()[j * width + d]} - double{got->data()[j * width + d]});
        const double bound = std::max(largest / 254 * (1 + 1e-4), largest < 0x1p-100 ? largest : 0.0);
        ASSERT_LE(error, bound) << "row " << j;
        if (largest >= 0x1p-100) worst = std::max(worst, error / bound);
      }
    }
  }
  EXPECT_GT(worst, 0.9) << "the bound is not tight";
}

/// A step is the least f16 that is a seventh of the largest of 32 numbers, on every instruction set the same; a number
/// is a whole multiple of it, half of one off at most. Widths end within each kind of piece.
TEST(KVCache, IntegersOfFourBitsAreOffByHalfAStepAtMost) {
  constexpr Index n = 60;
  for (const Index width : {1, 31, 33, 64, 80, 97, 128, 150, 200}) {
    Random random(17);
    Tensor<float> k({1, 1, n, width}), v({1, 1, n, 1});
    for (Index j = 0; j < n; ++j) {
      const double size = std::ldexp(1.0, static_cast<int>(random.below(40)) - 22);
      for (Index d = 0; d < width; ++d) k.data()[j * width + d] = static_cast<float>(size * random.symmetric());
    }
    double worst = 0;
    for_each_isa(1, [&](Context& context) {
      KVCache cache({.head_dim = width, .v_head_dim = 1, .storage = CacheStorage::kInt4, .capacity = n}, context);
      cache.append(k, v);
      Tensor<float> got({1, n, width}), got_v({1, n, 1});
      cache.read(0, 0, got, got_v);
      for (Index j = 0; j < n; ++j) {
        for (Index begin = 0; begin < width; begin += 32) {
          const std::span<const float> exact(
              &k.data()[j * width + begin], static_cast<std::size_t>(std::min<Index>(32, width - begin)));
          float largest = 0;
          for (const float x : exact) largest = std::max(largest, std::abs(x));
          Float16 step(largest / 7);
          if (static_cast<float>(step) * 7 < largest) ++step.bits;
          const double unit = static_cast<float>(step);
          for (std::size_t d = 0; d < exact.size(); ++d) {
            const double stored = got.data()[j * width + begin + static_cast<Index>(d)],
                         error = std::abs(stored - double{exact[d]});
            ASSERT_EQ(stored, std::nearbyint(stored / unit) * unit) << width << ", row " << j;
            ASSERT_LE(error, unit / 2 * (1 + 1e-5)) << width << ", row " << j;
            worst = std::max(worst, error / unit);
          }
        }
      }
    });
    EXPECT_TRUE(width == 1 || worst > 0.45) << "the bound is not tight";
  }
}

/// append and read take a context's instruction set; the default one's is QKV_ISA's.
TEST(KVCacheDeathTest, TakesTheForcedInstructionSet) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, in which no default context has been made
  const auto make = [] {
    setenv("QKV_ISA", "nonsense", 1);
    Context scalar({.threads = 1, .isa = Isa::kScalar});
    KVCache({.head_dim = 4, .capacity = 8}, scalar);  // reads no default
    try {
      KVCache({.head_dim = 4, .capacity = 8});
    } catch (const OptionError& error) {
      std::fputs(error.what(), stderr);
      std::exit(0);
    }
    std::exit(1);
  };
  EXPECT_EXIT(make(), testing::ExitedWithCode(0), "QKV_ISA: .* got \"nonsense\"");
}

TEST(KVCache, IntegersOfRowsThatAreNotFiniteAreNaN) {
  Tensor<float> k({1, 1, 3, 20}), v({1, 1, 3, 20});
  for (float& x : k.span()) x = 0.5F;
  k.data()[20 + 7] = std::numeric_limits<float>::infinity();
  v.data()[40 + 19] = std::numeric_limits<float>::quiet_NaN();
  KVCache cache({.head_dim = 20, .storage = CacheStorage::kInt8, .capacity = 3});
  cache.append(k, v);
  Tensor<float> read_k({1, 3, 20}), read_v({1, 3, 20});
  cache.read(0, 0, read_k, read_v);
  for (Index e = 0; e < 60; ++e) {
    EXPECT_EQ(std::isnan(read_k.data()[e]), e / 20 == 1);
    EXPECT_EQ(std::isnan(read_v.data()[e]), e / 20 == 2);
    if (e / 20 != 1) {
      EXPECT_EQ(read_k.data()[e], 0.5F);
    }
    if (e / 20 != 2) {
      EXPECT_EQ(read_v.data()[e], 0.0F);
    }
  }
}

/// Of 4 bits, the 32 numbers that share a scale; one that no f16 reaches too. Zeros stay.
TEST(KVCache, GroupsThatAreNotFiniteAreNaN) {
  constexpr Index width = 100;
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 458600.0F}) {
    Tensor<float> k({1, 1, 1, width}), v({1, 1, 1, width});
    k.data()[70] = bad;
    v.data()[99] = 458528.0F;
    for_each_isa(1, [&](Context& context) {
      KVCache cache({.head_dim = width, .storage = CacheStorage::kInt4, .capacity = 1}, context);
      EXPECT_EQ(cache.bytes(), 2U * 72U);
      cache.append(k, v);
      Tensor<float> read_k({1, 1, width}), read_v({1, 1, width});
      cache.read(0, 0, read_k, read_v);
      for (Index d = 0; d < width; ++d) {
        EXPECT_EQ(std::isnan(read_k.data()[d]), d / 32 == 2) << d;
        if (d / 32 != 2) {
          EXPECT_EQ(read_k.data()[d], 0.0F);
        }
        EXPECT_EQ(read_v.data()[d], v.data()[d]);
      }
    });
  }
}

TEST(KVCache, ColumnsOfKeysOfFourBitsAreWholePieces) {
  const KVCacheConfig config{.head_dim = 576, .storage = CacheStorage::kInt4, .capacity = 1, .values_in_keys = true};
  for (const Index width : {128, 512, 576}) {
    KVCacheConfig one = config;
    one.v_head_dim = width;
    KVCache cache(one);
    Tensor<float> k({1, 1, 1, 576}), read_k({1, 1, 576}), read_v({1, 1, width});
    for (Index d = 0; d < 576; ++d) k.data()[d] = static_cast<float>(d % 15 - 7);
    cache.append(k, {});
    cache.read(0, 0, read_k, read_v);
    for (Index d = 0; d < width; ++d) EXPECT_EQ(read_v.data()[d], read_k.data()[d]);
  }
  KVCacheConfig cut = config;
  cut.v_head_dim = 64;
  EXPECT_THROW(KVCache{cut}, OptionError);
}

}  // namespace
}  // namespace qkv::test

// Families of key/value caches: storage, memory layout, lengths of the sequences, masks; rings.
#include "support/cases/product.h"
#include "support/checks/check_cached.h"
#include "support/random.h"
#include "sweep/family.h"

namespace qkv::test {
namespace {

constexpr std::array kStorages = {CacheStorage::kF32, CacheStorage::kF64, CacheStorage::kBF16, CacheStorage::kF16,
    CacheStorage::kInt8, CacheStorage::kInt4};
constexpr std::array<Index, 5> kQueries = {1, 2, 7, 16, 33};  // decode with one query and with several; tiles
constexpr std::array kMultiplied = {Option::kMask, Option::kHeads};
constexpr std::array kNotOnCaches = {Option::kDropout, Option::kCache};

/// Runs check(type) with the type of queries for a storage; 16-bit queries on their own storage and on f32.
template <class Check> void in_type_of(CacheStorage storage, bool half, const Check& check) {
  if (storage == CacheStorage::kF64) {
    check(double{});
  } else if (half && storage == CacheStorage::kBF16) {
    check(BFloat16{});
  } else if (half && (storage == CacheStorage::kF16 || storage == CacheStorage::kF32)) {
    check(Float16{});
  } else {
    check(float{});
  }
}

/// Masks that mean the same for every length of a sequence: not those that are aligned to its end.
bool counts_from_the_start(MaskKind mask) {
  switch (mask) {
    case MaskKind::kCausalBottomRight:
    case MaskKind::kWindow:
    case MaskKind::kSliding:
    case MaskKind::kWindowAndKeep:
    case MaskKind::kStreaming:
    case MaskKind::kKeys:  // lists keys of the longest
    case MaskKind::kKeysAndCausal:
    case MaskKind::kDocuments:  // and those that may draw such a leaf
    case MaskKind::kDocumentGaps:
    case MaskKind::kChunkedOrDilated:
    case MaskKind::kExpression: return false;
    default: return !needs_square(mask);
  }
}

constexpr Index kCacheCount = static_cast<Index>(
    kMaskNames.size() * case_values::kHeads.size() * kLayouts.size() * kStorages.size() * kQueries.size() * 2);

bool run_cache(Index n, Worst& worst) {
  Digits digits(n);
  const Index kinds = product_count(kMultiplied), mask_and_heads = digits.next(kinds);
  const CacheKind kind = digits.of(kLayouts);
  const CacheStorage storage = digits.of(kStorages);
  const Index q_len = digits.of(kQueries);
  const bool own_lengths = digits.next(2) == 1;
  Random random(static_cast<std::uint64_t>(n) + 99);
  for (int draw = 0; draw < 50; ++draw) {
    // Any case with this mask, then the required queries, lengths and alignment.
    const auto drawn =
        product_case(mask_and_heads + kinds * random.below(1000000), kMultiplied, kNotOnCaches, kProductWork);
    if (!drawn) continue;
    AttentionCase each = *drawn;
    each.layout = Layout::kBhtd;
    each.q_len = q_len;
    if (needs_square(each.mask)) each.kv_len = q_len;
    if (each.empty_row == EmptyRow::kMean) each.empty_row = EmptyRow::kNaN;
    std::vector<Index> lengths(static_cast<std::size_t>(each.batch), each.kv_len);
    if (own_lengths) {
      if (!counts_from_the_start(each.mask) || each.batch == 1) return false;
      each.seed = 2 * static_cast<std::uint64_t>(n);  // even: position biases start at the first key
      for (std::size_t b = 1; b < lengths.size(); ++b) lengths[b] = random.below(each.kv_len + 1);
      // A sequence without keys is not a row without keys: out is 0 under every policy.
      if (each.empty_row == EmptyRow::kNaN && std::ranges::count(lengths, 0) > 0) continue;
      if (each.position != PositionKind::kNone && each.q_len == each.kv_len) continue;
    }
    if (!each.legal() || each.work() > kProductWork) continue;
    in_type_of(
        storage, random.below(2) == 0, [&]<class T>(T) { check_cached<T>(each, kind, storage, lengths, 1, worst); });
    return true;
  }
  return false;
}

constexpr std::array<Index, 3> kGroups = {1, 2, 4};
constexpr std::array<Index, 5> kWindows = {1, 7, 64, 90, 200};
constexpr std::array<Index, 4> kAppends = {1, 3, 16, 30};
constexpr std::array<Index, 4> kFirsts = {0, 1, 5, 70};
constexpr Index kRingCount = static_cast<Index>(kGroups.size() * kWindows.size() * kAppends.size() * kStorages.size());

bool run_ring(Index n, Worst&) {
  Digits digits(n);
  RingCase ring;
  ring.group = digits.of(kGroups);
  ring.window = digits.of(kWindows);
  ring.max_append = digits.of(kAppends);
  ring.storage = digits.of(kStorages);
  ring.most = 140 + 20 * (n % 7);
  ring.first = kFirsts[static_cast<std::size_t>(n % 4)];
  ring.seed = static_cast<std::uint64_t>(n);
  in_type_of(ring.storage, n % 2 == 0, [&]<class T>(T) { check_ring<T>(ring); });
  return true;
}

}  // namespace

Family cache_family() {
  return {"cache", "mask x heads x layout of memory x storage x queries x lengths equal or not",
      "keys, widths, numbers, bias, soft cap, scale, sinks, position bias, callback, empty rows", kCacheCount,
      run_cache};
}
Family ring_family() {
  return {"ring", "heads of a group x window x largest append x storage", "how tokens arrive, first keys", kRingCount,
      run_ring};
}

}  // namespace qkv::test

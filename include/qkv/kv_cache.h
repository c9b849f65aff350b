// Keys and values that are kept from call to call: KVCache owns them, and a call of attention reads them through a
// KeyValue.
//
//   KVCache cache({.num_kv_heads = 8, .head_dim = 128, .capacity = 4096});
//   cache.append(k, v);                                                        // k [B,Hkv,n,D], v [B,Hkv,n,Dv]
//   attention_forward(q, cache.key_value(), {.out = out}, {.mask = Mask::causal(Align::kBottomRight)});
//
// Layouts (a page holds rows [Hkv, page_size, D] in one piece; every sequence has a list of pages):
//
//   contiguous      one page holds a sequence            [0 1 2 3 4 5 . .]
//   ring            position p lies in slot p % slots    [8 9 2 3 4 5 6 7]   slots = window + max_append - 1
//   ring, first 2   the first 2 in slots of their own    [8 9 . 3 4 5 6 7] [0 1]
//   paged           pages from a common pool             pages 4 -> [0 1 2 3], 7 -> [4 5 . .]
//
// Positions are absolute in every layout: the mask sees key j of sequence b as j = 0 .. length[b] - 1, whatever has
// been overwritten, and query i of Tq stands at position length[b] - Tq + i. So Mask::causal(Align::kBottomRight) lets
// the last query see the last key of *its* sequence; the Tk of the axis of a mask or bias, and of causal() alone, is
// the largest length. The layout changes where numbers are read, not how they are summed: results are bit-identical in
// every layout.
//
// A ring shows query i the last `window` keys up to its own, and the first `first` keys, which it pins (the sinks of
// StreamingLLM). It accepts a mask that keeps all older keys (no mask, causal) or none of them. A mask that keeps some
// of the other keys and drops some, as window(6, 0) | first(4) on a ring of first = 0, is an OptionError: no key is
// dropped silently.
//
// Sequences may share pages (fork). Shared pages are copy on write: a sequence that appends to one gets its own copy.
//
// Errors: ShapeError (sizes), OptionError (impossible numbers, a table entry that names no page), CacheFullError; each
// leaves the cache as it was. UnsupportedError for what a cache does not compute: see attention_forward below. Kwon et
// al. 2023, "PagedAttention" (arXiv:2309.06180); Xiao et al. 2023 (2309.17453): rings.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "qkv/attention.h"

namespace qkv::inline v0 {

/// The type that numbers are stored in. kInt8: an integer in -127 .. 127 times one scale per token and head, scale =
/// max |row| / 127, so that none is off by more than max |row| / 254 (1 + 2^-13); a row with a non-finite number is NaN
/// throughout. kInt4: an integer in -7 .. 7 times one scale in f16 for 32 elements of a row, the smallest that reaches
/// their largest magnitude, so that none is off by more than half a scale; 32 elements with a non-finite number, or one
/// above 458,528, become NaN. KVCache::error_bound says what that does to an answer.
using CacheStorage = StoredType;

enum class CacheLayout { kContiguous, kRing, kPaged };

/// The keys and values of one call: what a cache holds, or memory of the caller in one of these layouts. Everything is
/// borrowed, the tables too; a KeyValue that a cache returned is valid until that cache changes.
class QKV_API KeyValue {
 public:
  /// Holds no sequence.
  KeyValue() = default;

  /// k [B, Hkv, N, D], v [B, Hkv, N, Dv], of which the first lengths[b] tokens count; without lengths, all N.
  template <Operand K> static KeyValue contiguous(const K& k, In<K, 4> v, std::span<const Index> lengths = {}) {
    return contiguous_of(In<K, 4>(k), v, lengths);
  }
  /// Token j of sequence b in row j % page of page table(b, j / page) of k [P, Hkv, page, D], v [P, Hkv, page, Dv].
  /// table [B, M]; entries that no token needs are not read.
  template <Operand K>
  static KeyValue paged(const K& k, In<K, 4> v, View<const Index, 2> table, std::span<const Index> lengths) {
    return paged_of(In<K, 4>(k), v, table, lengths);
  }

  Index batch() const { return parts_.batch; }
  Index num_kv_heads() const { return parts_.num_kv_heads; }
  Index head_dim() const { return parts_.head_dim; }
  Index v_head_dim() const { return parts_.v_head_dim; }
  CacheStorage storage() const { return parts_.storage; }
  Index length(Index b) const {
    if (parts_.lengths == nullptr) return parts_.max_length;
    return parts_.lengths[parts_.sequences == nullptr ? b : parts_.sequences[b]];
  }
  /// The Tk of the axis of a mask or bias: the largest length.
  Index max_length() const { return parts_.max_length; }

  /// Whether some keys are hidden from some queries, whatever the mask.
  bool hides_keys() const { return parts_.window > 0; }

  /// One matrix, of k or v: where row 0 of page 0 of head 0 lies, and strides in elements.
  struct Matrix {
    const void* rows = nullptr;
    const float* scales = nullptr;  // kInt8 only
    Index page_stride = 0, head_stride = 0, row_stride = 0, scale_page_stride = 0, scale_head_stride = 0;
  };
  /// Position j of sequence s: row j % page_size of page pages[s * pages_stride + j / page_size % num_pages]; without a
  /// table, page s holds sequence s.
  struct Parts {
    CacheStorage storage = CacheStorage::kF32;
    Matrix k, v;
    const Index* sequences = nullptr;  // [B]; null: b itself
    const Index* lengths = nullptr;    // by sequence; null: max_length
    const Index* firsts = nullptr;     // by sequence: older keys are overwritten; null: those that exceed the pages
    const Index* pages = nullptr;
    Index pages_stride = 0, num_pages = 1, page_size = 1;
    Index window = 0;  // of a ring; 0: no window
    // of a ring: number of first keys that are never overwritten; j lies in row page_size + j of the page
    Index pinned = 0;
    Index batch = 0, num_kv_heads = 0, head_dim = 0, v_head_dim = 0, max_length = 0;
    Index given_pages = 0;  // of the caller's memory; 0: a KVCache's own
  };
  explicit KeyValue(const Parts& parts) : parts_(parts) {}
  const Parts& parts() const { return parts_; }

 private:
  static KeyValue contiguous_of(const AnyView& k, const AnyView& v, std::span<const Index> lengths);
  static KeyValue paged_of(
      const AnyView& k, const AnyView& v, View<const Index, 2> table, std::span<const Index> lengths);

  Parts parts_;
};

/// What a layout does not read stays as it is here (OptionError).
struct KVCacheConfig {
  Index num_kv_heads = 1;
  Index head_dim = 0;
  Index v_head_dim = 0;  ///< 0: equal to head_dim
  CacheStorage storage = CacheStorage::kF32;
  CacheLayout layout = CacheLayout::kContiguous;
  Index sequences = 1;      ///< sequences at the start, numbered from 0, each empty
  Index max_sequences = 0;  ///< largest number at once, forks included; 0: `sequences`
  Index capacity = 0;       ///< contiguous: tokens per sequence; paged: the most of one, 0: what all pages hold
  Index window = 0;         ///< ring: keys that a query sees, including its own
  Index max_append = 1;     ///< ring: most tokens of one append, and queries of one call
  Index first = 0;          ///< ring: number of first tokens that are never overwritten and that every query sees
  Index page_size = 64;     ///< paged: tokens per page
  Index pages = 0;          ///< paged: pages of all sequences together
  /// v is the first v_head_dim columns of k (latent attention): held once, append takes a null v
  bool values_in_keys = false;
};

/// Not thread-safe: one writer, or any number of readers. Allocates everything when it is created and nothing
/// afterwards.
class QKV_API KVCache {
 public:
  /// append and read use the instruction set of the context, which may be destroyed afterwards.
  explicit KVCache(const KVCacheConfig& config, Context& context = Context::default_context());
  ~KVCache();
  /// One that was moved from can be assigned to or destroyed, no more.
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;

  const KVCacheConfig& config() const;

  /// Appends n tokens to every sequence, in ascending order of their numbers: k [B, Hkv, n, D], v [B, Hkv, n, Dv],
  /// rounded once to the stored type. double can be stored as kF64 only, and the other types as anything but kF64.
  template <Operand K> void append(const K& k, In<K, 4> v) { append_rows(sequences(), In<K, 4>(k), v); }
  /// The same for the given sequences, each at most once.
  template <Operand K> void append(std::span<const Index> sequences, const K& k, In<K, 4> v) {
    append_rows(sequences, In<K, 4>(k), v);
  }

  /// Every sequence, in ascending order; or the given ones, in the given order: borrowed while the KeyValue is used.
  /// OptionError for a number that is not the cache's.
  KeyValue key_value() const;
  KeyValue key_value(std::span<const Index> sequences) const;

  /// The numbers of all sequences, ascending.
  std::span<const Index> sequences() const;
  Index length(Index sequence) const;

  /// Adds an empty sequence and returns its number. CacheFullError when there are max_sequences already.
  Index add_sequence();
  /// Adds a sequence with the same tokens and returns its number. Pages are shared, copy on write.
  Index fork(Index sequence);
  /// Forgets all but the first `length` tokens. OptionError for a ring whose window there has been
  /// overwritten.
  void truncate(Index sequence, Index length);
  /// Removes the sequence; its pages and its number can be used again.
  void free(Index sequence);
  /// Every sequence becomes empty.
  void clear();

  /// Reads the stored tokens [begin, begin + n) into k [Hkv, n, D], v [Hkv, n, Dv].
  void read(Index sequence, Index begin, View<float, 3> k, View<float, 3> v) const { read_rows(sequence, begin, k, v); }
  void read(Index sequence, Index begin, View<double, 3> k, View<double, 3> v) const {
    read_rows(sequence, begin, k, v);
  }

  struct ErrorBound {
    double k = 0, v = 0;
  };
  /// How far a stored number of k, and of v, may be from the one that was appended; 0 of kF32 and kF64.
  ErrorBound error_bound() const;
  /// How far the answer to q [B, H, Tq, D] on key_value() may be from that on the rows as they were appended, whatever
  /// the mask, bias, soft cap or sinks: |out - exact| <= bound(b, h, i) for every number of a row, but for the rounding
  /// of the call itself. With errors e_k, e_v of stored numbers, a score moves by at most delta = |scale| sum_d |q_d|
  /// max_j e_k, and half the sum of a row's changes of weights is at most tanh(delta / 2), so bound = tanh(delta / 2)
  /// max_d (max_j v_jd - min_j v_jd) + max_j e_v, where a value of 0 counts too. The worst case: errors of both signs
  /// mostly cancel. Reads the whole cache once.
  template <Operand Q>
  void error_bound(const Q& q, const View<double, 3>& bound, std::optional<double> scale = {}) const {
    bound_rows(In<Q, 4>(q), bound, scale);
  }

  Index free_pages() const;   ///< contiguous and ring: one page per sequence
  std::size_t bytes() const;  ///< of keys, values and scales

 private:
  void append_rows(std::span<const Index> sequences, const AnyView& k, const AnyView& v);
  void read_rows(Index sequence, Index begin, const AnyView& k, const AnyView& v) const;
  void bound_rows(const AnyView& q, const View<double, 3>& bound, std::optional<double> scale) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace detail {
QKV_API void forward(
    const AnyView& q, const KeyValue& kv, const AnyOutputs& outputs, const AttentionOptions& options, Context& context);
QKV_API AttentionPlan plan(const AnyView& q, const KeyValue& kv, const AttentionOptions& options, Context& context);
}  // namespace detail

/// As attention_forward(q, k, v, ...), on a cache. q and out of 16 bits or float go with every storage but kF64, double
/// with kF64 only. With at most 16 queries per key/value head (Tq * H/Hkv) and Bits::kFast every byte of the cache is
/// read once and as it is stored. Weights and captures have max_length() keys; those beyond a sequence's length have no
/// weight. UnsupportedError: EmptyRow::kMean, dropout while training, and a part.
template <Operand Q> void attention_forward(const Q& q, const KeyValue& kv,
    const AttentionOutputs<ElementOf<Q>>& outputs, const AttentionOptions& options = {},
    Context& context = Context::default_context()) {
  detail::forward(In<Q, 4>(q), kv, detail::any(outputs), options, context);
}

/// Describes such a call; tiles are those of each sequence's own length. Says nothing of backward, which caches do not
/// have.
template <Operand Q> AttentionPlan attention_plan(const Q& q, const KeyValue& kv, const AttentionOptions& options = {},
    Context& context = Context::default_context()) {
  return detail::plan(In<Q, 4>(q), kv, options, context);
}

}  // namespace qkv::inline v0

// KVCache: which page holds which token, and how rows are written there. A contiguous cache has pages as large as a
// sequence may grow, a ring has pages that are overwritten cyclically; so fork, truncate and copy on write work alike
// for all. Every change is checked as a whole before its first step.
#include "qkv/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "attention/keys/key_source.h"
#include "attention/keys/kv_cache_config.h"
#include "attention/keys/page_pool.h"
#include "core/check.h"
#include "core/overlap.h"
#include "dispatch/kernels.h"

namespace qkv::inline v0 {
namespace {

constexpr const char* kAppend = "KVCache::append";

struct Free {
  void operator()(void* memory) const noexcept { free_aligned(memory); }
};

}  // namespace

struct [[gnu::visibility("hidden")]] KVCache::Impl {
  /// K or V of all pages: rows [pages, Hkv, page, row] of `width` numbers each, scales [pages, Hkv, page].
  struct Matrix {
    Index width = 0, row = 0;
    std::unique_ptr<std::byte, Free> rows;
    std::unique_ptr<float, Free> scales;
  };

  KVCacheConfig config;
  Index page_size, page_rows;  // tokens per page; with those that a ring pins
  Index table_width, most;     // pages, and tokens, per sequence
  std::size_t element_bytes;
  PagePool pool;
  Matrix k, v;
  std::vector<Index> lengths, firsts;  // per sequence; tokens before `first` are overwritten
  std::vector<Index> tables;           // [max_sequences, table_width]
  std::vector<Index> page_counts;      // per sequence
  std::vector<Index> live;             // sequence numbers, ascending
  std::vector<Index> marks;            // for append: shared pages that it will write to
  const CacheTable& kernels;

  Impl(const KVCacheConfig& c, Isa isa)
      : config(checked(c)),
        page_size(tokens_of_page(config)),
        page_rows(rows_of_page(config)),
        table_width(pages_of_sequence(config)),
        most(config.layout == CacheLayout::kRing ? Index{1} << 60
             : config.capacity > 0               ? config.capacity
                                                 : table_width * page_size),
        element_bytes(at(stored_bytes(config.storage))),
        pool(config.layout == CacheLayout::kPaged ? config.pages : config.max_sequences),
        lengths(at(config.max_sequences), -1),
        firsts(at(config.max_sequences), 0),
        tables(at(config.max_sequences * table_width), 0),
        page_counts(at(config.max_sequences), 0),
        kernels(kernel_tables(isa).cache) {
    live.reserve(lengths.size());
    marks.reserve(lengths.size());
    make(k, config.head_dim);
    if (!config.values_in_keys) make(v, config.v_head_dim);
    for (Index s = 0; s < config.sequences; ++s) start(s);
  }

  static std::size_t at(Index n) { return static_cast<std::size_t>(n); }
  Index pages() const { return config.layout == CacheLayout::kPaged ? config.pages : config.max_sequences; }
  bool is_ring() const { return config.layout == CacheLayout::kRing; }
  Index& page(Index s, Index n) { return tables[at(s * table_width + n)]; }

  void make(Matrix& m, Index width) const {
    m.width = width;
    m.row = row_elements(config.storage, width);
    const Index sizes[] = {pages(), config.num_kv_heads, page_rows, m.row};
    m.rows.reset(static_cast<std::byte*>(allocate_aligned(checked_count(sizes), element_bytes)));
    if (config.storage != CacheStorage::kInt8) return;
    m.scales.reset(static_cast<float*>(allocate_aligned(checked_count({sizes, 3}), sizeof(float))));
  }

  void start(Index s) {
    lengths[at(s)] = firsts[at(s)] = page_counts[at(s)] = 0;
    live.insert(std::lower_bound(live.begin(), live.end(), s), s);
  }
  void drop_pages(Index s, Index kept) {
    for (Index& count = page_counts[at(s)]; count > kept; --count) pool.release(page(s, count - 1));
  }

  void check_sequence(const char* function, Index s) const {
    check<OptionError>(s >= 0 && s < config.max_sequences && lengths[at(s)] >= 0, function,
        "sequence must be one of the cache's: got ", s);
  }
  Index unused_number(const char* function) const {
    check<CacheFullError>(
        live.size() < lengths.size(), function, "the cache already holds max_sequences: got ", live.size());
    return std::ranges::find(lengths, Index{-1}) - lengths.begin();
  }

  std::size_t row_offset(const Matrix& m, Index page_number, Index head, Index row) const {
    return at(((page_number * config.num_kv_heads + head) * page_rows + row) * m.row) * element_bytes;
  }
  float* scales_of(const Matrix& m, Index page_number, Index head, Index row) const {
    return m.scales == nullptr ? nullptr
                               : m.scales.get() + (page_number * config.num_kv_heads + head) * page_rows + row;
  }

  /// Rows [begin, begin + rows) of every head.
  void copy_rows(Index from, Index to, Index begin, Index rows) {
    for (const Matrix* m : {&k, &v}) {
      if (m->rows == nullptr) continue;  // values in keys
      for (Index g = 0; g < config.num_kv_heads; ++g) {
        std::memcpy(m->rows.get() + row_offset(*m, to, g, begin), m->rows.get() + row_offset(*m, from, g, begin),
            at(rows * m->row) * element_bytes);
        if (m->scales == nullptr) continue;
        std::memcpy(scales_of(*m, to, g, begin), scales_of(*m, from, g, begin), at(rows) * sizeof(float));
      }
    }
  }

  /// Whether the next token of s goes into a page that holds some already.
  bool writes_into_a_page(Index s) const {
    return page_counts[at(s)] > 0 && (is_ring() || lengths[at(s)] < page_counts[at(s)] * page_size);
  }
  Index pages_needed(Index tokens) const {
    return is_ring() ? (tokens > 0 ? 1 : 0) : (tokens + page_size - 1) / page_size;
  }

  /// Pages that must be free before n tokens are appended to each of the sequences.
  Index pages_to_allocate(std::span<const Index> sequences, Index n) {
    Index wanted = 0;
    marks.clear();
    for (const Index s : sequences) {
      wanted += pages_needed(lengths[at(s)] + n) - page_counts[at(s)];
      if (!writes_into_a_page(s)) continue;
      const Index last = page(s, page_counts[at(s)] - 1);
      if (pool.holders(last) > 1) marks.push_back(last);
    }
    // The last holder that writes to a page may keep it.
    std::sort(marks.begin(), marks.end());
    for (std::size_t begin = 0; begin < marks.size();) {
      std::size_t end = begin;
      while (end < marks.size() && marks[end] == marks[begin]) ++end;
      wanted += std::min(static_cast<Index>(end - begin), pool.holders(marks[begin]) - 1);
      begin = end;
    }
    return wanted;
  }

  /// Allocates pages for n more tokens; the last page becomes its own.
  void make_room(Index s, Index n) {
    if (writes_into_a_page(s)) {
      Index& last = page(s, page_counts[at(s)] - 1);
      if (pool.holders(last) > 1) {
        const Index own = pool.allocate();
        const Index length = lengths[at(s)];
        copy_rows(
            last, own, 0, is_ring() ? std::min(length, page_size) : length - (page_counts[at(s)] - 1) * page_size);
        copy_rows(last, own, page_size, std::min(length, config.first));
        pool.release(last);
        last = own;
      }
    }
    while (page_counts[at(s)] < pages_needed(lengths[at(s)] + n)) page(s, page_counts[at(s)]++) = pool.allocate();
  }

  /// Rows [..., n, width] where they lie.
  static void check_rows(const char* function, const char* name, const AnyView& rows, Index width) {
    const Index stride = rows.stride(rows.rank - 1);
    check<ShapeError>(rows.data != nullptr || rows.is_empty(), function, name, " must not be null: got sizes ", rows);
    check<ShapeError>(
        stride == 1 || width == 1, function, "the last axis of ", name, " must have stride 1: got ", stride);
  }
  void check_append(std::span<const Index> sequences, const AnyView& k_rows, const AnyView& v_rows) {
    const auto batch = static_cast<Index>(sequences.size());
    const Index n = k_rows.size(2);
    const auto check_sizes = [&](const char* name, const AnyView& rows, Index width) {
      check<ShapeError>(
          rows.has_sizes(batch, config.num_kv_heads, n, width) && n >= 0, kAppend, name, " must be ",
          [&] {
            return shape_text(std::array{batch, config.num_kv_heads, n, width}.data(), 4);
          },
          ": got ", rows);
      check_rows(kAppend, name, rows, width);
    };
    check_sizes("k", k_rows, config.head_dim);
    if (config.values_in_keys) {
      check<ShapeError>(
          v_rows.is_null(), kAppend, "with values_in_keys v must be null: it is read from k: got ", v_rows);
    } else {
      check_sizes("v", v_rows, config.v_head_dim);
    }
    check<OptionError>((k_rows.type == StoredType::kF64) == (config.storage == CacheStorage::kF64), kAppend,
        "double needs a cache of f64, and no other type may use one: got a cache of ", storage_name(config.storage));
    check<OptionError>(!is_ring() || n <= config.max_append, kAppend,
        "a ring takes at most max_append tokens at once: got ", n, " for ", config.max_append);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Index s = sequences[i];
      check_sequence(kAppend, s);
      check<OptionError>(std::ranges::find(sequences.first(i), s) == sequences.first(i).end(), kAppend,
          "a sequence must be named once: got ", s, " twice");
      check<CacheFullError>(lengths[at(s)] + n <= most, kAppend, "a sequence holds at most ", most, " tokens: got ",
          lengths[at(s)], " and ", n, " more for sequence ", s);
    }
    const Index wanted = n == 0 ? 0 : pages_to_allocate(sequences, n);
    check<CacheFullError>(
        wanted <= pool.free_pages(), kAppend, "there must be free pages: got ", pool.free_pages(), ", needed ", wanted);
  }

  void store(const Matrix& m, Index s, const AnyView& rows, Index b, Index n) {
    for (Index done = 0; done < n;) {
      const Index position = lengths[at(s)] + done;
      const bool pinned = position < config.first;
      const Index number = position < page_size ? 0 : position / page_size;  // most caches are one page: no division
      const Index row = pinned ? page_size + position : position - number * page_size;
      const Index page_number = page(s, is_ring() ? 0 : number);
      const Index count = std::min(n - done, (pinned ? page_rows : page_size) - row);
      for (Index g = 0; g < config.num_kv_heads; ++g) {
        kernels.store({.from = rows.at(b, g, done),
            .from_type = rows.type,
            .to = m.rows.get() + row_offset(m, page_number, g, row),
            .to_type = config.storage,
            .scales = scales_of(m, page_number, g, row),
            .from_stride = rows.stride(2),
            .to_stride = m.row,
            .count = count,
            .width = m.width});
      }
      done += count;
    }
  }

  void append(std::span<const Index> sequences, const AnyView& k_rows, const AnyView& v_rows) {
    check_append(sequences, k_rows, v_rows);
    const Index n = k_rows.size(2);
    if (n == 0) return;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Index s = sequences[i], b = static_cast<Index>(i);
      make_room(s, n);
      store(k, s, k_rows, b, n);
      if (v.rows != nullptr) store(v, s, v_rows, b, n);
      lengths[at(s)] += n;
      if (is_ring()) firsts[at(s)] = std::max(firsts[at(s)], lengths[at(s)] - page_size);
    }
  }

  KeyValue::Matrix matrix(const Matrix& m) const {
    const Index head = page_rows * m.row;
    return {m.rows.get(), m.scales.get(), config.num_kv_heads * head, head, m.row, config.num_kv_heads * page_rows,
        page_rows};
  }

  KeyValue key_value(std::span<const Index> sequences) const {
    KeyValue::Parts p;
    p.storage = config.storage;
    p.k = matrix(k);
    p.v = matrix(config.values_in_keys ? k : v);
    p.sequences = sequences.data();
    p.lengths = lengths.data();
    p.firsts = firsts.data();
    p.pages = tables.data();
    p.pages_stride = p.num_pages = table_width;
    p.page_size = page_size;
    p.window = config.window;
    p.pinned = config.first;
    p.batch = static_cast<Index>(sequences.size());
    p.num_kv_heads = config.num_kv_heads;
    p.head_dim = config.head_dim;
    p.v_head_dim = config.v_head_dim;
    for (const Index s : sequences) {
      check_sequence("KVCache::key_value", s);
      p.max_length = std::max(p.max_length, lengths[at(s)]);
    }
    return KeyValue(p);
  }

  void read(Index s, Index begin, const AnyView& k_rows, const AnyView& v_rows) const;
};

void KVCache::Impl::read(Index s, Index begin, const AnyView& k_rows, const AnyView& v_rows) const {
  constexpr const char* function = "KVCache::read";
  check_sequence(function, s);
  const Index n = k_rows.size(1);
  check<ShapeError>(k_rows.sizes == std::array<Index, 4>{config.num_kv_heads, n, config.head_dim} &&
                        ((config.values_in_keys && v_rows.is_null()) ||
                            v_rows.sizes == std::array<Index, 4>{config.num_kv_heads, n, config.v_head_dim}),
      function, "k must be [Hkv, n, D], v [Hkv, n, Dv]: got ", k_rows, ", ", v_rows);
  check_rows(function, "k", k_rows, config.head_dim);
  if (!v_rows.is_null()) check_rows(function, "v", v_rows, config.v_head_dim);
  const NamedBox outputs[] = {{"k", k_rows}, {"v", v_rows}};
  check_outputs(function, outputs, {});
  check<OptionError>((k_rows.type == StoredType::kF64) == (config.storage == CacheStorage::kF64), function,
      "a cache of f64 is read into double, other caches into float: got a cache of ", storage_name(config.storage));
  const Index oldest = firsts[at(s)] <= config.first ? 0 : firsts[at(s)], end = lengths[at(s)];
  const bool pinned = begin >= 0 && begin <= std::min(config.first, end) - n;
  check<OptionError>(
      pinned || (begin >= oldest && begin <= end - n), function, "tokens must be in ", oldest, "..", end,
      [&] { return config.first == 0 ? std::string() : " or in 0.." + std::to_string(config.first); }, ": got ", n,
      " from ", begin);
  const KeyValue kv = key_value({&s, 1});
  for (Index g = 0; g < config.num_kv_heads; ++g) {
    const HeadKeys head = KeySource(kv).head(0, g);
    for (Index j = 0; j < n; ++j) {
      kernels.read(head, head.k, begin + j, 1, config.head_dim, k_rows.at(g, j));
      if (!v_rows.is_null()) kernels.read(head, head.v, begin + j, 1, config.v_head_dim, v_rows.at(g, j));
    }
  }
}

KVCache::KVCache(const KVCacheConfig& config, Context& context)
    : impl_(std::make_unique<Impl>(config, context.isa())) {}
KVCache::~KVCache() = default;
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;

const KVCacheConfig& KVCache::config() const { return impl_->config; }
KeyValue KVCache::key_value() const { return impl_->key_value(impl_->live); }
KeyValue KVCache::key_value(std::span<const Index> sequences) const { return impl_->key_value(sequences); }
std::span<const Index> KVCache::sequences() const { return impl_->live; }
Index KVCache::free_pages() const { return impl_->pool.free_pages(); }

Index KVCache::length(Index sequence) const {
  impl_->check_sequence("KVCache::length", sequence);
  return impl_->lengths[Impl::at(sequence)];
}

std::size_t KVCache::bytes() const {
  const KVCacheConfig& c = impl_->config;
  const Index rows = impl_->pages() * c.num_kv_heads * impl_->page_rows;
  const std::size_t matrices = c.values_in_keys ? 1 : 2, scales = c.storage == CacheStorage::kInt8 ? sizeof(float) : 0;
  return Impl::at(rows) * (Impl::at(impl_->k.row + impl_->v.row) * impl_->element_bytes + matrices * scales);
}

Index KVCache::add_sequence() {
  const Index s = impl_->unused_number("KVCache::add_sequence");
  impl_->start(s);
  return s;
}

Index KVCache::fork(Index sequence) {
  constexpr const char* function = "KVCache::fork";
  impl_->check_sequence(function, sequence);
  const Index s = impl_->unused_number(function);
  impl_->start(s);
  impl_->lengths[Impl::at(s)] = impl_->lengths[Impl::at(sequence)];
  impl_->firsts[Impl::at(s)] = impl_->firsts[Impl::at(sequence)];
  const Index count = impl_->page_counts[Impl::at(s)] = impl_->page_counts[Impl::at(sequence)];
  for (Index n = 0; n < count; ++n) impl_->pool.share(impl_->page(s, n) = impl_->page(sequence, n));
  return s;
}

void KVCache::truncate(Index sequence, Index length) {
  constexpr const char* function = "KVCache::truncate";
  Impl& c = *impl_;
  c.check_sequence(function, sequence);
  Index& now = c.lengths[Impl::at(sequence)];
  Index& first = c.firsts[Impl::at(sequence)];
  check<OptionError>(length >= 0 && length <= now, function, "length must be in 0..", now, ": got ", length);
  const Index pinned = c.config.first;
  check<OptionError>(length <= pinned || first <= std::max(pinned, length - c.config.window), function,
      "a ring must still hold the window before the new end: got length ", length, ", window ", c.config.window,
      ", oldest token ", first);
  now = length;
  if (length <= pinned) first = 0;  // nothing of the part that is overwritten is left
  c.drop_pages(sequence, c.pages_needed(length));
}

void KVCache::free(Index sequence) {
  impl_->check_sequence("KVCache::free", sequence);
  impl_->drop_pages(sequence, 0);
  impl_->lengths[Impl::at(sequence)] = -1;
  impl_->live.erase(std::ranges::find(impl_->live, sequence));
}

void KVCache::clear() {
  for (const Index s : impl_->live) {
    impl_->drop_pages(s, 0);
    impl_->lengths[Impl::at(s)] = impl_->firsts[Impl::at(s)] = 0;
  }
}

void KVCache::append_rows(std::span<const Index> sequences, const AnyView& k, const AnyView& v) {
  impl_->append(sequences, k, v);
}
void KVCache::read_rows(Index sequence, Index begin, const AnyView& k, const AnyView& v) const {
  impl_->read(sequence, begin, k, v);
}

}  // namespace qkv::inline v0

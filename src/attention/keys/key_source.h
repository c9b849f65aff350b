// Where the keys and values of a call lie: in tensors, in a cache, or in a chunk of keys whose others are elsewhere.
// Alone knows these, and gives kernels the keys of a head. And what a call on a cache checks.
#pragma once

#include "attention/mask/node.h"
#include "kernels/cache/params.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {

class KeySource {
 public:
  AnyView k, v;  // [B, Hkv, Tk, D], [B, Hkv, Tk, Dv]; of a cache only their sizes. v null: not read

  KeySource() = default;
  KeySource(const AnyView& keys, const AnyView& values) : k(keys), v(values), type_(keys.type), kv_len_(keys.size(2)) {}
  /// Refers to kv.
  explicit KeySource(const KeyValue& kv);

  /// These keys alone from now on, of which the first is `begin`; none: no row is read.
  void read(const AnyView& keys, const AnyView& values, Index begin) {
    k = keys;
    v = values;
    begin_ = begin;
  }

  bool is_cache() const { return cache_ != nullptr; }
  /// The caller's memory that is read; null: a KVCache's own.
  AnyView k_memory() const { return memory(k, &KeyValue::Parts::k); }
  AnyView v_memory() const { return memory(v, &KeyValue::Parts::v); }
  View<const Index, 1> lengths_memory() const;
  View<const Index, 2> table_memory() const;
  StoredType type() const { return type_; }
  /// Keys of sequence b.
  Index length(Index b) const { return cache_ == nullptr ? kv_len_ : cache_->length(b); }
  HeadKeys head(Index b, Index g) const;
  /// Whether rows of all pages lie at multiples of one stride, so that a row is a page.
  bool rows_can_be_pages() const;
  /// Some keys of a head, ascending, as pages of one row each. `keys` [count] become the numbers of these pages, to
  /// which the result refers.
  HeadKeys rows(Index b, Index g, Index* keys, Index count) const;

 private:
  /// Whether the cache is the caller's memory.
  bool is_given() const { return cache_ != nullptr && cache_->parts().given_pages > 0; }
  AnyView memory(const AnyView& x, KeyValue::Matrix KeyValue::Parts::*which) const;

  const KeyValue* cache_ = nullptr;
  StoredType type_ = StoredType::kF32;
  Index kv_len_ = 0, begin_ = 0;
};

/// "f32", for texts.
inline const char* storage_name(CacheStorage storage) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16", "int8", "int4"};
  return names[static_cast<int>(storage)];
}

/// The first position of sequence b that is held.
Index first_held(const KeyValue& kv, Index b);

/// Throws ShapeError, OptionError or UnsupportedError if a call with q_len queries cannot read the cache.
void check_cached_call(const char* function, const KeyValue& kv, Index q_len, const AttentionOptions& options);

/// Throws OptionError if the mask chooses among keys hidden by a ring: keeps one and drops another. None of them, or
/// all, is what a mask says that a ring's window cuts.
void check_ring_mask(const char* function, const KeyValue& kv, const BoundMask& mask);

}  // namespace qkv::inline v0

// What the kernels on key/value caches are passed, as plain data, and their table. T is the storage type of q and out; that of
// the cache is known at run time.
#pragma once

#include "kernels/attention/params.h"

namespace qkv {

/// What a row of a cache is stored as.
enum class StoredType : int { kF32, kF64, kBF16, kF16, kInt8 };

/// K or V of one (sequence, key/value head).
struct CachedMatrix {
  const void* rows;                                  // row 0 of page 0
  const float* scales;                               // of the same row; kInt8 only: row = scale * integers
  Index page_stride, row_stride, scale_page_stride;  // in elements; scales of a page follow each other
};

/// K, V and where their rows lie: position j is row j % page_size of page pages[j / page_size % num_pages]. One page is a
/// contiguous cache, several are a paged one, one that is reused in turn a ring. A ring's pinned positions, which are never
/// overwritten, lie behind that: row page_size + j of its page.
struct CachedHead {
  StoredType type;
  CachedMatrix k, v;   // rows of D and Dv
  const Index* pages;  // [num_pages]
  Index num_pages, page_size;
  Index pinned_begin, pinned_end;  // positions that exist and are pinned; pinned_end = 0: none
  Index first, end;                // the others that exist, from pinned_end on
};

/// Attention on a cache. Positions that do not exist are never read, so the mask may keep none of them.
template <class T>
struct CacheKernels {
  /// Queries of a tiled work item, and the bytes of its scratch; chunks are those of Kernels<T>::key_tile.
  Index (*query_tile)(Index head_dim, Index v_head_dim);
  std::size_t (*forward_scratch_bytes)(Index head_dim, Index v_head_dim);
  /// As Kernels<T>::forward; k and v of the tile are ignored.
  void (*forward)(const ForwardTile<T>&, const CachedHead&, void* scratch);
  /// As in DecodeKernels<T>, whose merge, finish and state these share.
  Index (*decode_chunk)(StoredType, Index head_dim, Index v_head_dim);
  Index (*decode_part_keys)(StoredType, Index head_dim, Index v_head_dim);
  std::size_t (*decode_scratch_bytes)(StoredType, Index rows, Index head_dim, Index v_head_dim);
  void (*decode_part)(const DecodeGroup<T>&, const CachedHead&, Index k_begin, Index k_end, void* scratch, void* state);
};

/// to[r][0..width) = from[r][0..width) rounded once to the type of `to`. Double is stored as double, all else is not.
struct StoreRows {
  const void* from;
  StoredType from_type;  // not kInt8
  void* to;
  StoredType to_type;
  float* scales;  // [count]; kInt8 only
  Index from_stride, to_stride, count, width;
};

struct CacheTable {
  CacheKernels<float> f32;
  CacheKernels<double> f64;
  CacheKernels<BFloat16> bf16;
  CacheKernels<Float16> f16;
  void (*store)(const StoreRows&);
  /// Positions [begin, begin + count) of one matrix of a cache as floats, or doubles where it stores such; rows follow each
  /// other.
  void (*read)(const CachedHead&, const CachedMatrix&, Index begin, Index count, Index width, void* to);
};

}  // namespace qkv

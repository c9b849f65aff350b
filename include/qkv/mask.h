// Mask: which query may attend which key. An immutable value, built from the functions below with `&` (both keep) and
// `|` (either keeps). A mask selects pairs; nothing is added to scores. Lengths, offsets, ids and lists of keys are
// copied; dense tensors and block maps are borrowed until the call that uses them returns. docs/concepts/masks.md shows
// every mask with a drawing.
//
//   causal, Tq = Tk = 4    window(1, 0)    causal(kBottomRight)   causal(kTopLeft)
//       1 0 0 0              1 0 0 0         Tq = 2, Tk = 4          Tq = 2, Tk = 4
//       1 1 0 0              1 1 0 0           1 1 1 0                 1 0 0 0
//       1 1 1 0              0 1 1 0           1 1 1 1                 1 1 0 0
//       1 1 1 1              0 0 1 1
//
//   causal | prefix({2})   (window(1, 0) | first(1)) & causal      documents({0, 1, 4})   chunked(2) & causal
//       1 1 0 0              1 0 0 0                                  1 0 0 0               1 0 0 0
//       1 1 0 0              1 1 0 0                                  0 1 1 1               1 1 0 0
//       1 1 1 0              1 1 1 0                                  0 1 1 1               0 0 1 0
//       1 1 1 1              1 0 1 1                                  0 1 1 1               0 0 1 1
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "qkv/block_map.h"
#include "qkv/offsets.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// Where the diagonal lies when Tq != Tk. kBottomRight: the last query sees the last key. kTopLeft: query 0 sees key 0.
/// kSquare is the default of causal() and is legal only when Tq == Tk.
enum class Align { kSquare, kTopLeft, kBottomRight };

/// The axes of a dense mask that has fewer than four.
enum class MaskAxes {
  kBk,   ///< [B, Tk]
  kQk,   ///< [Tq, Tk]
  kBqk,  ///< [B, Tq, Tk]
  kHqk   ///< [H, Tq, Tk]
};

/// May query i of head h of sequence b attend key j? Called from several threads at once, any number of times for a
/// pair, and not at all where other parts of the mask decide, so its answer must depend on its arguments alone. An
/// exception that it throws reaches the caller.
using MaskCallback = std::function<bool(Index b, Index h, Index i, Index j)>;

class QKV_API Mask {
 public:
  /// Keeps everything.
  Mask();
  ~Mask();
  Mask(const Mask&);
  Mask& operator=(const Mask&);
  Mask(Mask&&) noexcept;
  Mask& operator=(Mask&&) noexcept;

  /// keep(i, j) = j <= i + offset; offset 0 (kSquare, kTopLeft) or Tk - Tq (kBottomRight). The
  /// latter, of causal and window, is an OptionError beside key_lengths where Tq > 1: pass lengths[b] - Tq as offsets.
  static Mask causal(Align align = Align::kSquare);
  /// keep(b, i, j) = j <= i + offsets[b], for caches and key lengths. offsets [B].
  static Mask causal(std::span<const Index> offsets);

  /// keep(i, j) = c - left <= j <= c + right, c = i + offset. left and right count *other* tokens, inclusive; -1: no
  /// bound.
  static Mask window(Index left, Index right, Align align = Align::kSquare);
  static Mask window(Index left, Index right, std::span<const Index> offsets);
  /// The last n keys up to the query's own: window(n - 1, 0). n >= 1.
  static Mask sliding(Index n, Align align = Align::kSquare);

  /// keep(i, j) = (j - i - offset) % step == 0: with a window it is Longformer's dilated window, alone a strided
  /// pattern. step >= 1.
  static Mask dilated(Index step, Align align = Align::kSquare);
  /// keep(i, j): i + offset and j lie in the same chunk of `size` keys (Llama 4). Chunks are counted from key 0, or
  /// from starts[b], where left padding ends. size >= 1; starts [B], each in 0..Tk.
  static Mask chunked(Index size, Align align = Align::kSquare);
  static Mask chunked(Index size, std::span<const Index> starts, Align align = Align::kSquare);

  /// keep(b, j) = j < lengths[b]. lengths [B], each in 0..Tk.
  static Mask key_lengths(std::span<const Index> lengths);
  /// keep(b, j) = j >= starts[b]: left padding. starts [B], each in 0..Tk.
  static Mask key_starts(std::span<const Index> starts);
  /// keep(b, i) = i < lengths[b]; the other rows are empty. lengths [B], each in 0..Tq.
  static Mask query_lengths(std::span<const Index> lengths);
  /// keep(b, j) = j < lengths[b]: causal() | prefix(lengths) is the prefix language model. lengths [B], each in 0..Tk.
  static Mask prefix(std::span<const Index> lengths);
  /// keep(j) = j < n: together with window, the sinks of StreamingLLM. n >= 0; n larger than Tk keeps all keys. A ring
  /// cache must pin these keys (KVCacheConfig::first); a key that it does not hold is an OptionError.
  static Mask first(Index n);
  /// keep(i) = i is in rows; keep(j) = j is in columns: global tokens, combined with | and other masks. In any
  /// order, each in 0..Tq-1 and 0..Tk-1.
  static Mask global_rows(std::span<const Index> rows);
  static Mask global_columns(std::span<const Index> columns);

  /// Documents packed into one row of tokens, the same for each sequence: queries q_offsets[d] .. q_offsets[d + 1] - 1
  /// attend keys k_offsets[d] .. k_offsets[d + 1] - 1. Offsets [D + 1] begin with 0, ascend, and end with Tq, Tk. A
  /// single array serves both. `inside` applies within each document, in its own positions and lengths: causal, window
  /// or sliding, or several; their offsets are one per document, and they are aligned to each document. Elements are
  /// Index or int32 (cu_seqlens).
  static Mask documents(const Offsets& offsets);
  static Mask documents(const Offsets& q_offsets, const Offsets& k_offsets, const Mask& inside = Mask());
  /// keep(b, i, j) = q_ids[b, i] == k_ids[b, j], both >= 0: a negative id belongs to no document. Ids may come in any
  /// order, as [T], the same for each sequence, or as [B, T].
  static Mask document_ids(std::span<const Index> ids);
  static Mask document_ids(std::span<const Index> q_ids, std::span<const Index> k_ids);
  static Mask document_ids(View<const Index, 2> ids);
  static Mask document_ids(View<const Index, 2> q_ids, View<const Index, 2> k_ids);

  /// keep(b, h, i, j): the block of (i, j) is listed. Forward and backward cost what the listed blocks cost. The map is
  /// borrowed, or shared: the mask then keeps it alive.
  static Mask blocks(const BlockMap& map);
  static Mask blocks(BlockMap&&) = delete;
  static Mask blocks(std::shared_ptr<const BlockMap> map);

  /// keep(b, h, i, j) = index[b, h, i, :] lists j: each query reads its own keys, and calls cost what is listed
  /// (docs/concepts/masks.md says when). index [B|1, H|Hkv|1, Tq, k], copied: keys in any order, each once, -1 for
  /// none. Its heads divide H: query head h reads list h / (H / heads). A key twice in a row, below -1, or not
  /// below Tk (on a cache the sequence's own, unless the list stands in a union or beside another) is an OptionError.
  static Mask keys(View<const std::int32_t, 4> index);

  /// Any other rule: the callback is called for each pair that the other parts leave open. block_map(mask, sizes)
  /// records the blocks in which it keeps anything.
  static Mask mask_mod(MaskCallback keep);

  /// Non-zero = may attend. [B|1, H|1, Tq|1, Tk|1]; an axis of size 1 or stride 0 repeats. Borrowed.
  static Mask keep(View<const std::uint8_t, 4> dense);
  static Mask keep(View<const std::uint8_t, 2> dense, MaskAxes axes);
  static Mask keep(View<const std::uint8_t, 3> dense, MaskAxes axes);
  static Mask keep(const Tensor<std::uint8_t>& dense, MaskAxes axes);
  static Mask keep(const Tensor<std::uint8_t>&&) = delete;  // a temporary would be destroyed before the call
  static Mask keep(const Tensor<std::uint8_t>&&, MaskAxes) = delete;
  /// Non-zero = may not attend (PyTorch's key_padding_mask).
  static Mask drop(View<const std::uint8_t, 4> dense);
  static Mask drop(View<const std::uint8_t, 2> dense, MaskAxes axes);
  static Mask drop(View<const std::uint8_t, 3> dense, MaskAxes axes);
  static Mask drop(const Tensor<std::uint8_t>& dense, MaskAxes axes);
  static Mask drop(const Tensor<std::uint8_t>&&) = delete;
  static Mask drop(const Tensor<std::uint8_t>&&, MaskAxes) = delete;

  /// Intersection: kept where both keep.
  friend QKV_API Mask operator&(const Mask& a, const Mask& b);
  /// Union: kept where either keeps. As always in C++, & binds tighter than |.
  friend QKV_API Mask operator|(const Mask& a, const Mask& b);

  bool keeps_everything() const { return node_ == nullptr; }
  /// "causal(bottom-right) & window(255, 0)"
  std::string describe() const;

  struct Node;
  const Node* node() const { return node_.get(); }

 private:
  explicit Mask(std::shared_ptr<const Node> node);
  std::shared_ptr<const Node> node_;
};

/// Writes the mask out: 1 where (b, h, i, j) is kept, otherwise 0. keep [B, H, Tq, Tk]. Throws what a call of these
/// sizes would throw.
QKV_API void mask_to_dense(const Mask& mask, View<std::uint8_t, 4> keep);

/// Rows of it: keep [n, Tk] is 1 where query rows[n] of head h of sequence b may attend the key; sizes are [B, H, Tq,
/// Tk]. Throws as mask_to_dense.
QKV_API void mask_rows(const Mask& mask, const std::array<Index, 4>& sizes, Index b, Index h,
    std::span<const Index> rows, View<std::uint8_t, 2> keep);

/// Whether any query of [q_begin, q_end) might attend any key of [k_begin, k_end), in any sequence and head; sizes are
/// [B, H, Tq, Tk]. False is a promise, true is none: dense masks and callbacks are not read. So a caller knows which
/// tiles of memory, or rows on other machines, these queries need. Of the ranges what lies within [0, Tq) and [0, Tk)
/// counts. Throws ShapeError or OptionError where the mask does not fit the sizes.
QKV_API bool mask_may_keep(
    const Mask& mask, const std::array<Index, 4>& sizes, Index q_begin, Index q_end, Index k_begin, Index k_end);

}  // namespace qkv::inline v0

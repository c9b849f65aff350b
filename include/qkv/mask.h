// Mask: which query may attend which key. An immutable value in a small algebra; select, never add.
// Lengths and offsets are copied; dense tensors are borrowed until the call that uses them returns.
//
//   causal, Tq = Tk = 4    window(1, 0)    causal(kBottomRight)   causal(kTopLeft)
//       1 0 0 0              1 0 0 0         Tq = 2, Tk = 4          Tq = 2, Tk = 4
//       1 1 0 0              1 1 0 0           1 1 1 0                 1 0 0 0
//       1 1 1 0              0 1 1 0           1 1 1 1                 1 1 0 0
//       1 1 1 1              0 0 1 1
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv {
inline namespace v0 {

/// Where the diagonal lies when Tq != Tk. kBottomRight: the last query sees the last key. kTopLeft: query 0 sees key 0.
/// kSquare is what causal() alone means: legal only when Tq == Tk.
enum class Align { kSquare, kTopLeft, kBottomRight };

/// The axes of a dense mask that has fewer than four.
enum class MaskAxes {
  kBk,   ///< [B, Tk]
  kQk,   ///< [Tq, Tk]
  kBqk,  ///< [B, Tq, Tk]
  kHqk   ///< [H, Tq, Tk]
};

class QKV_API Mask {
 public:
  /// Keeps everything.
  Mask();
  ~Mask();
  Mask(const Mask&);
  Mask& operator=(const Mask&);
  Mask(Mask&&) noexcept;
  Mask& operator=(Mask&&) noexcept;

  /// keep(i, j) = j <= i + offset; offset 0 (kSquare, kTopLeft) or Tk - Tq (kBottomRight).
  static Mask causal(Align align = Align::kSquare);
  /// keep(b, i, j) = j <= i + offsets[b]: caches and key lengths. offsets [B].
  static Mask causal(std::span<const Index> offsets);

  /// keep(i, j) = c - left <= j <= c + right, c = i + offset. Counts of *other* tokens, inclusive; -1 is unbounded.
  static Mask window(Index left, Index right, Align align = Align::kSquare);
  static Mask window(Index left, Index right, std::span<const Index> offsets);
  /// n keys, the query's own last: window(n - 1, 0). n >= 1.
  static Mask sliding(Index n, Align align = Align::kSquare);

  /// keep(b, j) = j < lengths[b]. lengths [B], each in 0..Tk.
  static Mask key_lengths(std::span<const Index> lengths);

  /// Non-zero = may attend. [B|1, H|1, Tq|1, Tk|1]; an axis of size 1 or stride 0 repeats. Borrowed.
  static Mask keep(View<const std::uint8_t, 4> dense);
  static Mask keep(View<const std::uint8_t, 2> dense, MaskAxes axes);
  static Mask keep(View<const std::uint8_t, 3> dense, MaskAxes axes);
  static Mask keep(const Tensor<std::uint8_t>& dense, MaskAxes axes);
  /// Non-zero = may not attend (PyTorch's key_padding_mask).
  static Mask drop(View<const std::uint8_t, 4> dense);
  static Mask drop(View<const std::uint8_t, 2> dense, MaskAxes axes);
  static Mask drop(View<const std::uint8_t, 3> dense, MaskAxes axes);
  static Mask drop(const Tensor<std::uint8_t>& dense, MaskAxes axes);

  /// Intersection: kept where both keep.
  friend QKV_API Mask operator&(const Mask& a, const Mask& b);

  bool keeps_everything() const { return node_ == nullptr; }
  /// "causal(bottom-right) & window(255, 0)"
  std::string describe() const;

  struct Node;
  const Node* node() const { return node_.get(); }

 private:
  explicit Mask(std::shared_ptr<const Node> node);
  std::shared_ptr<const Node> node_;
};

}  // namespace v0
}  // namespace qkv

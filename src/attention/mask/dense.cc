// Leaves that are read or called pair by pair: dense tensors and callbacks.
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/mask/summary.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

/// keep = values[b, h, i, j] != 0, or the opposite.
class Dense final : public DenseLeaf {
 public:
  Dense(View<const std::uint8_t, 4> values, bool keep, std::optional<MaskAxes> axes = {})
      : DenseLeaf({values, keep}), axes_(axes) {}

  int verdict(const Pairs& t) const override {
    const DenseSummary* summary = summary_of(t);
    return summary == nullptr ? kTilePartial : summary->verdict(t);
  }
  Index next_key(const Pairs& from) const override {
    const DenseSummary* summary = summary_of(from);
    return summary == nullptr ? from.j0 : summary->next_key(from);
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const Index column = dense().stride(3);
    const std::uint8_t* data = dense().values.data() + t.b * dense().stride(0) + t.h * dense().stride(1) +
                               t.i0 * dense().stride(2) + t.j0 * column;
    for (Index begin = 0; begin < t.nj; begin += kPiece) {
      const Index n = std::min(kPiece, t.nj - begin);
      if (column == 1) {
        fill_rows(data + begin, t.ni, n, lane_masks + begin);
      } else {
        fill_strided(data + begin * column, t.ni, n, lane_masks + begin);
      }
    }
  }
  bool differs_by_head() const override { return dense().values.size(1) > 1; }
  Cost cost() const override { return Cost::kMemory; }
  std::string text(bool) const override { return (dense().keep ? "keep" : "drop") + dense().values.shape(); }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    const std::array<Index, 4> wanted{extent.batch, extent.num_heads, extent.q_len, extent.kv_len};
    for (int axis = 0; axis < 4; ++axis) {
      const Index size = dense().values.size(axis);
      qkv::check<ShapeError>(
          size == wanted[static_cast<std::size_t>(axis)] || size == 1, function, "a dense mask must have sizes ",
          [&] { return std::string(given_axes().letters); }, ": got ", [&] { return given_shape(); },
          " for [B, H, Tq, Tk] ", [&] { return shape_text(wanted.data(), 4); });
    }
    check_given(function, {"the mask", dense().values});
  }

 private:
  /// The axes of the mask as the caller gave them: as text, and as positions among the four.
  struct GivenAxes {
    std::string_view letters;
    std::vector<std::size_t> slots;
  };
  GivenAxes given_axes() const {
    if (!axes_) return {"[B|1, H|1, Tq|1, Tk|1]", {0, 1, 2, 3}};
    switch (*axes_) {
      case MaskAxes::kBk: return {"[B|1, Tk|1]", {0, 3}};
      case MaskAxes::kQk: return {"[Tq|1, Tk|1]", {2, 3}};
      case MaskAxes::kBqk: return {"[B|1, Tq|1, Tk|1]", {0, 2, 3}};
      case MaskAxes::kHqk: break;
    }
    return {"[H|1, Tq|1, Tk|1]", {1, 2, 3}};
  }
  std::string given_shape() const {
    std::vector<Index> sizes;
    for (const std::size_t slot : given_axes().slots) sizes.push_back(dense().values.size(static_cast<int>(slot)));
    return shape_text(sizes.data(), static_cast<int>(sizes.size()));
  }

  static constexpr Index kPiece = 128;  // keys processed together

  const DenseSummary* summary_of(const Pairs& t) const {
    return t.extent.summaries == nullptr ? nullptr : t.extent.summaries->of(this);
  }

  /// Eight queries per byte, so that the loop over keys works on bytes, which compilers vectorise.
  void fill_rows(const std::uint8_t* data, Index lanes, Index keys, std::uint32_t* lane_masks) const {
    std::uint8_t bits[4][kPiece] = {};
    for (Index lane = 0; lane < lanes; ++lane) {
      const std::uint8_t* row = data + lane * dense().stride(2);
      std::uint8_t* of_eight = bits[lane / 8];
      const auto bit = static_cast<std::uint8_t>(1U << (lane % 8));
      for (Index j = 0; j < keys; ++j) of_eight[j] = static_cast<std::uint8_t>(of_eight[j] | (row[j] != 0 ? bit : 0));
    }
    const std::uint32_t flip = dense().keep ? 0U : ~0U;
    for (Index j = 0; j < keys; ++j) {
      const std::uint32_t nonzero =
          static_cast<std::uint32_t>(bits[0][j]) | static_cast<std::uint32_t>(bits[1][j]) << 8 |
          static_cast<std::uint32_t>(bits[2][j]) << 16 | static_cast<std::uint32_t>(bits[3][j]) << 24;
      lane_masks[j] &= nonzero ^ flip;
    }
  }

  void fill_strided(const std::uint8_t* data, Index lanes, Index keys, std::uint32_t* lane_masks) const {
    for (Index j = 0; j < keys; ++j) {
      std::uint32_t word = 0;
      for (Index lane = 0; lane < lanes; ++lane) {
        word |= ((data[lane * dense().stride(2) + j * dense().stride(3)] != 0) == dense().keep ? 1U : 0U) << lane;
      }
      lane_masks[j] &= word;
    }
  }

  std::optional<MaskAxes> axes_;  // for error texts; none: four
};

class Callback final : public MaskPart {
 public:
  explicit Callback(MaskCallback keep) : keep_(std::move(keep)) {}

  int verdict(const Pairs&) const override { return kTilePartial; }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const bool done = guard_callback([&] {
      for (Index j = 0; j < t.nj; ++j) {
        std::uint32_t word = lane_masks[j];
        for (Index i = 0; i < t.ni; ++i) {
          if ((word >> i & 1U) != 0 && !keep_(t.b, t.h, t.i0 + i, t.j0 + j)) word &= ~(1U << i);
        }
        lane_masks[j] = word;
      }
    });
    if (!done) std::fill_n(lane_masks, t.nj, 0U);  // kernels never throw: the exception is rethrown when the item ends
  }
  bool differs_by_head() const override { return true; }
  Cost cost() const override { return Cost::kCallback; }
  std::string text(bool) const override { return "mask_mod"; }
  void check(const MaskExtent&, bool, const char*) const override {}

 private:
  MaskCallback keep_;
};

using Rows = View<const std::uint8_t, 2>;
using Planes = View<const std::uint8_t, 3>;

// A repeated axis is one of size 1; the tile functions give it stride 0.
View<const std::uint8_t, 4> with_axes(Rows dense, MaskAxes axes) {
  check<ShapeError>(axes == MaskAxes::kBk || axes == MaskAxes::kQk, "Mask",
      "a mask with two axes must be named bk [B, Tk] or qk [Tq, Tk]: got ", dense);
  const Index rows = dense.size(0), columns = dense.size(1), row = dense.stride(0), column = dense.stride(1);
  if (axes == MaskAxes::kBk) return {dense.data(), {rows, 1, 1, columns}, {row, 0, 0, column}};
  return {dense.data(), {1, 1, rows, columns}, {0, 0, row, column}};
}

View<const std::uint8_t, 4> with_axes(Planes dense, MaskAxes axes) {
  check<ShapeError>(axes == MaskAxes::kBqk || axes == MaskAxes::kHqk, "Mask",
      "a mask with three axes must be named bqk [B, Tq, Tk] or hqk [H, Tq, Tk]: got ", dense);
  const Index first = dense.size(0), stride = dense.stride(0);
  const Index q = dense.size(1), k = dense.size(2), row = dense.stride(1), column = dense.stride(2);
  if (axes == MaskAxes::kBqk) return {dense.data(), {first, 1, q, k}, {stride, 0, row, column}};
  return {dense.data(), {1, first, q, k}, {0, stride, row, column}};
}

View<const std::uint8_t, 4> with_axes(const Tensor<std::uint8_t>& dense, MaskAxes axes) {
  return dense.rank() == 2 ? with_axes(dense.view<2>(), axes) : with_axes(dense.view<3>(), axes);
}

}  // namespace

Mask Mask::mask_mod(MaskCallback keep) {
  check<OptionError>(keep != nullptr, "Mask::mask_mod", "the callback must not be empty");
  return Mask(Node::of<Callback>(std::move(keep)));
}
Mask Mask::keep(View<const std::uint8_t, 4> dense) { return Mask(Node::of<Dense>(dense, true)); }
Mask Mask::drop(View<const std::uint8_t, 4> dense) { return Mask(Node::of<Dense>(dense, false)); }
#define QKV_DEFINE(Values)                                                                                           \
  Mask Mask::keep(Values dense, MaskAxes axes) { return Mask(Node::of<Dense>(with_axes(dense, axes), true, axes)); } \
  Mask Mask::drop(Values dense, MaskAxes axes) { return Mask(Node::of<Dense>(with_axes(dense, axes), false, axes)); }
QKV_DEFINE(Rows)
QKV_DEFINE(Planes)
QKV_DEFINE(const Tensor<std::uint8_t>&)
#undef QKV_DEFINE

}  // namespace qkv::inline v0

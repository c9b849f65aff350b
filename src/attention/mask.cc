// The public constructors of Mask, their checks and their texts.
#include "qkv/mask.h"

#include <utility>

#include "attention/mask_node.h"
#include "core/check.h"

namespace qkv {
inline namespace v0 {
namespace {

std::shared_ptr<const std::vector<Index>> copy_of(std::span<const Index> values) {
  return std::make_shared<const std::vector<Index>>(values.begin(), values.end());
}

std::shared_ptr<Mask::Node> node_with(Band band) {
  auto node = std::make_shared<Mask::Node>();
  node->bands.push_back(std::move(band));
  return node;
}

std::shared_ptr<Mask::Node> node_with(View<const std::uint8_t, 4> dense, bool keep) {
  auto node = std::make_shared<Mask::Node>();
  node->dense.push_back({dense, keep});
  return node;
}

Band make_window(Index left, Index right, Align align, std::shared_ptr<const std::vector<Index>> offsets) {
  check<OptionError>(left >= -1 && right >= -1, "Mask::window",
                     "left and right must be counts of other tokens, or -1 for unbounded: got ", left, ", ", right);
  return {left, right, align, std::move(offsets), false};
}

// A repeated axis is one of size 1; the tile functions give it stride 0.
View<const std::uint8_t, 4> with_axes(View<const std::uint8_t, 2> dense, MaskAxes axes) {
  check<ShapeError>(axes == MaskAxes::kBk || axes == MaskAxes::kQk, "Mask",
                    "a mask with two axes must be named bk [B, Tk] or qk [Tq, Tk]: got ", dense);
  const Index rows = dense.size(0), columns = dense.size(1), row = dense.stride(0), column = dense.stride(1);
  if (axes == MaskAxes::kBk) return {dense.data(), {rows, 1, 1, columns}, {row, 0, 0, column}};
  return {dense.data(), {1, 1, rows, columns}, {0, 0, row, column}};
}

View<const std::uint8_t, 4> with_axes(View<const std::uint8_t, 3> dense, MaskAxes axes) {
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

std::string align_text(const Band& band) {
  if (band.offsets != nullptr) return "offsets[" + std::to_string(band.offsets->size()) + "]";
  if (band.align == Align::kTopLeft) return "top-left";
  return band.align == Align::kBottomRight ? "bottom-right" : "";
}

std::string text_of(const Band& band) {
  const std::string align = align_text(band);
  if (band.causal) return "causal(" + align + ")";
  return "window(" + std::to_string(band.left) + ", " + std::to_string(band.right) + (align.empty() ? "" : ", " + align) + ")";
}

void check_band(const Band& band, const MaskExtent& extent, bool has_lengths, const char* function) {
  const char* what = band.causal ? "causal" : "window";
  if (band.offsets != nullptr) {
    check<ShapeError>(static_cast<Index>(band.offsets->size()) == extent.batch, function, what,
                      "(offsets) takes one offset per sequence: got ", band.offsets->size(), " offsets for batch ",
                      extent.batch);
    return;
  }
  check<OptionError>(band.align != Align::kSquare || extent.q_len == extent.kv_len, function, what,
                     "() alone needs Tq == Tk: say Align::kBottomRight (last query sees last key) or Align::kTopLeft (query 0 "
                     "sees key 0): got Tq ",
                     extent.q_len, ", Tk ", extent.kv_len);
  check<OptionError>(!(band.align == Align::kBottomRight && has_lengths && extent.q_len > 1), function, what,
                     "(Align::kBottomRight) refers to Tk, not to key lengths, and would show the future: say ", what,
                     "(offsets) with one offset per sequence: got key lengths and Tq ", extent.q_len);
}

}  // namespace

Mask::Mask() = default;
Mask::~Mask() = default;
Mask::Mask(const Mask&) = default;
Mask& Mask::operator=(const Mask&) = default;
Mask::Mask(Mask&&) noexcept = default;
Mask& Mask::operator=(Mask&&) noexcept = default;
Mask::Mask(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

Mask Mask::causal(Align align) { return Mask(node_with(Band{-1, 0, align, nullptr, true})); }
Mask Mask::causal(std::span<const Index> offsets) {
  return Mask(node_with(Band{-1, 0, Align::kSquare, copy_of(offsets), true}));
}
Mask Mask::window(Index left, Index right, Align align) { return Mask(node_with(make_window(left, right, align, nullptr))); }
Mask Mask::window(Index left, Index right, std::span<const Index> offsets) {
  return Mask(node_with(make_window(left, right, Align::kSquare, copy_of(offsets))));
}
Mask Mask::sliding(Index n, Align align) {
  check<OptionError>(n >= 1, "Mask::sliding", "n must be at least 1, the query's own key: got ", n);
  return window(n - 1, 0, align);
}

Mask Mask::key_lengths(std::span<const Index> lengths) {
  auto node = std::make_shared<Node>();
  node->lengths.push_back({copy_of(lengths)});
  return Mask(std::move(node));
}

Mask Mask::keep(View<const std::uint8_t, 4> dense) { return Mask(node_with(dense, true)); }
Mask Mask::keep(View<const std::uint8_t, 2> dense, MaskAxes axes) { return keep(with_axes(dense, axes)); }
Mask Mask::keep(View<const std::uint8_t, 3> dense, MaskAxes axes) { return keep(with_axes(dense, axes)); }
Mask Mask::keep(const Tensor<std::uint8_t>& dense, MaskAxes axes) { return keep(with_axes(dense, axes)); }
Mask Mask::drop(View<const std::uint8_t, 4> dense) { return Mask(node_with(dense, false)); }
Mask Mask::drop(View<const std::uint8_t, 2> dense, MaskAxes axes) { return drop(with_axes(dense, axes)); }
Mask Mask::drop(View<const std::uint8_t, 3> dense, MaskAxes axes) { return drop(with_axes(dense, axes)); }
Mask Mask::drop(const Tensor<std::uint8_t>& dense, MaskAxes axes) { return drop(with_axes(dense, axes)); }

Mask operator&(const Mask& a, const Mask& b) {
  if (a.node_ == nullptr) return b;
  if (b.node_ == nullptr) return a;
  auto node = std::make_shared<Mask::Node>(*a.node_);
  node->bands.insert(node->bands.end(), b.node_->bands.begin(), b.node_->bands.end());
  node->lengths.insert(node->lengths.end(), b.node_->lengths.begin(), b.node_->lengths.end());
  node->dense.insert(node->dense.end(), b.node_->dense.begin(), b.node_->dense.end());
  return Mask(std::move(node));
}

std::string Mask::describe() const {
  if (node_ == nullptr) return "everything";
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : " & ") + part; };
  for (const Band& band : node_->bands) add(text_of(band));
  for (const KeyLengths& l : node_->lengths) add("key_lengths[" + std::to_string(l.lengths->size()) + "]");
  for (const Dense& d : node_->dense) add((d.keep ? "keep" : "drop") + d.values.shape());
  return text;
}

void check_mask(const Mask& mask, const MaskExtent& extent, const char* function) {
  const Mask::Node* node = mask.node();
  if (node == nullptr) return;
  for (const Band& band : node->bands) check_band(band, extent, !node->lengths.empty(), function);
  for (const KeyLengths& leaf : node->lengths) {
    check<ShapeError>(static_cast<Index>(leaf.lengths->size()) == extent.batch, function,
                      "key_lengths takes one length per sequence: got ", leaf.lengths->size(), " lengths for batch ",
                      extent.batch);
    for (Index length : *leaf.lengths) {
      check<OptionError>(length >= 0 && length <= extent.kv_len, function, "a key length must be in 0..Tk: got ", length,
                         " for Tk ", extent.kv_len);
    }
  }
  const std::array<Index, 4> wanted{extent.batch, extent.num_heads, extent.q_len, extent.kv_len};
  for (const Dense& leaf : node->dense) {
    for (int axis = 0; axis < 4; ++axis) {
      const Index size = leaf.values.size(axis);
      check<ShapeError>(size == wanted[static_cast<std::size_t>(axis)] || size == 1, function,
                        "a dense mask must have sizes [B|1, H|1, Tq|1, Tk|1]: got ", leaf.values, " for ",
                        [&] { return shape_text(wanted.data(), 4); });
    }
  }
}

}  // namespace v0
}  // namespace qkv

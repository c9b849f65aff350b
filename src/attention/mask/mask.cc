// The public constructors of Mask, their checks of single arguments, and the two operators.
#include "qkv/mask.h"

#include <utility>

#include "attention/mask/leaves.h"
#include "attention/mask/node.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

std::shared_ptr<const Mask::Node> node_of(MaskPartPtr part) {
  auto node = std::make_shared<Mask::Node>();
  node->parts.push_back(std::move(part));
  return node;
}

std::vector<Index> copy_of(IndexSpan values) { return {values.begin(), values.end()}; }
std::vector<Index> copy_of(const Offsets& values) {
  std::vector<Index> numbers(values.size());
  for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = values[n];
  return numbers;
}

MaskPartPtr window_part(Index left, Index right, Align align, std::vector<Index> offsets, bool has_offsets) {
  check<OptionError>(left >= -1 && right >= -1, "Mask::window",
                     "left and right must be counts of other tokens, or -1 for unbounded: got ", left, ", ", right);
  return make_band({left, right, align, std::move(offsets), has_offsets, false});
}

MaskPartPtr chunked_part(Index size, Align align, std::vector<Index> starts, bool has_starts) {
  check<OptionError>(size >= 1, "Mask::chunked", "the size of a chunk must be at least 1: got ", size);
  return make_chunked(size, align, std::move(starts), has_starts);
}

View<const Index, 2> one_row(IndexSpan ids) { return {ids.data(), {1, static_cast<Index>(ids.size())}}; }

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

}  // namespace

Mask::Mask() = default;
Mask::~Mask() = default;
Mask::Mask(const Mask&) = default;
Mask& Mask::operator=(const Mask&) = default;
Mask::Mask(Mask&&) noexcept = default;
Mask& Mask::operator=(Mask&&) noexcept = default;
Mask::Mask(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

Mask Mask::causal(Align align) { return Mask(node_of(make_band({-1, 0, align, {}, false, true}))); }
Mask Mask::causal(std::span<const Index> offsets) {
  return Mask(node_of(make_band({-1, 0, Align::kSquare, copy_of(offsets), true, true})));
}
Mask Mask::window(Index left, Index right, Align align) { return Mask(node_of(window_part(left, right, align, {}, false))); }
Mask Mask::window(Index left, Index right, std::span<const Index> offsets) {
  return Mask(node_of(window_part(left, right, Align::kSquare, copy_of(offsets), true)));
}
Mask Mask::sliding(Index n, Align align) {
  check<OptionError>(n >= 1, "Mask::sliding", "n must be at least 1, the query's own key: got ", n);
  return window(n - 1, 0, align);
}
Mask Mask::dilated(Index step, Align align) {
  check<OptionError>(step >= 1, "Mask::dilated", "step must be at least 1: got ", step);
  return Mask(node_of(make_dilated(step, align)));
}
Mask Mask::chunked(Index size, Align align) { return Mask(node_of(chunked_part(size, align, {}, false))); }
Mask Mask::chunked(Index size, std::span<const Index> starts, Align align) {
  return Mask(node_of(chunked_part(size, align, copy_of(starts), true)));
}

Mask Mask::key_lengths(std::span<const Index> lengths) { return Mask(node_of(make_bound(BoundKind::kKeyLengths, lengths))); }
Mask Mask::key_starts(std::span<const Index> starts) { return Mask(node_of(make_bound(BoundKind::kKeyStarts, starts))); }
Mask Mask::query_lengths(std::span<const Index> lengths) {
  return Mask(node_of(make_bound(BoundKind::kQueryLengths, lengths)));
}
Mask Mask::prefix(std::span<const Index> lengths) { return Mask(node_of(make_bound(BoundKind::kPrefix, lengths))); }
Mask Mask::first(Index n) {
  check<OptionError>(n >= 0, "Mask::first", "n must be a count of keys: got ", n);
  return Mask(node_of(make_first(n)));
}
Mask Mask::global_rows(std::span<const Index> rows) { return Mask(node_of(make_global(rows, false))); }
Mask Mask::global_columns(std::span<const Index> columns) { return Mask(node_of(make_global(columns, true))); }

Mask Mask::documents(const Offsets& offsets) { return documents(offsets, offsets); }
Mask Mask::documents(const Offsets& q_offsets, const Offsets& k_offsets, const Mask& inside) {
  return Mask(node_of(make_documents(copy_of(q_offsets), copy_of(k_offsets), inside)));
}
Mask Mask::document_ids(std::span<const Index> ids) { return document_ids(ids, ids); }
Mask Mask::document_ids(std::span<const Index> q_ids, std::span<const Index> k_ids) {
  return Mask(node_of(make_document_ids(one_row(q_ids), one_row(k_ids), /*per_sequence=*/false)));
}
Mask Mask::document_ids(View<const Index, 2> ids) { return document_ids(ids, ids); }
Mask Mask::document_ids(View<const Index, 2> q_ids, View<const Index, 2> k_ids) {
  return Mask(node_of(make_document_ids(q_ids, k_ids, /*per_sequence=*/true)));
}

Mask Mask::blocks(const BlockMap& map) {
  return blocks(std::shared_ptr<const BlockMap>(std::shared_ptr<const void>(), &map));  // owns nothing
}
Mask Mask::blocks(std::shared_ptr<const BlockMap> map) {
  check<OptionError>(map != nullptr, "Mask::blocks", "the block map must not be null");
  return Mask(node_of(make_blocks(std::move(map))));
}
Mask Mask::keys(View<const std::int32_t, 4> index) { return Mask(node_of(make_key_lists(index))); }
Mask Mask::mask_mod(MaskCallback keep) {
  check<OptionError>(keep != nullptr, "Mask::mask_mod", "the callback must not be empty");
  return Mask(node_of(make_callback(std::move(keep))));
}

Mask Mask::keep(View<const std::uint8_t, 4> dense) { return Mask(node_of(make_dense(dense, true))); }
Mask Mask::keep(View<const std::uint8_t, 2> dense, MaskAxes axes) {
  return Mask(node_of(make_dense(with_axes(dense, axes), true, axes)));
}
Mask Mask::keep(View<const std::uint8_t, 3> dense, MaskAxes axes) {
  return Mask(node_of(make_dense(with_axes(dense, axes), true, axes)));
}
Mask Mask::keep(const Tensor<std::uint8_t>& dense, MaskAxes axes) {
  return Mask(node_of(make_dense(with_axes(dense, axes), true, axes)));
}
Mask Mask::drop(View<const std::uint8_t, 4> dense) { return Mask(node_of(make_dense(dense, false))); }
Mask Mask::drop(View<const std::uint8_t, 2> dense, MaskAxes axes) {
  return Mask(node_of(make_dense(with_axes(dense, axes), false, axes)));
}
Mask Mask::drop(View<const std::uint8_t, 3> dense, MaskAxes axes) {
  return Mask(node_of(make_dense(with_axes(dense, axes), false, axes)));
}
Mask Mask::drop(const Tensor<std::uint8_t>& dense, MaskAxes axes) {
  return Mask(node_of(make_dense(with_axes(dense, axes), false, axes)));
}

Mask operator&(const Mask& a, const Mask& b) {
  if (a.node_ == nullptr) return b;
  if (b.node_ == nullptr) return a;
  auto node = std::make_shared<Mask::Node>(*a.node_);
  node->parts.insert(node->parts.end(), b.node_->parts.begin(), b.node_->parts.end());
  std::stable_sort(node->parts.begin(), node->parts.end(),
                   [](const MaskPartPtr& x, const MaskPartPtr& y) { return x->cost() < y->cost(); });
  return Mask(std::move(node));
}

Mask operator|(const Mask& a, const Mask& b) {
  if (a.node_ == nullptr || b.node_ == nullptr) return Mask();
  std::vector<Mask::Node> alternatives = alternatives_of(*a.node_);
  for (Mask::Node& more : alternatives_of(*b.node_)) alternatives.push_back(std::move(more));
  return Mask(node_of(make_union(std::move(alternatives))));
}

std::string Mask::describe() const { return node_ == nullptr ? "everything" : text_of(*node_); }

}  // namespace qkv::inline v0

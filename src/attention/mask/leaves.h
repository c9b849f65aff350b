// The functions that make the leaves of masks.
#pragma once

#include <optional>
#include <span>

#include "attention/mask/part.h"

namespace qkv::inline v0 {

using IndexSpan = std::span<const Index>;

constexpr Index kFar = Index{1} << 60;  // beyond every position; sums of a few do not overflow

/// keep = c - left <= j <= c + right with c = i + offset; -1 is unbounded. causal() is the band (-1, 0).
struct BandOptions {
  Index left, right;
  Align align;
  std::vector<Index> offsets;  // [B]; with has_offsets these place the diagonal, not the alignment
  bool has_offsets;
  bool causal;  // whether it was written as causal(), for texts
};
MaskPartPtr make_band(BandOptions options);

/// keep = (j - i - offset) % step == 0.
MaskPartPtr make_dilated(Index step, Align align);
/// keep = i + offset and j lie in the same chunk of `size` keys counted from starts[b] (empty: 0).
MaskPartPtr make_chunked(Index size, Align align, std::vector<Index> starts, bool has_starts);

/// One bound per sequence on queries or keys: keeps positions below it, or from it on.
enum class BoundKind { kKeyLengths, kKeyStarts, kQueryLengths, kPrefix };
MaskPartPtr make_bound(BoundKind kind, IndexSpan bounds);
/// keep = j < n.
MaskPartPtr make_first(Index n);
/// keep = j, or i, is one of `positions`.
MaskPartPtr make_global(IndexSpan positions, bool on_keys);

/// Documents: queries [q_offsets[d], q_offsets[d + 1]) attend keys [k_offsets[d], k_offsets[d + 1]), inside which `inside` holds, in
/// the document's own positions. Checks all arguments.
MaskPartPtr make_documents(std::vector<Index> q_offsets, std::vector<Index> k_offsets, const Mask& inside);
/// keep = q_ids[b, i] == k_ids[b, j] and both >= 0. Copied.
MaskPartPtr make_document_ids(View<const Index, 2> q_ids, View<const Index, 2> k_ids, bool per_sequence);

/// keep = values[b, h, i, j] != 0, or the opposite. [B|1, H|1, Tq|1, Tk|1]; borrowed.
/// `axes`: as the caller named them, for error texts.
MaskPartPtr make_dense(View<const std::uint8_t, 4> values, bool keep, std::optional<MaskAxes> axes = {});
/// Throws OptionError unless blocks of these sizes can be counted and multiplied without overflow.
void check_block(Index q_block, Index kv_block, const char* function);
/// keep = the block of (i, j) is listed. Checks the map.
MaskPartPtr make_blocks(std::shared_ptr<const BlockMap> map);
/// keep = row (b, h, i) of index lists j. Copied.
MaskPartPtr make_key_lists(View<const std::int32_t, 4> index);
MaskPartPtr make_callback(MaskCallback keep);

/// keep = any alternative keeps.
MaskPartPtr make_union(std::vector<Mask::Node> alternatives);
/// The alternatives of a node that is one union; the node itself otherwise.
std::vector<Mask::Node> alternatives_of(const Mask::Node& node);

}  // namespace qkv::inline v0

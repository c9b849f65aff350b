// Each kind of mask twice: as the qkv::Mask under test, and as a predicate written from the drawing in qkv/mask.h.
#pragma once

#include <array>
#include <string>

#include "support/cases/mask_algebra.h"

namespace qkv::test {

enum class MaskKind {
  kNone,
  kCausal,
  kCausalTopLeft,
  kCausalBottomRight,
  kCausalOffsets,
  kWindow,
  kWindowTopLeft,
  kWindowUnbounded,
  kWindowOffsets,
  kSliding,
  kKeyLengths,
  kKeepDense,
  kKeepHeadsShared,
  kKeepKeys,
  kKeepStrideZero,
  kKeepBk,
  kKeepQk,
  kKeepBqk,
  kKeepHqk,
  kDropDense,
  kDropBk,
  kDropQk,
  kDropHqk,
  kDropAll,
  kCausalAndLengths,
  kOffsetsAndLengths,
  kWindowAndKeep,
  kThreeMasks,
  kStartsAndQueries,
  kPrefixLm,
  kStreaming,
  kGlobals,
  kDocuments,
  kDocumentGaps,
  kDocumentIds,
  kChunkedOrDilated,
  kBlocks,
  kKeys,
  kKeysAndCausal,
  kMaskMod,
  kExpression
};

inline constexpr std::array kMaskNames = {"none", "causal", "topleft", "bottomright", "offsets", "window",
    "windowtopleft", "windowall", "windowoffs", "sliding", "lengths", "keep", "keepb1qk", "keepb11k", "keepstr0",
    "keepbk", "keepqk", "keepbqk", "keephqk", "drop", "dropbk", "dropqk", "drophqk", "dropall", "causalandlen",
    "offsandlen", "windowandkeep", "threemasks", "startsandqueries", "prefixlm", "streaming", "globals", "documents",
    "documentgaps", "documentids", "chunkedordilated", "blocks", "keys", "keysandcausal", "maskmod", "expression"};
static_assert(kMaskNames.size() == static_cast<std::size_t>(MaskKind::kExpression) + 1);

inline std::string mask_name(MaskKind kind) { return kMaskNames[static_cast<std::size_t>(kind)]; }

/// Those that only square shapes may take.
inline bool needs_square(MaskKind kind) {
  return kind == MaskKind::kCausal || kind == MaskKind::kCausalAndLengths || kind == MaskKind::kThreeMasks;
}

/// The mask of a kind for sizes B, H, Tq, Tk; offsets, lengths and bytes are drawn from `seed`.
MaskCase make_mask(MaskKind kind, Index batch, Index num_heads, Index q_len, Index kv_len, std::uint64_t seed);

}  // namespace qkv::test

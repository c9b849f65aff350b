// Leaves of the mask algebra drawn at random, each as the qkv::Mask under test and as a predicate of single pairs, and
// random expressions of & and | over them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qkv/mask.h"
#include "reference/attention.h"
#include "support/random.h"

namespace qkv::test {

/// A mask, what it should keep, and what it borrows.
struct MaskCase {
  Mask mask;
  reference::Keep keep;
  std::shared_ptr<Tensor<std::uint8_t>> dense = nullptr;
  std::vector<std::shared_ptr<const void>> borrowed = {};
  std::shared_ptr<Tensor<std::int32_t>> index = nullptr;  // of short lists (listed_case.h)
};

/// Pairs that both keep, and that either keeps.
MaskCase both(const MaskCase& a, const MaskCase& b);
MaskCase either(const MaskCase& a, const MaskCase& b);
/// keep(b, i, j) = c - left <= j <= c + right with c = i + offsets[b]; -1 is unbounded
reference::Keep window_keep(Index left, Index right, std::vector<Index> offsets);

enum class LeafKind {
  kCausal,
  kCausalOffsets,
  kWindow,
  kWindowOffsets,
  kDilated,
  kChunked,
  kChunkedStarts,
  kKeyLengths,
  kKeyStarts,
  kQueryLengths,
  kPrefix,
  kFirst,
  kGlobalRows,
  kGlobalColumns,
  kDocuments,
  kDocumentsInside,
  kDocumentGaps,
  kDocumentIds,
  kDocumentIdsEach,
  kDense,
  kBlocks,
  kKeys,
  kMaskMod
};
inline constexpr int kNumLeaves = static_cast<int>(LeafKind::kMaskMod) + 1;

/// Draws masks for calls of one size. With `lengths`, bands avoid bottom-right, which key lengths forbid.
class MaskMaker {
 public:
  MaskMaker(Index batch, Index num_heads, Index q_len, Index kv_len, bool lengths, Random& random)
      : batch_(batch), num_heads_(num_heads), q_len_(q_len), kv_len_(kv_len), lengths_(lengths), random_(random) {}

  MaskCase expression(int depth);

  MaskCase leaf(LeafKind kind);

 private:
  static std::size_t count(Index n) { return static_cast<std::size_t>(n); }
  static Index at(const std::vector<Index>& values, Index n) { return values[count(n)]; }

  template <class Draw> std::vector<Index> each(const Draw& draw) {
    std::vector<Index> values(count(batch_));
    for (Index& value : values) value = draw();
    return values;
  }
  /// From nothing visible to everything visible.
  Index any_offset() { return random_.below(q_len_ + kv_len_ + 3) - q_len_ - 1; }
  Index reach() { return random_.below(3) == 0 ? -1 : random_.below(90); }
  std::pair<Align, Index> alignment();
  std::vector<Index> positions(Index length);

  /// `cuts` + 1 ascending values from 0 to length; equal ones where a document is empty.
  std::vector<Index> cuts(Index documents, Index length);

  MaskCase documents(LeafKind kind);

  MaskCase document_ids(bool each_sequence);

  MaskCase dense();

  MaskCase blocks();

  /// Lists in any order with gaps, rows without keys and with one; for one head, each, or pairs of them.
  MaskCase keys();

  Index batch_, num_heads_, q_len_, kv_len_;
  bool lengths_;
  Random& random_;
};

}  // namespace qkv::test

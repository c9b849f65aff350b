// Where dbias of one call goes, and in which order: an axis that the bias repeats is summed over, so items share its
// elements.
#pragma once

#include <algorithm>

#include "attention/call/problem.h"
#include "core/threads/turns.h"

namespace qkv::inline v0 {

/// Whether a bias, or its gradient, repeats over the queries.
inline bool sums_over_queries(const AnyView& bias, const Problem& p) {
  return bias.data != nullptr && bias.size(2) == 1 && p.q_len > 1;
}

template <class Sum> struct BiasGradient {
  AnyView dbias;              // null: not wanted
  bool shared = false;        // items of different batches, heads or key ranges add to the same element
  bool over_queries = false;  // the query axis repeats: a worker sums its item privately and adds it once at the end
  bool sets = false;          // items meet every element, each once: they set it, and nobody clears it first
  Index batch_stride = 0, head_stride = 0, row_stride = 0, column_stride = 0;

  /// `alone`: the call sees all of a dense problem, and nothing was added before.
  BiasGradient(const AnyView& view, const Problem& p, bool alone = false) : dbias(view) {
    if (!wanted()) return;
    batch_stride = repeat_stride(dbias, 0);
    head_stride = repeat_stride(dbias, 1);
    row_stride = repeat_stride(dbias, 2);
    column_stride = repeat_stride(dbias, 3);
    over_queries = sums_over_queries(dbias, p);
    shared = (dbias.size(0) == 1 && p.batch > 1) || (dbias.size(1) == 1 && p.num_heads > 1) ||
             (dbias.size(3) == 1 && p.kv_len > p.backward_keys);
    sets = alone && !shared && row_stride != 0 && column_stride != 0 && p.mask.keeps_all() && !p.is_part() &&
           p.part_mask.mask == nullptr && p.pairs() > 0;
  }

  bool wanted() const { return dbias.data != nullptr && !dbias.is_empty(); }
  Sum* head(Index b, Index h) const { return reinterpret_cast<Sum*>(dbias.data) + b * batch_stride + h * head_stride; }

  /// Where the tile's kernel adds, for its keys [k_begin, k_begin + k_count): privately if the query axis repeats.
  void begin_tile(BackwardTile<Sum>& tile, Sum* own, Index b, Index h) const {
    tile.dbias_row_stride = over_queries ? 0 : row_stride;
    tile.dbias_column_stride = over_queries && column_stride != 0 ? 1 : column_stride;
    tile.sets_dbias = sets;
    tile.dbias = over_queries ? own - tile.k_begin * tile.dbias_column_stride : head(b, h);
    if (over_queries) std::fill_n(own, tile.k_count, Sum{0});
  }

  /// Adds a private sum over queries, [nj] or one number, to keys [j0, j0 + nj).
  void add_private(const Sum* sums, Index b, Index h, Index j0, Index nj) const {
    if (nj == 0) return;  // second order has tiles without keys
    Sum* target = head(b, h);
    if (column_stride == 0) {
      *target += sums[0];
      return;
    }
    for (Index j = 0; j < nj; ++j) target[(j0 + j) * column_stride] += sums[j];
  }
};

}  // namespace qkv::inline v0

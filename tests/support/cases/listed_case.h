// Problems whose mask lists each query's keys, short lists that calls read alone. Not: lists of any length beside other options
// (MaskKind::kKeys).
#pragma once

#include <vector>

#include "support/problem.h"

namespace qkv::test {

struct ListShape {
  Index batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, v_head_dim, lists, width;

  AttentionCase as_case() const {
    AttentionCase made;
    made.batch = batch, made.num_heads = num_heads, made.num_kv_heads = num_kv_heads;
    made.q_len = q_len, made.kv_len = kv_len, made.head_dim = head_dim, made.v_head_dim = v_head_dim;
    made.seed = static_cast<std::uint64_t>(kv_len + num_heads);
    return made;
  }
};
/// One query and many, shared lists and each head's, groups for decode's kernel and for the tiled one, parts of lists.
inline const std::vector<ListShape> kListShapes = {{2, 4, 2, 1, 200, 20, 12, 1, 30},   {1, 8, 1, 1, 3000, 16, 16, 1, 1300},
                                                   {1, 4, 4, 5, 300, 9, 9, 4, 20},     {2, 8, 2, 70, 260, 24, 40, 2, 21},
                                                   {1, 24, 1, 40, 250, 20, 16, 1, 25}, {1, 40, 1, 3, 150, 72, 64, 1, 17},
                                                   {1, 6, 2, 30, 400, 33, 17, 6, 15},  {1, 9, 1, 33, 700, 64, 64, 1, 110},
                                                   {3, 2, 1, 9, 128, 130, 128, 1, 6},  {1, 16, 1, 20, 2300, 128, 128, 1, 300}};

/// Index [B, lists, Tq, k] of ascending keys: those of a row are `step` or more apart, the row's number decides where they begin.
/// Row 1 lists nothing, row 2 one key.
inline Tensor<std::int32_t> listed_keys(const ListShape& s) {
  Tensor<std::int32_t> index({s.batch, s.lists, s.q_len, s.width});
  const Index step = s.kv_len / s.width;
  for (Index row = 0; row < s.batch * s.lists * s.q_len; ++row) {
    const Index wanted = row % s.q_len == 1 ? 0 : row % s.q_len == 2 ? 1 : s.width;
    for (Index n = 0; n < s.width; ++n) {
      index.data()[row * s.width + n] = n < wanted ? static_cast<std::int32_t>(n * step + (row * 7 + n) % step) : -1;
    }
  }
  return index;
}

/// The problem of a shape under its lists; NaN in every key and value that no query of the group attends.
template <class T>
struct ListedProblem : Problem<T> {
  Tensor<std::int32_t> index;
  Tensor<std::uint8_t> keep;  // [B, H, Tq, Tk]

  /// `filter`: a mask that must keep a listed pair too; nullptr: none.
  ListedProblem(const ListShape& s, const AttentionCase& made, const Mask* filter = nullptr)
      : Problem<T>(made), index(listed_keys(s)), keep({s.batch, s.num_heads, s.q_len, s.kv_len}) {
    this->options.mask = filter == nullptr ? Mask::keys(index) : *filter & Mask::keys(index);
    mask_to_dense(this->options.mask, keep);
    const View<std::uint8_t, 4> kept = keep;
    this->mask = {this->options.mask, [kept](Index b, Index h, Index i, Index j) { return kept(b, h, i, j) != 0; }};
    const Index group = s.num_heads / s.num_kv_heads;
    for (Index b = 0; b < s.batch; ++b) {
      for (Index h = 0; h < s.num_heads; h += group) {
        for (Index j = 0; j < s.kv_len; ++j) {
          bool read = false;
          for (Index r = h; r < h + group; ++r) {
            for (Index i = 0; i < s.q_len; ++i) read |= kept(b, r, i, j) != 0;
          }
          if (read) continue;
          for (Index d = 0; d < s.head_dim; ++d) this->k()(b, h / group, j, d) = kQuietNan<T>;
          for (Index d = 0; d < s.v_head_dim; ++d) this->v()(b, h / group, j, d) = kQuietNan<T>;
        }
      }
    }
  }
  ListedProblem(const ListedProblem&) = delete;
};

}  // namespace qkv::test

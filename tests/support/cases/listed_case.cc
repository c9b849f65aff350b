#include "support/cases/listed_case.h"

namespace qkv::test {

namespace {

AttentionCase list_case(Index batch, Index heads, Index kv_heads, Index q_len, Index kv_len, Index head_dim,
    Index v_head_dim, Index lists, Index width) {
  AttentionCase made{batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim};
  made.fill = Fill::kNanBehindMask;
  made.seed = static_cast<std::uint64_t>(kv_len + heads);
  made.lists = lists, made.list_width = width;
  return made;
}

}  // namespace

std::vector<AttentionCase> list_cases() {
  return {list_case(2, 4, 2, 1, 200, 20, 12, 1, 30), list_case(1, 8, 1, 1, 3000, 16, 16, 1, 1300),
      list_case(1, 4, 4, 5, 300, 9, 9, 4, 20), list_case(1, 8, 2, 40, 260, 24, 17, 2, 21),
      list_case(1, 24, 1, 9, 250, 20, 16, 1, 25), list_case(1, 40, 1, 3, 150, 72, 64, 1, 17),
      list_case(1, 6, 2, 30, 400, 17, 9, 6, 15), list_case(1, 9, 1, 17, 700, 16, 20, 1, 110),
      list_case(3, 2, 1, 9, 128, 130, 128, 1, 6), list_case(1, 16, 1, 4, 2300, 33, 16, 1, 300)};
}

std::vector<AttentionCase> long_list_cases() {
  return {list_case(1, 2, 2, 40, 128, 16, 16, 1, 50), list_case(2, 6, 2, 20, 400, 20, 9, 2, 15)};
}

MaskCase listed_mask(const AttentionCase& c) {
  const auto index =
      std::make_shared<Tensor<std::int32_t>>(std::vector<Index>{c.batch, c.lists, c.q_len, c.list_width});
  const Index step = c.kv_len / c.list_width;
  for (Index row = 0; row < c.batch * c.lists * c.q_len; ++row) {
    const Index wanted = row % c.q_len == 1 ? 0 : row % c.q_len == 2 ? 1 : c.list_width;
    for (Index n = 0; n < c.list_width; ++n) {
      index->data()[row * c.list_width + n] =
          n < wanted ? static_cast<std::int32_t>(n * step + (row * 7 + n) % step) : -1;
    }
  }
  MaskCase made;
  made.mask = Mask::keys(View<const std::int32_t, 4>(*index));
  if (c.mask != MaskKind::kNone) {
    const auto filter = std::make_shared<MaskCase>(make_mask(c.mask, c.batch, c.num_heads, c.q_len, c.kv_len, c.seed));
    made.mask = filter->mask & made.mask;
    made.borrowed.push_back(filter);
  }
  made.index = index;
  made.dense = std::make_shared<Tensor<std::uint8_t>>(std::vector<Index>{c.batch, c.num_heads, c.q_len, c.kv_len});
  mask_to_dense(made.mask, *made.dense);
  made.keep = [dense = made.dense, kept = View<const std::uint8_t, 4>(*made.dense)](
                  Index b, Index h, Index i, Index j) { return kept(b, h, i, j) != 0; };
  return made;
}

}  // namespace qkv::test

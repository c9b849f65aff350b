// The masks that other systems have a name for, each as this library spells it, against the definition that its own
// source gives. Sources: xformers/ops/fmha/attn_bias.py; torch.nn.attention.flex_attention's documentation and
// attention-gym's masks; transformers/masking_utils.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "qkv/attention.h"
#include "reference/attention.h"
#include "support/index.h"

namespace qkv::test {
namespace {

using reference::Keep;

/// The mask, written out, is the definition. `sizes`: B, H, Tq, Tk.
void expect_named(const char* name, const Mask& mask, const std::array<Index, 4>& sizes, const Keep& definition) {
  Tensor<std::uint8_t> drawn({sizes[0], sizes[1], sizes[2], sizes[3]});
  mask_to_dense(mask, drawn);
  const View<const std::uint8_t, 4> drawing = drawn;
  for_each_index(sizes, [&](Index b, Index h, Index i, Index j) {
    ASSERT_EQ(drawing(b, h, i, j) != 0, definition(b, h, i, j))
        << name << " as " << mask.describe() << ": " << b << " " << h << " " << i << " " << j;
  });
}

/// Python's //.
Index floor_division(Index a, Index b) { return (a - ((a % b) + b) % b) / b; }

using Offsets = std::vector<Index>;

/// [0, a, a + b, ...], xFormers' seqstart_py.
Offsets starts_of(const Offsets& lengths) {
  Offsets offsets = {0};
  for (const Index length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

/// xFormers' materialize: for each document, what `block(i, j, queries, keys)` keeps of it, in its own positions.
template <class Block> Keep in_documents(Offsets q, Offsets k, Block block) {
  return [=](Index, Index, Index i, Index j) {
    for (std::size_t d = 0; d + 1 < q.size(); ++d) {
      if (i < q[d] || i >= q[d + 1] || j < k[d] || j >= k[d + 1]) continue;
      return block(i - q[d], j - k[d], q[d + 1] - q[d], k[d + 1] - k[d]);
    }
    return false;
  };
}

// The pairs that a document keeps, as torch.tril and torch.triu say it.
bool tril(Index i, Index j, Index, Index) { return j - i <= 0; }
bool tril_bottom_right(Index i, Index j, Index queries, Index keys) { return j - i <= keys - queries; }
auto local_causal(Index window, bool bottom_right) {
  return [=](Index i, Index j, Index queries, Index keys) {
    const Index shift = bottom_right ? keys - queries : 0;
    return j - i <= shift && j - i >= shift - window + 1;
  };
}

TEST(MaskNames, XFormersOfOneSequence) {
  const std::array<Index, 4> square = {1, 1, 9, 9}, wide = {1, 1, 4, 9};
  const auto plain = [](auto block, const std::array<Index, 4>& sizes) -> Keep {
    return [=](Index, Index, Index i, Index j) { return block(i, j, sizes[2], sizes[3]); };
  };
  expect_named("LowerTriangularMask", Mask::causal(Align::kTopLeft), wide, plain(tril, wide));
  // LowerTriangularMaskWithTensorBias is this one beside AttentionOptions::bias (cases_test.cc).
  expect_named("LowerTriangularMask", Mask::causal(), square, plain(tril, square));
  expect_named(
      "LowerTriangularFromBottomRightMask", Mask::causal(Align::kBottomRight), wide, plain(tril_bottom_right, wide));
  expect_named("LowerTriangularFromBottomRightLocalAttentionMask(3)", Mask::sliding(3, Align::kBottomRight), wide,
      plain(local_causal(3, true), wide));
  const auto local = [](Index i, Index j, Index queries, Index keys) {
    return i - 1 <= j + queries - keys && j + queries - keys <= i + 2;
  };
  expect_named(
      "LocalAttentionFromBottomRightMask(1, 2)", Mask::window(1, 2, Align::kBottomRight), wide, plain(local, wide));
}

TEST(MaskNames, XFormersBlockDiagonal) {
  const Offsets q_lengths = {3, 4, 2, 5}, k_lengths = {4, 4, 6, 5};
  const Offsets q = starts_of(q_lengths), k = starts_of(k_lengths);
  const std::array<Index, 4> sizes = {1, 1, q.back(), k.back()}, square = {1, 1, q.back(), q.back()};
  const auto all = [](Index, Index, Index, Index) { return true; };
  expect_named("BlockDiagonalMask", Mask::documents(q, k), sizes, in_documents(q, k, all));
  expect_named("BlockDiagonalMask of one list", Mask::documents(q), square, in_documents(q, q, all));
  expect_named(
      "BlockDiagonalCausalMask", Mask::documents(q, k, Mask::causal(Align::kTopLeft)), sizes, in_documents(q, k, tril));
  expect_named(
      "BlockDiagonalCausalMask of one list", Mask::documents(q) & Mask::causal(), square, in_documents(q, q, tril));
  expect_named("BlockDiagonalCausalFromBottomRightMask", Mask::documents(q, k, Mask::causal(Align::kBottomRight)),
      sizes, in_documents(q, k, tril_bottom_right));
  expect_named("BlockDiagonalCausalLocalAttentionMask(2)", Mask::documents(q, k, Mask::sliding(2, Align::kTopLeft)),
      sizes, in_documents(q, k, local_causal(2, false)));
  expect_named("BlockDiagonalCausalLocalAttentionFromBottomRightMask(2)",
      Mask::documents(q, k, Mask::sliding(2, Align::kBottomRight)), sizes, in_documents(q, k, local_causal(2, true)));
}

TEST(MaskNames, HuggingFaceFunctions) {
  const Index length = 23;
  const std::array<Index, 4> sizes = {2, 1, length, length};
  const Keep causal = [](Index, Index, Index q, Index kv) { return kv <= q; };
  const auto and_masks = [](const Keep& a, const Keep& b) -> Keep {
    return [=](Index s, Index h, Index q, Index kv) { return a(s, h, q, kv) && b(s, h, q, kv); };
  };
  expect_named("causal_mask_function", Mask::causal(), sizes, causal);
  expect_named("bidirectional_mask_function", Mask(), sizes, [](Index, Index, Index q, Index) { return q >= 0; });
  const Keep sliding = [](Index, Index, Index q, Index kv) { return kv > q - 5; };
  expect_named("sliding_window_overlay(5)", Mask::window(4, -1), sizes, sliding);
  expect_named("sliding_window_causal_mask_function(5)", Mask::sliding(5), sizes, and_masks(sliding, causal));
  expect_named("sliding_window_bidirectional_overlay(5)", Mask::window(5, 5), sizes,
      [](Index, Index, Index q, Index kv) { return std::abs(q - kv) <= 5; });
  const Offsets left_padding = {0, 3};
  const Keep chunked = [=](Index b, Index, Index q, Index kv) {
    const Index pad = left_padding[static_cast<std::size_t>(b)];
    return floor_division(kv - pad, 6) == floor_division(q - pad, 6);
  };
  expect_named("chunked_overlay(6, left_padding)", Mask::chunked(6, left_padding), sizes, chunked);
  expect_named("chunked_causal_mask_function(6, left_padding)", Mask::chunked(6, left_padding) & Mask::causal(), sizes,
      and_masks(chunked, causal));

  Tensor<std::uint8_t> padding({2, length});  // left padding of 0 and 3, as tokenizers make it
  for (Index n = 0; n < 2 * length; ++n) padding.data()[n] = n < length || n - length >= 3;
  const View<const std::uint8_t, 2> padding_mask = padding;
  const Keep padded = [=](Index b, Index, Index, Index kv) { return padding_mask(b, kv) != 0; };
  expect_named("padding_mask_function, dense", Mask::keep(padding_mask, MaskAxes::kBk), sizes, padded);
  expect_named("padding_mask_function, left", Mask::key_starts(left_padding), sizes, padded);
  const Offsets lengths = {23, 11};
  expect_named("padding_mask_function, right", Mask::key_lengths(lengths), sizes,
      [=](Index b, Index, Index, Index kv) { return kv < lengths[static_cast<std::size_t>(b)]; });

  Tensor<Index> ids({2, length}), blocks({2, length});  // packed sequences; image blocks, -1: text
  for (Index n = 0; n < 2 * length; ++n) {
    ids.data()[n] = (n % length) / (n < length ? 7 : 10);
    blocks.data()[n] = (n % length) / 4 % 2 == 0 ? -1 : (n % length) / 4;
  }
  const View<const Index, 2> packed = ids, block_ids = blocks;
  expect_named("packed_sequence_mask_function", Mask::document_ids(packed), sizes,
      [=](Index b, Index, Index q, Index kv) { return packed(b, q) == packed(b, kv); });
  const Keep blockwise = [=](Index b, Index, Index q, Index kv) {
    return block_ids(b, q) == block_ids(b, kv) && block_ids(b, q) >= 0;
  };
  expect_named("blockwise_overlay", Mask::document_ids(block_ids), sizes, blockwise);
  expect_named("or_masks(causal, blockwise_overlay)", Mask::causal() | Mask::document_ids(block_ids), sizes,
      [=](Index s, Index h, Index q, Index kv) { return causal(s, h, q, kv) || blockwise(s, h, q, kv); });
  const Offsets cached = {4, 4};  // add_offsets_to_mask_function(causal, q_offset 4): four keys are cached
  expect_named("add_offsets_to_mask_function(causal, 4, 0)", Mask::causal(cached), {2, 1, length - 4, length},
      [](Index, Index, Index q, Index kv) { return kv <= q + 4; });
}

TEST(MaskNames, FlexAttentionAndItsGym) {
  const Index length = 24;
  const std::array<Index, 4> sizes = {2, 2, length, length};
  expect_named("causal_mask", Mask::causal(), sizes, [](Index, Index, Index q, Index kv) { return q >= kv; });
  expect_named("sliding_window_causal", Mask::causal() & Mask::window(5, -1), sizes,
      [](Index, Index, Index q, Index kv) { return q >= kv && q - kv <= 5; });
  const Offsets prefix = {7, 2};
  expect_named("prefix_lm", Mask::prefix(prefix) | Mask::causal(), sizes,
      [=](Index b, Index, Index q, Index kv) { return kv <= prefix[static_cast<std::size_t>(b)] - 1 || kv <= q; });
  const Offsets offsets = {0, 5, 13, length};
  const auto document = [=](Index p) { return p < 5 ? 0 : p < 13 ? 1 : 2; };
  expect_named("document_mask", Mask::documents(offsets), sizes,
      [=](Index, Index, Index q, Index kv) { return document(q) == document(kv); });
  expect_named("document_causal_mask", Mask::documents(offsets, offsets, Mask::causal()), sizes,
      [=](Index, Index, Index q, Index kv) {
        const Index base_q = offsets[static_cast<std::size_t>(document(q))];
        const Index base_kv = offsets[static_cast<std::size_t>(document(kv))];
        return document(q) == document(kv) && q - base_q >= kv - base_kv;
      });
  expect_named("dilated_sliding_window(8, 2)", Mask::window(8, 8) & Mask::dilated(2), sizes,
      [](Index, Index, Index q, Index kv) { return std::abs(q - kv) <= 8 && std::abs(q - kv) % 2 == 0; });
  expect_named("sink_window(3, 4)", (Mask::window(3, -1) | Mask::first(4)) & Mask::causal(), sizes,
      [](Index, Index, Index q, Index kv) { return (q - kv <= 3 || kv < 4) && q >= kv; });
  const auto natten = [](Index, Index, Index q, Index kv) {  // a canvas of 6 x 4, a kernel of 3 x 3
    const auto x = [](Index n) { return n / 6; };
    const auto y = [](Index n) { return n % 6; };
    const Index center_x = std::clamp<Index>(x(q), 1, 4), center_y = std::clamp<Index>(y(q), 1, 2);
    return std::abs(center_x - x(kv)) <= 1 && std::abs(center_y - y(kv)) <= 1;
  };
  const BlockMap map =
      block_map(Mask::mask_mod(natten), {.q_len = length, .kv_len = length, .q_block = 4, .kv_block = 4});
  EXPECT_LT(map.density(), 1);
  expect_named("create_block_mask(natten_mask_mod)", Mask::blocks(map) & Mask::mask_mod(natten), sizes, natten);
}

TEST(MaskNames, Papers) {
  const Index length = 40;
  const std::array<Index, 4> sizes = {1, 2, length, length};
  const Offsets global = {0, 17};
  const auto is_global = [](Index p) { return p == 0 || p == 17; };
  expect_named("Longformer", Mask::window(4, 4) | Mask::global_rows(global) | Mask::global_columns(global), sizes,
      [=](Index, Index, Index i, Index j) { return std::abs(i - j) <= 4 || is_global(i) || is_global(j); });
  expect_named("StreamingLLM", (Mask::window(9, 0) | Mask::first(4)) & Mask::causal(), sizes,
      [](Index, Index, Index i, Index j) { return j <= i && (j >= i - 9 || j < 4); });
  expect_named("Sparse Transformer, strided", Mask::causal() & (Mask::window(7, 0) | Mask::dilated(8)), sizes,
      [](Index, Index, Index i, Index j) { return j <= i && (i - j < 8 || (i - j) % 8 == 0); });
  expect_named("Llama 4", Mask::chunked(8) & Mask::causal(), sizes,
      [](Index, Index, Index i, Index j) { return i / 8 == j / 8 && j <= i; });
}

}  // namespace
}  // namespace qkv::test

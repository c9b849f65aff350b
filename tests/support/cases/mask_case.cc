#include "support/cases/mask_case.h"

#include <memory>
#include <span>
#include <vector>

#include "support/random.h"

namespace qkv::test {

namespace {

/// keep(b, i, j) = j <= i + offsets[b]
MaskCase causal(const std::vector<Index>& offsets) {
  return {Mask::causal(std::span<const Index>(offsets)),
      [=](Index b, Index, Index i, Index j) { return j <= i + offsets[static_cast<std::size_t>(b)]; }, nullptr};
}

MaskCase lengths(const std::vector<Index>& key_lengths) {
  return {Mask::key_lengths(std::span<const Index>(key_lengths)),
      [=](Index b, Index, Index, Index j) { return j < key_lengths[static_cast<std::size_t>(b)]; }, nullptr};
}

/// Random 0 / non-zero bytes, seven of ten non-zero, some rows all zero and some all non-zero.
std::shared_ptr<Tensor<std::uint8_t>> random_bytes(const std::vector<Index>& sizes, Random& random) {
  auto bytes = std::make_shared<Tensor<std::uint8_t>>(sizes);
  const Index width = std::max<Index>(sizes.back(), 1);
  Index style = 0;
  for (Index n = 0; n < bytes->count(); ++n) {
    if (n % width == 0) style = random.below(8);
    const bool set = style == 0 ? false : style == 1 ? true : random.below(10) < 7;
    bytes->data()[n] = set ? static_cast<std::uint8_t>(1 + random.below(255)) : std::uint8_t{0};
  }
  return bytes;
}

/// Four axes of which each is full (1) or repeats (0).
MaskCase dense4(std::array<Index, 4> sizes, std::array<bool, 4> full, bool is_drop, Random& random) {
  for (std::size_t axis = 0; axis < 4; ++axis) sizes[axis] = full[axis] ? sizes[axis] : 1;
  auto bytes = random_bytes({sizes.begin(), sizes.end()}, random);
  const View<const std::uint8_t, 4> view = *bytes;
  return {is_drop ? Mask::drop(view) : Mask::keep(view),
      [=](Index b, Index h, Index i, Index j) {
        return (view(full[0] ? b : 0, full[1] ? h : 0, full[2] ? i : 0, full[3] ? j : 0) != 0) != is_drop;
      },
      bytes};
}

MaskCase dense2(Index rows, Index columns, MaskAxes axes, bool is_drop, Random& random) {
  auto bytes = random_bytes({rows, columns}, random);
  const View<const std::uint8_t, 2> view = *bytes;
  return {is_drop ? Mask::drop(view, axes) : Mask::keep(view, axes),
      [=](Index b, Index, Index i, Index j) { return (view(axes == MaskAxes::kBk ? b : i, j) != 0) != is_drop; },
      bytes};
}

MaskCase dense3(Index outer, Index rows, Index columns, MaskAxes axes, bool is_drop, Random& random) {
  auto bytes = random_bytes({outer, rows, columns}, random);
  const View<const std::uint8_t, 3> view = *bytes;
  return {is_drop ? Mask::drop(view, axes) : Mask::keep(view, axes),
      [=](Index b, Index h, Index i, Index j) { return (view(axes == MaskAxes::kBqk ? b : h, i, j) != 0) != is_drop; },
      bytes};
}

}  // namespace

MaskCase make_mask(MaskKind kind, Index batch, Index num_heads, Index q_len, Index kv_len, std::uint64_t seed) {
  Random random(seed);
  const auto count = static_cast<std::size_t>(batch);
  const std::vector<Index> zero(count, 0), bottom_right(count, kv_len - q_len);
  std::vector<Index> offsets(count), key_lengths(count);
  for (Index& offset : offsets)
    offset = random.below(q_len + kv_len + 3) - q_len - 1;  // from nothing visible to everything visible
  for (Index& length : key_lengths) length = random.below(kv_len + 1);
  const auto axis_window = [&](Index left, Index right, Align align) {
    return MaskCase{Mask::window(left, right, align),
        window_keep(left, right, align == Align::kBottomRight ? bottom_right : zero), nullptr};
  };
  const std::array<Index, 4> sizes = {batch, num_heads, q_len, kv_len};
  MaskMaker maker(batch, num_heads, q_len, kv_len, seed % 2 == 0, random);

  switch (kind) {
    case MaskKind::kNone: return {Mask(), [](Index, Index, Index, Index) { return true; }, nullptr};
    case MaskKind::kCausal: return {Mask::causal(), causal(zero).keep, nullptr};
    case MaskKind::kCausalTopLeft: return {Mask::causal(Align::kTopLeft), causal(zero).keep, nullptr};
    case MaskKind::kCausalBottomRight: return {Mask::causal(Align::kBottomRight), causal(bottom_right).keep, nullptr};
    case MaskKind::kCausalOffsets: return causal(offsets);
    case MaskKind::kWindow: return axis_window(5, 2, Align::kBottomRight);
    case MaskKind::kWindowTopLeft: return axis_window(0, 70, Align::kTopLeft);
    case MaskKind::kWindowUnbounded: return axis_window(-1, 1, Align::kTopLeft);
    case MaskKind::kWindowOffsets:
      return {Mask::window(66, -1, std::span<const Index>(offsets)), window_keep(66, -1, offsets), nullptr};
    case MaskKind::kSliding: return {Mask::sliding(40, Align::kBottomRight), window_keep(39, 0, bottom_right), nullptr};
    case MaskKind::kKeyLengths: return lengths(key_lengths);
    case MaskKind::kKeepDense: return dense4(sizes, {true, true, true, true}, false, random);
    case MaskKind::kKeepHeadsShared: return dense4(sizes, {true, false, true, true}, false, random);
    case MaskKind::kKeepKeys: return dense4(sizes, {true, false, false, true}, false, random);
    case MaskKind::kKeepStrideZero: {  // a [B, 1, 1, Tk] mask under its full sizes, expanded with stride 0
      MaskCase made = dense4(sizes, {true, false, false, true}, false, random);
      made.mask = Mask::keep(View<const std::uint8_t, 4>(made.dense->data(), sizes, {kv_len, 0, 0, 1}));
      return made;
    }
    case MaskKind::kKeepBk: return dense2(batch, kv_len, MaskAxes::kBk, false, random);
    case MaskKind::kKeepQk: return dense2(q_len, kv_len, MaskAxes::kQk, false, random);
    case MaskKind::kKeepBqk: return dense3(batch, q_len, kv_len, MaskAxes::kBqk, false, random);
    case MaskKind::kKeepHqk: return dense3(num_heads, q_len, kv_len, MaskAxes::kHqk, false, random);
    case MaskKind::kDropDense: return dense4(sizes, {true, true, true, true}, true, random);
    case MaskKind::kDropBk: return dense2(batch, kv_len, MaskAxes::kBk, true, random);
    case MaskKind::kDropQk: return dense2(q_len, kv_len, MaskAxes::kQk, true, random);
    case MaskKind::kDropHqk: return dense3(num_heads, q_len, kv_len, MaskAxes::kHqk, true, random);
    case MaskKind::kDropAll: {
      MaskCase made = dense4(sizes, {true, false, false, true}, false, random);
      for (std::uint8_t& byte : made.dense->span()) byte = 0;
      return made;
    }
    case MaskKind::kCausalAndLengths: {
      return both({Mask::causal(), causal(zero).keep}, lengths(key_lengths));
    }
    case MaskKind::kOffsetsAndLengths: {
      return both(causal(offsets), lengths(key_lengths));
    }
    case MaskKind::kWindowAndKeep: {
      return both(axis_window(30, 30, Align::kBottomRight), dense4(sizes, {true, false, true, true}, false, random));
    }
    case MaskKind::kThreeMasks: {
      return both({Mask::causal(), causal(zero).keep},
          both(lengths(key_lengths), dense2(q_len, kv_len, MaskAxes::kQk, false, random)));
    }
    // Where two leaves are drawn, one after the other: compilers choose the order of arguments.
    case MaskKind::kStartsAndQueries: {
      const MaskCase queries = maker.leaf(LeafKind::kQueryLengths);
      return both(maker.leaf(LeafKind::kKeyStarts), queries);
    }
    case MaskKind::kPrefixLm:
      return either({Mask::causal(Align::kTopLeft), causal(zero).keep}, maker.leaf(LeafKind::kPrefix));
    case MaskKind::kStreaming: {
      const MaskCase first{Mask::first(4), [](Index, Index, Index, Index j) { return j < 4; }};
      return both(either(axis_window(20, 0, Align::kBottomRight), first),
          {Mask::causal(Align::kBottomRight), causal(bottom_right).keep});
    }
    case MaskKind::kGlobals: {
      const MaskCase columns = maker.leaf(LeafKind::kGlobalColumns);
      return either(axis_window(9, 9, Align::kTopLeft), either(maker.leaf(LeafKind::kGlobalRows), columns));
    }
    case MaskKind::kDocuments: return maker.leaf(LeafKind::kDocuments);
    case MaskKind::kDocumentGaps: return maker.leaf(LeafKind::kDocumentGaps);
    case MaskKind::kDocumentIds: return maker.leaf(LeafKind::kDocumentIdsEach);
    case MaskKind::kChunkedOrDilated: {
      const MaskCase dilated = both(axis_window(40, 40, Align::kTopLeft), maker.leaf(LeafKind::kDilated));
      return either(maker.leaf(LeafKind::kChunkedStarts), dilated);
    }
    case MaskKind::kBlocks: return maker.leaf(LeafKind::kBlocks);
    case MaskKind::kKeys: return maker.leaf(LeafKind::kKeys);
    case MaskKind::kKeysAndCausal:
      return both(maker.leaf(LeafKind::kKeys), {Mask::causal(Align::kBottomRight), causal(bottom_right).keep});
    case MaskKind::kMaskMod: return maker.leaf(LeafKind::kMaskMod);
    case MaskKind::kExpression: return maker.expression(3);
  }
  return {};
}

}  // namespace qkv::test

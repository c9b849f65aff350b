// libFuzzer: any text after four bytes of sizes is a mask in words or refused with UsageError; a mask that was read
// gives the same answer for single pairs, tiles, ranges and next keys, or is refused for those sizes with a typed
// error.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "attention/mask/node.h"
#include "mask/expression.h"
#include "qkv/tensor.h"
#include "support/command.h"

namespace qkv {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

/// Compares queries [i0, i0 + ni) of one head with `drawn` [Tq, Tk].
void hold_rows(const BoundMask& bound, View<const std::uint8_t, 4> drawn, Index b, Index h, Index i0, Index ni) {
  const Index keys = bound.extent.kv_len;
  Index begin = 0, end = 0;
  mask_key_range(&bound, b, h, i0, ni, &begin, &end);
  demand(0 <= begin && begin <= end && end <= keys);
  for (Index j = 0; j < keys; ++j) {
    bool any = false;
    for (Index i = i0; i < i0 + ni; ++i) {
      const bool kept = drawn(b, h, i, j) != 0;
      any |= kept;
      demand(kept == mask_keeps(bound, b, h, i, j));
    }
    const Index next = mask_next_key(&bound, b, h, i0, ni, j);
    demand(next >= j && next <= keys);
    demand(!any || (next == j && begin <= j && j < end && mask_meets(bound, b, h, i0, ni, j, 1)));
  }
}

void hold(const Mask& mask, const MaskExtent& extent) {
  Tensor<std::uint8_t> drawn({extent.batch, extent.num_heads, extent.q_len, extent.kv_len});
  mask_to_dense(mask, drawn);
  demand(!mask.describe().empty());
  const BoundMask bound{mask.node(), extent};
  constexpr Index tile = 32;
  for (Index b = 0; b < extent.batch; ++b) {
    for (Index h = 0; h < extent.num_heads; ++h) {
      for (Index i0 = 0; i0 < extent.q_len; i0 += tile) {
        hold_rows(bound, drawn, b, h, i0, std::min(tile, extent.q_len - i0));
      }
    }
  }
}

}  // namespace
}  // namespace qkv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  constexpr std::size_t kSizes = 4;
  if (size < kSizes) return 0;
  const MaskExtent extent{1 + data[0] % 2, 1 + data[1] % 2, 1 + data[2] % 40, 1 + data[3] % 40};
  const std::string text(reinterpret_cast<const char*>(data) + kSizes, size - kSizes);
  try {
    hold(cli::parse_mask("EXPR", text, extent.q_len, extent.kv_len), extent);
  } catch (const cli::UsageError&) {
  } catch (const Error&) {
  }
  return 0;
}

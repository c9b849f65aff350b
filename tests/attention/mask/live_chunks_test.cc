// Decode asks a mask for the next live chunk of any head of the group and skips the others; on a cache too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "dispatch/kernels.h"
#include "qkv/tensor.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

constexpr Index kDim = 16, kGroup = 3;

/// One chunk of keys that head `head` may attend, and how often tiles were asked about.
struct OneChunk {
  Index head, chunk, keys;
  Index asked = 0;
};

int tile_of(const void* mask, Index, Index head, Index, Index, Index j0, Index, std::uint32_t*) {
  auto& one = *static_cast<OneChunk*>(const_cast<void*>(mask));
  ++one.asked;
  return head == one.head && j0 == one.chunk * one.keys ? kTileFull : kTileEmpty;
}

Index next_key_of(const void* mask, Index, Index head, Index, Index, Index key) {
  const auto& one = *static_cast<const OneChunk*>(mask);
  constexpr Index none = 1 << 20;
  if (head != one.head || key >= (one.chunk + 1) * one.keys) return none;
  return std::max(key, one.chunk * one.keys);
}

TEST(LiveChunks, DecodeAsksOnlyAboutThose) {
  for_each_isa(1, [](Context& context) {
    const DecodeKernels<float>& kernels = kernel_tables(context.isa()).cache.f32;
    const Index chunk = kernels.chunk(StoredType::kF32, kDim, kDim),
                keys = kernels.part_keys(StoredType::kF32, kDim, kDim);
    const Tensor<float> q({kGroup, kDim}), k({keys, kDim});
    Tensor<float> out({kGroup, kDim}), lse({kGroup});
    const auto rows_of = [](const Tensor<float>& t) {
      return Rows{reinterpret_cast<std::byte*>(const_cast<float*>(t.data())), StoredType::kF32, kDim};
    };
    const KeyMatrix rows{k.data(), nullptr, 0, kDim, 0}, by_row{k.data(), nullptr, kDim, kDim, 0};
    DecodeGroup<float> group{};
    group.scores.head_dim = kDim;
    group.scores.kv_len = keys;
    group.scores.scale = 1;
    group.q = rows_of(q);
    group.out = rows_of(out);
    group.lse = lse.data();
    group.q_head_stride = group.v_head_dim = group.out_head_stride = kDim;
    group.q_len = 1;
    group.group_size = kGroup;
    group.mask_differs = true;
    for (Index head = 0; head < kGroup; ++head) {
      for (Index live = 0; live < keys / chunk; ++live) {
        OneChunk one{head, live, chunk};
        group.scores.mask = {tile_of, nullptr, &one, 0, 0, next_key_of};
        Tensor<std::byte> scratch({static_cast<Index>(kernels.scratch_bytes(StoredType::kF32, kGroup, kDim, kDim))});
        Tensor<std::byte> state({static_cast<Index>(kernels.state_bytes(kGroup, kDim))});
        for (const bool in_one_page : {true, false}) {
          std::vector<Index> pages(static_cast<std::size_t>(keys));
          std::iota(pages.begin(), pages.end(), Index{0});
          group.keys = {StoredType::kF32, rows, rows, nullptr, 1, keys, {}, {0, keys}};
          if (!in_one_page) group.keys = {StoredType::kF32, by_row, by_row, pages.data(), keys, 1, {}, {0, keys}};
          one.asked = 0;
          kernels.part(group, 0, keys, scratch.data(), state.data());
          EXPECT_EQ(one.asked, kGroup) << "each head, of one chunk";
          kernels.finish(group, state.data());
          for (Index h = 0; h < kGroup; ++h) EXPECT_EQ(std::isfinite(lse.data()[h]), h == head);
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test

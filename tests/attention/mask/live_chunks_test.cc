// Decode asks a mask for the next live chunk of any head of the group and skips the others; on a cache
// too. Not: what is computed (mask_summary_test.cc, decode_test.cc), which chunks a mask names (mask_algebra_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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
    const DecodeKernels<float>& kernels = kernels_of<float>(context.isa()).decode;
    const CacheKernels<float>& cached = kernel_tables(context.isa()).cache.f32;
    const Index chunk = kernels.chunk(kDim, kDim), keys = kernels.part_keys(kDim, kDim);
    ASSERT_EQ(cached.decode_chunk(StoredType::kF32, kDim, kDim), chunk);
    const Tensor<float> q({kGroup, kDim}), k({keys, kDim});
    Tensor<float> out({kGroup, kDim}), lse({kGroup});
    DecodeGroup<float> group{};
    group.scores.q = q.data();
    group.scores.k = k.data();
    group.scores.q_stride = group.scores.k_stride = group.scores.head_dim = kDim;
    group.scores.kv_len = keys;
    group.scores.scale = 1;
    group.v = k.data();
    group.out = out.data();
    group.lse = lse.data();
    group.q_head_stride = group.v_stride = group.v_head_dim = group.out_head_stride = group.out_stride = kDim;
    group.q_len = 1;
    group.group_size = kGroup;
    group.mask_differs = true;
    const KeyMatrix rows{k.data(), nullptr, 0, kDim, 0};
    const HeadKeys cache{StoredType::kF32, rows, rows, nullptr, 1, keys, {}, {0, keys}};
    for (Index head = 0; head < kGroup; ++head) {
      for (Index live = 0; live < keys / chunk; ++live) {
        OneChunk one{head, live, chunk};
        group.scores.mask = {tile_of, nullptr, &one, 0, 0, next_key_of};
        Tensor<std::byte> scratch({static_cast<Index>(std::max(
            kernels.scratch_bytes(kGroup, kDim, kDim), cached.decode_scratch_bytes(StoredType::kF32, kGroup, kDim, kDim)))});
        Tensor<std::byte> state({static_cast<Index>(kernels.state_bytes(kGroup, kDim))});
        kernels.part(group, 0, keys, scratch.data(), state.data());
        EXPECT_EQ(one.asked, kGroup) << "each head, of one chunk";
        kernels.finish(group, state.data());
        for (Index h = 0; h < kGroup; ++h) EXPECT_EQ(std::isfinite(lse.data()[h]), h == head);
        one.asked = 0;
        cached.decode_part(group, cache, 0, keys, scratch.data(), state.data());
        EXPECT_EQ(one.asked, kGroup) << "on a cache";
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test

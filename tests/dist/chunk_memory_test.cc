// Where keys are sent in chunks a rank holds its own rows and O(chunk) beside them: bytes of the heap while ranks
// compute, counted at every poll.
#include <gtest/gtest.h>
#if defined(__GLIBC__)
#include <malloc.h>

#include <atomic>

#include "qkv/dist/context_parallel.h"
#include "qkv/dist/in_process.h"
#include "watched.h"

namespace qkv::test {
namespace {

Index live_bytes() {
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<Index>(heap.uordblks) + static_cast<Index>(heap.hblkhd);
}

/// The memory of all ranks together beside their tensors, forward and backward.
Index beside_the_tensors(dist::Method method, Index chunk, Index length) {
  constexpr int ranks = 4;
  constexpr Index heads = 2, width = 32;
  std::atomic<Index> largest{0};
  const Index rows = length / ranks;
  std::vector<Tensor<float>> tensors;
  std::vector<Tensor<float>> lse;
  for (int n = 0; n < ranks * 8; ++n) tensors.emplace_back(std::vector<Index>{1, heads, rows, width});
  for (int n = 0; n < ranks; ++n) lse.emplace_back(std::vector<Index>{1, heads, rows});
  const Index before = live_bytes();
  dist::run_in_process(ranks, [&](dist::Transport& inner) {
    Watched transport(inner, [&](std::size_t) {
      const Index now = live_bytes();
      Index so_far = largest;
      while (now > so_far && !largest.compare_exchange_weak(so_far, now)) {
      }
    });
    Context context({.threads = 1, .executor = nullptr});
    dist::ContextParallel cp(transport, {.method = method, .chunk = chunk}, context);
    Tensor<float>* const mine = &tensors[static_cast<std::size_t>(8 * transport.rank())];
    Tensor<float>& my_lse = lse[static_cast<std::size_t>(transport.rank())];
    const AttentionOptions options{.mask = Mask::causal() & Mask::sliding(700)};
    cp.forward(mine[0], mine[1], mine[2], mine[3], my_lse, options);
    AttentionGradients<float> wanted;
    wanted.dq = mine[5], wanted.dk = mine[6], wanted.dv = mine[7];
    cp.backward(mine[0], mine[1], mine[2], mine[3], my_lse, mine[4], wanted, options);
  });
  return largest - before;
}

TEST(ChunkMemory, DoesNotGrowWithTheKeys) {
  if (live_bytes() == 0) GTEST_SKIP() << "this heap does not count";
  constexpr Index length = 32768, width = 32;
  // Carried from chunk to chunk, of one head of each rank's rows: out undivided, two numbers a row; backward three
  // numbers a row.
  const Index carried = length * (width + 3) * Index{sizeof(float)};
  const Index of_chunk = 512 * width * Index{sizeof(float)}, scratch = 4 * (Index{2} << 20);
  // Of each rank: keys and values of two chunks; dk and dv of two and what comes for one, from one rank or from three.
  const Index ring = beside_the_tensors(dist::Method::kRing, 512, length);
  EXPECT_LE(ring, carried + 4 * (2 * 2 + 3 * 2) * of_chunk + scratch);
  const Index streamed = beside_the_tensors(dist::Method::kAllGather, 512, length);
  EXPECT_LE(streamed, carried + 4 * (2 * 2 + (2 + 3) * 2) * of_chunk + scratch);
  // Every key and value of two heads on every rank, and their gradients.
  EXPECT_GT(
      beside_the_tensors(dist::Method::kAllGather, 0, length), 4 * 2 * length * width * Index{sizeof(float)} + ring);
}

}  // namespace
}  // namespace qkv::test
#endif

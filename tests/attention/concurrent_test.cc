// Several threads that call at once: one context, one cache that all of them read, one mask with a callback that throws
// for some of them. The same bits as alone, and what is thrown reaches the caller whose call it was. ThreadSanitizer
// runs these.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "qkv/attention.h"
#include "support/cases/caches.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

constexpr int kCallers = 4, kRounds = 3;

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("the callback stops here") {}
};

/// Runs body(caller) on several threads, all of which begin together.
template <class Body> void at_once(const Body& body) {
  std::atomic<int> ready = 0;
  std::vector<std::thread> threads;
  for (int caller = 0; caller < kCallers; ++caller) {
    threads.emplace_back([&, caller] {
      for (++ready; ready < kCallers;) std::this_thread::yield();
      for (int round = 0; round < kRounds; ++round) body(caller);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Concurrent, CallersReadOneCache) {
  constexpr Index batch = 2, heads = 2, length = 300, width = 16;
  Tensor<float> k = random_tensor({batch, heads, length, width}, 1),
                v = random_tensor({batch, heads, length, width}, 2);
  for (const CacheStorage storage : {CacheStorage::kF32, CacheStorage::kInt8}) {
    for (const CacheKind kind : {CacheKind::kContiguous, CacheKind::kPages16}) {
      const KVCache cache = cache_of<float>(kind, storage, k.view<4>(), v.view<4>());
      for (const Index q_len : {Index{1}, Index{40}}) {  // decode, tiles
        const Tensor<float> q = random_tensor({batch, 2 * heads, q_len, width}, 3);
        const auto answer = [&](Context& context) {
          Tensor<float> out({batch, 2 * heads, q_len, width}), lse({batch, 2 * heads, q_len});
          attention_forward(q, cache.key_value(), {.out = out, .lse = lse}, {.mask = Mask::first(length - 7)}, context);
          return std::vector<float>(out.span().begin(), out.span().end());
        };
        for_each_isa(2, [&](Context& context) {
          const std::vector<float> alone = answer(context);
          std::atomic<bool> same = true;
          at_once([&](int caller) {
            Context own({.threads = 2, .isa = context.isa(), .executor = nullptr});
            if (answer(caller % 2 == 0 ? context : own) != alone) same = false;
          });
          EXPECT_TRUE(same) << cache_name(kind) << ", queries " << q_len;
        });
      }
    }
  }
}

TEST(Concurrent, WhatACallbackThrowsReachesItsOwnCaller) {
  constexpr Index length = 150, width = 8;
  const Tensor<float> q = random_tensor({2, 2, length, width}, 4), dout = random_tensor({2, 2, length, width}, 5);
  const auto gradients = [&](const Mask& mask, Context& context) {
    Tensor<float> out({2, 2, length, width}), lse({2, 2, length});
    Tensor<float> dq({2, 2, length, width}), dk({2, 2, length, width}), dv({2, 2, length, width});
    attention_forward(q, q, q, {.out = out, .lse = lse}, {.mask = mask}, context);
    attention_backward(q, q, q, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, {.mask = mask}, context);
    return std::vector<float>(dq.span().begin(), dq.span().end());
  };
  const auto keep = [](Index b, Index h, Index i, Index j) { return (b + h + i + j) % 3 != 0; };
  const Mask quiet = Mask::mask_mod(keep) | Mask::first(1);
  const Mask loud = Mask::mask_mod([=](Index b, Index h, Index i, Index j) {
    if (b == 1 && i == length / 2 && j == length / 3) throw Stop();
    return keep(b, h, i, j);
  }) | Mask::first(1);
  for_each_isa(3, [&](Context& context) {
    const std::vector<float> alone = gradients(quiet, context);
    std::atomic<bool> as_expected = true;
    at_once([&](int caller) {
      try {
        const bool throws = caller % 2 == 1;
        if (gradients(throws ? loud : quiet, context) != alone || throws) as_expected = false;
      } catch (const Stop&) {
        if (caller % 2 == 0) as_expected = false;
      }
    });
    EXPECT_TRUE(as_expected);
  });
}

}  // namespace
}  // namespace qkv::test

// Ranks when memory is out in one of them, or in all: std::bad_alloc reaches the caller, and no rank waits for ever.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "qkv/dist/agree.h"
#include "qkv/dist/context_parallel.h"
#include "qkv/dist/guarded.h"
#include "qkv/dist/in_process.h"
#include "qkv/dist/merge.h"
#include "qkv/dist/reduce.h"
#include "support/allocations.h"
#include "support/part.h"
#include "support/storage.h"

namespace qkv::test {
namespace {

constexpr int kRanks = 2;

/// body(transport, answer of this rank) on every rank; the answers, one after another.
std::vector<double> on_ranks(const std::function<void(dist::Transport&, std::vector<double>&)>& body) {
  std::array<std::vector<double>, kRanks> answers;
  try {
    dist::run_in_process(kRanks,
        [&](dist::Transport& transport) { body(transport, answers[static_cast<std::size_t>(transport.rank())]); });
  } catch (const Error&) {  // another rank may be the first to say that this one is gone, or asks for nothing
    throw std::bad_alloc();
  }
  return numbers_of(answers[0], answers[1]);
}

std::uint64_t seed_of(const dist::Transport& transport) { return static_cast<std::uint64_t>(transport.rank()); }

TEST(Memory, OutInARankIsBadAlloc) {
  expect_only_bad_alloc_of({
      {"agreement",
          [] {
            return on_ranks([](dist::Transport& transport, std::vector<double>& answer) {
              dist::agree(transport, {{"steps", "20"}});
              answer = numbers_of(dist::texts_of_ranks(transport, "a text that is no short one").at(1),
                  dist::agree_on_isa(transport, Isa::kScalar).note);
            });
          }},
      {"sums",
          [] {
            return on_ranks([](dist::Transport& transport, std::vector<double>& answer) {
              std::vector<float> values(7, static_cast<float>(transport.rank()) + 1);
              dist::reduce_sum(transport, std::span(values));
              auto out = random_tensor({1, 2, 3, 4}, seed_of(transport)), lse = random_tensor({1, 2, 3}, 2);
              Context context({.threads = 1});
              dist::merge_over_ranks(transport, out, lse, context);
              answer = numbers_of(values, out.span(), lse.span());
            });
          }},
  });
}

/// Attention of a sequence that is cut over the ranks, forward and backward.
std::vector<double> cut_sequence(dist::Method method) {
  return on_ranks([&](dist::Transport& transport, std::vector<double>& answer) {
    Context context({.threads = 1});
    dist::ContextParallel cp(transport, {.method = method, .chunk = method == dist::Method::kUlysses ? 0 : 1}, context);
    Index length = 0;
    for (const dist::Rows& rows : cp.rows(70)) length += rows.count();
    const auto q = random_tensor({1, 2, length, 4}, seed_of(transport)),
               k = random_tensor({1, 2, length, 4}, seed_of(transport) + 7);
    Tensor<float> out(q.sizes()), lse({1, 2, length}), dq(q.sizes()), dk(q.sizes()), dv(q.sizes());
    const AttentionOptions options{.mask = Mask::causal()};
    cp.forward(q, k, q, out, lse, options);
    cp.backward(q, k, q, out, lse, out, {.dq = dq, .dk = dk, .dv = dv}, options);
    answer = numbers_of(out.span(), dq.span(), dk.span(), dv.span());
  });
}

TEST(Memory, OutInARankOfACutSequenceIsBadAlloc) {
  const std::vector<dist::Method> every{dist::Method::kRing, dist::Method::kAllGather, dist::Method::kUlysses};
  for (const dist::Method method : part_for<float>(every, every.size())) {
    SCOPED_TRACE(testing::Message() << "method " << static_cast<int>(method));
    const std::vector<double> expected = cut_sequence(method);
    const auto call = [&] { EXPECT_EQ(cut_sequence(method), expected); };
    if (all_cases()) expect_only_bad_alloc(call, {Refused::kOne, Refused::kOthers});
    expect_only_bad_alloc(call, {Refused::kAll});
  }
}

/// Its thread ends, and the others hear of it or of its silence.
TEST(Memory, AGuardEndsWithoutIt) {
  dist::InProcess data(kRanks), control(kRanks);
  std::optional<dist::Guarded> first(std::in_place, data.rank(0), control.rank(0), dist::GuardOptions{.timeout = 1});
  dist::Guarded second(data.rank(1), control.rank(1), {.timeout = 1});
  {
    const FailingAllocations failing(0);
    first.reset();
  }
  std::byte byte{};
  EXPECT_THROW(
      {
        const dist::Ticket ticket = second.receive(0, std::span(&byte, 1));
        dist::wait(second, ticket);
      },
      dist::TransportError);
}

}  // namespace
}  // namespace qkv::test

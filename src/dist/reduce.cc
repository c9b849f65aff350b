#include "qkv/dist/reduce.h"

#include "dist/exchange.h"

namespace qkv::inline v0::dist {
namespace {

/// Rank r sums slice r of n numbers.
template <class T> void reduce(Transport& transport, std::span<T> values) {
  const Index ranks = transport.size(), me = transport.rank(), n = static_cast<Index>(values.size());
  const auto begin = [&](Index rank) { return n / ranks * rank + std::min(rank, n % ranks); };
  const auto slice = [&](Index rank) {
    return View<T, 1>(values.data() + begin(rank), {begin(rank + 1) - begin(rank)});
  };
  const View<T, 1> own = slice(me);
  Tensor<T> parts({ranks, own.size(0)});
  const auto exchange = [&](const auto& sent, const auto& received) {
    Exchange all(transport);
    for (Index rank = 0; rank < ranks; ++rank) {
      all.send(static_cast<std::size_t>(rank), sent(rank));
      all.expect(static_cast<std::size_t>(rank), received(rank));
    }
    all.start();
    all.finish();
  };
  const auto part = [&](Index rank) { return View<T, 1>(parts.data() + rank * own.size(0), own.sizes()); };
  exchange(slice, part);
  for (Index i = 0; i < own.size(0); ++i) {
    double sum = 0;
    for (Index rank = 0; rank < ranks; ++rank) sum += static_cast<double>(part(rank)(i));
    own(i) = static_cast<T>(sum);
  }
  exchange([&](Index) { return own; }, slice);
}

}  // namespace

void reduce_sum(Transport& transport, std::span<float> values) { reduce(transport, values); }
void reduce_sum(Transport& transport, std::span<double> values) { reduce(transport, values); }

}  // namespace qkv::inline v0::dist

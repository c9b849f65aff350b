#include "qkv/dist/merge.h"

#include "attention/keys/key_source.h"
#include "core/check.h"
#include "dist/exchange.h"
#include "qkv/dist/agree.h"

namespace qkv::inline v0 {

template <class T> void detail::merge_over_ranks(
    dist::Transport& transport, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, Context& context) {
  constexpr const char* function = "dist::merge_over_ranks";
  dist::agree(transport, {{"call", function}, {"out", std::string(storage_name(stored_as<T>())) + " " + out.shape()},
                             {"lse", lse.shape()}});
  const std::array<Index, 3> rows{out.size(0), out.size(1), out.size(2)};
  check<ShapeError>(lse.sizes() == rows, function, "lse must be [B, H, Tq]: got ", lse, " for out ", out);
  dist::Exchange exchange(transport);
  std::vector<Tensor<T>> outs;
  std::vector<Tensor<Accumulator<T>>> lses;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(transport.size()); ++rank) {
    exchange.send(rank, out);
    exchange.send(rank, lse);
    exchange.expect(rank, View<T, 4>(outs.emplace_back(std::vector<Index>(out.sizes().begin(), out.sizes().end()))));
    exchange.expect(rank, View<Accumulator<T>, 3>(lses.emplace_back(std::vector<Index>(rows.begin(), rows.end()))));
  }
  exchange.start();
  exchange.finish();
  const std::vector<View<const T, 4>> all_outs(outs.begin(), outs.end());
  const std::vector<View<const Accumulator<T>, 3>> all_lses(lses.begin(), lses.end());
  merge_attention(all_outs, all_lses, out, lse, context);
}

#define QKV_INSTANTIATE(T) \
  template void detail::merge_over_ranks(dist::Transport&, const View<T, 4>&, const View<Accumulator<T>, 3>&, Context&);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
QKV_INSTANTIATE(BFloat16)
QKV_INSTANTIATE(Float16)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0

#include "qkv/dist/merge.h"

#include <array>

#include "dist/claims.h"
#include "dist/exchange.h"

namespace qkv::inline v0::dist {
namespace {

/// The same numbers of every rank, one message each.
template <class E>
std::vector<std::vector<E>> from_all(Transport& transport, const std::vector<E>& mine) {
  Exchange<E> exchange(transport);
  for (std::size_t rank = 0; rank < exchange.out.size(); ++rank) {
    exchange.out[rank] = mine;
    exchange.in[rank].resize(mine.size());
  }
  exchange.start();
  exchange.wait();
  return std::move(exchange.in);
}

template <class T>
void merge(Transport& transport, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, Context& context) {
  using Sum = Accumulator<T>;
  constexpr const char* function = "dist::merge_over_ranks";
  agree(transport, {{"call", function},
                    {"out", type_name<T>() + " " + out.shape()},
                    {"lse", lse.shape()},
                    {"instruction set", std::string(isa_name(context.isa()))}});
  const std::array<Index, 3> rows{out.size(0), out.size(1), out.size(2)};
  check<ShapeError>(lse.sizes() == rows, function, "lse must be [B, H, Tq]: got ", lse, " for out ", out);
  std::vector<T> my_out;
  std::vector<Sum> my_lse;
  append(my_out, out);
  append(my_lse, with_width(lse));
  const std::vector<std::vector<T>> all_outs = from_all(transport, my_out);
  const std::vector<std::vector<Sum>> all_lses = from_all(transport, my_lse);
  std::vector<View<const T, 4>> outs;
  std::vector<View<const Sum, 3>> lses;
  for (const std::vector<T>& part : all_outs) outs.push_back({part.data(), out.sizes()});
  for (const std::vector<Sum>& part : all_lses) lses.push_back({part.data(), lse.sizes()});
  merge_attention(outs, lses, out, lse, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                          \
  void merge_over_ranks(Transport& transport, View<T, 4> out, View<Accumulator<T>, 3> lse, Context& context) { \
    merge<T>(transport, out, lse, context);                                                                    \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
QKV_DEFINE(BFloat16)
QKV_DEFINE(Float16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::dist

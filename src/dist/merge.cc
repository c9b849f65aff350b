#include "qkv/dist/merge.h"

#include "core/check.h"
#include "dist/exchange.h"
#include "qkv/dist/agree.h"

namespace qkv::inline v0::dist {
namespace {

/// x of every rank.
std::vector<Buffer> from_all_ranks(Transport& transport, const Array& x) {
  Exchange exchange(transport);
  std::vector<Buffer> all;
  for (int rank = 0; rank < transport.size(); ++rank) {
    exchange.send(static_cast<std::size_t>(rank), x);
    exchange.expect(static_cast<std::size_t>(rank), all.emplace_back(x.type, x.sizes).view);
  }
  exchange.start();
  exchange.finish();
  return all;
}

template <class T>
void merge(Transport& transport, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, Context& context) {
  using Sum = Accumulator<T>;
  constexpr const char* function = "dist::merge_over_ranks";
  agree(transport, {{"call", function}, {"out", std::string(name_of(type_of<T>())) + " " + out.shape()},
                       {"lse", lse.shape()}, {"instruction set", std::string(isa_name(context.isa()))}});
  const std::array<Index, 3> rows{out.size(0), out.size(1), out.size(2)};
  check<ShapeError>(lse.sizes() == rows, function, "lse must be [B, H, Tq]: got ", lse, " for out ", out);
  const std::vector<Buffer> all_outs = from_all_ranks(transport, Array(out)),
                            all_lses = from_all_ranks(transport, Array(lse));
  std::vector<View<const T, 4>> outs;
  std::vector<View<const Sum, 3>> lses;
  for (const Buffer& part : all_outs) outs.push_back(part.view.as<const T, 4>());
  for (const Buffer& part : all_lses) lses.push_back(part.view.as<const Sum, 3>());
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

// Copies between float and 16-bit floats by the kernels that store rows of caches. A work item is about 64 rows.
#include "qkv/convert.h"

#include <algorithm>

#include "attention/call/tensor_checks.h"
#include "core/threads/region.h"
#include "dispatch/kernels.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kRowsOfItem = 64;

}  // namespace

void detail::convert(const AnyView& from, const AnyView& to, Context& context) {
  constexpr const char* function = "convert";
  check_reach(function, "from", from);
  check_sizes(function, "to", to, from.size(0), from.size(1), from.size(2), from.size(3));
  check_last_stride(function, "from", from);
  const NamedBox outputs[] = {{"to", to}}, inputs[] = {{"from", from}};
  check_outputs(function, outputs, inputs);
  const Index middle = from.size(1), length = from.size(2);
  const Index step = std::max<Index>(1, kRowsOfItem / std::max<Index>(1, length)),
              blocks = (length + kRowsOfItem - 1) / kRowsOfItem;
  const Index groups = (middle + step - 1) / step;
  const auto& store = kernel_tables(context.isa()).cache.store;
  run_items(context,
      {from.size(0) * groups * blocks, static_cast<double>(from.size(0) * middle * length * from.size(3)), 0},
      [&](Index item, std::byte*) {
        const Index first = item % blocks * kRowsOfItem, group = item / blocks % groups, b = item / blocks / groups;
        for (Index n = group * step; n < std::min(middle, (group + 1) * step); ++n) {
          store({.from = from.at(b, n, first),
              .from_type = from.type,
              .to = to.at(b, n, first),
              .to_type = to.type,
              .scales = nullptr,
              .from_stride = from.stride(2),
              .to_stride = to.stride(2),
              .count = std::min(kRowsOfItem, length - first),
              .width = from.size(3)});
        }
      });
}

}  // namespace qkv::inline v0

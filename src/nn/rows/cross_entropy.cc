#include "qkv/nn/cross_entropy.h"

#include "core/check.h"
#include "dispatch/kernels.h"
#include "nn/rows/check_rows.h"

namespace qkv::inline v0::nn {

double cross_entropy(View<const float, 2> logits, std::span<const std::int64_t> targets, View<float, 2> dlogits,
    Context& context, Index all) {
  constexpr const char* kFunction = "cross_entropy";
  check<ShapeError>(logits.size(0) == static_cast<Index>(targets.size()) && dlogits.sizes() == logits.sizes(),
      kFunction, "logits and dlogits must be [number of targets, V]: got ", logits, " and ", dlogits, " for ",
      targets.size(), " targets");
  check_rows(kFunction, "logits", logits, "dlogits", dlogits);
  Index counted = 0;
  for (const std::int64_t target : targets) {
    check<OptionError>(target >= -1 && target < logits.size(1), kFunction, "targets must be in [0, ", logits.size(1),
        ") or -1 for none: got ", target);
    counted += target >= 0 ? 1 : 0;
  }
  check<OptionError>(
      counted > 0 || all > 0, kFunction, "at least one row must have a target: got none of ", targets.size());
  if (all > 0) counted = all;
  const double sum =
      kernel_tables(context).attention.layers.cross_entropy({logits.data(), logits.stride(0), targets.data(),
          dlogits.data(), dlogits.stride(0), logits.size(0), logits.size(1), 1.0F / static_cast<float>(counted)});
  return sum / static_cast<double>(counted);
}

}  // namespace qkv::inline v0::nn

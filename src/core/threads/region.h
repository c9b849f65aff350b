// Opens a region of threads only if the work is worth one: handing items over costs microseconds, much more when
// threads sleep. It also rethrows what a callback has thrown. Results are bit-identical with and without a region.
#pragma once

#include <functional>

#include "core/costs.h"
#include "core/threads/callback_error.h"
#include "core/threads/context_impl.h"
#include "core/threads/scratch.h"

namespace qkv::inline v0 {

/// body(item, worker) for every item in [0, items), which take about `flops` together. An exception of a callback
/// within an item is thrown when that item has ended, and forgotten where the item throws something else.
template <class Body> void parallel_for_flops(Context& context, Index items, double flops, const Body& body) {
  const auto whole_item = [&body](Index item, int worker) {
    try {
      body(item, worker);
    } catch (...) {
      forget_callback_error();
      throw;
    }
    rethrow_callback_error();
  };
  if (flops >= context.impl().region_flops) {
    context.parallel_for(items, std::cref(whole_item));  // by reference: a copy of the body might need an allocation
    return;
  }
  for (Index item = 0; item < items; ++item) whole_item(item, 0);
}

/// The items of a region, what they take together, and the scratch that each worker has for itself.
struct Work {
  Index items;
  double flops;
  std::size_t worker_bytes;
};
/// body(item, scratch of its worker) for every item: the only loop over work items.
template <class Body> void run_items(Context& context, const Work& work, const Body& body) {
  const std::size_t bytes = (work.worker_bytes + 63) / 64 * 64;
  const ScratchLease workers = borrow_scratch(context, bytes * static_cast<std::size_t>(context.threads()));
  parallel_for_flops(context, work.items, work.flops,
      [&](Index item, int worker) { body(item, workers.data() + static_cast<std::size_t>(worker) * bytes); });
}

}  // namespace qkv::inline v0

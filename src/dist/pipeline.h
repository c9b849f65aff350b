// The order of a method: what a step needs arrives while the step before is computed, and what that gave leaves. Not: what travels
// (by_rows.h, by_heads.h).
#pragma once

#include <memory>

#include "dist/under_way.h"
#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

/// Whether all of some exchanges are done; moves each of them on.
template <class... Exchanges>
bool poll_all(Exchanges&... exchanges) {
  return (static_cast<int>(exchanges.poll()) & ...) != 0;
}

/// work(step, inputs) for each of `steps`, while the inputs of the next step travel, started by inputs_of(step), and the results
/// of the last one, started by after(step) and moved on by poll_results(). A step is one key/value head, so
/// that two heads are held at most; all heads where nothing travels, and where gradients of biases are wanted, whose size a step
/// costs.
template <class MakeInputs, class Work, class PollResults, class After>
void pipeline(Transport& transport, Index steps, const MakeInputs& inputs_of, const Work& work, const PollResults& poll_results,
              const After& after) {
  auto next = inputs_of(0);
  for (Index step = 0; step < steps; ++step) {
    const auto tensors = next->wait();
    next = step + 1 < steps ? inputs_of(step + 1) : nullptr;
    if (transport.size() == 1) {
      work(step, tensors);
    } else {
      UnderWay others([&] {
        const bool inputs_done = next == nullptr || next->poll(), results_done = poll_results();
        return inputs_done && results_done;
      });
      work(step, tensors);
      others.finish();
    }
    after(step);
  }
}

}  // namespace qkv::inline v0::dist

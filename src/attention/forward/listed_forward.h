// Forward attention that reads only the keys that a mask lists (plan/listed.h). Not: masks that combine lists otherwise,
// which the tiled kernel and decode compute (forward_driver.h).
#pragma once

#include "attention/plan/listed.h"

namespace qkv::inline v0 {

/// out and lse (null: not wanted) of a problem to which `listed` applies. A row has the bits that it has alone: they depend on
/// its list, D and Dv, not on other rows, the batch or threads.
template <class T>
void forward_listed(const Problem<T>& p, const Listed<T>& listed, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse,
                    Context& context);

}  // namespace qkv::inline v0

// Backward attention that reads only the keys that a mask lists (plan/listed.h). Not: masks that combine lists otherwise
// (backward_driver.h).
#pragma once

#include "attention/backward/backward_driver.h"
#include "attention/plan/listed.h"

namespace qkv::inline v0 {

/// The gradients of a problem with listed.applies_backward(). Bit-identical for any number of threads, and for a sequence alone or in
/// a batch.
template <class T>
void backward_listed(const Problem<T>& p, const Listed<T>& listed, const BackwardInputs<T>& inputs,
                     const AttentionGradients<T>& gradients, Context& context);

}  // namespace qkv::inline v0

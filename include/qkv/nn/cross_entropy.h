// Cross-entropy of rows of logits and its gradient, in one pass. Not: label smoothing, class weights.
#pragma once

#include <cstdint>
#include <span>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

/// mean over m of log(sum_v exp(logits[m, v])) - logits[m, targets[m]], over the rows with a target; -1 marks a row
/// without one. dlogits [M, V] = (softmax(logits) - onehot(targets)) / number of targets; 0 in the other rows; shares
/// no memory with logits. OptionError for a target outside [-1, V) or when no row has one. `all`: the number of targets
/// of a whole of which these rows are a part, perhaps without targets; 0: these are all. Over parts, the results add up
/// to the whole's.
QKV_API double cross_entropy(View<const float, 2> logits, std::span<const std::int64_t> targets, View<float, 2> dlogits,
    Context& context = Context::default_context(), Index all = 0);

}  // namespace qkv::inline v0::nn

// Whether a layer is a shard of another, asked before anything is merged.
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

/// Throws the errors of merge_shard, in the name of `function`.
QKV_API void check_shard(
    const AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts, const char* function);

}  // namespace qkv::inline v0::nn

// The work of each row of a mask, for whoever divides rows. Not: tiles (node.h).
#pragma once

#include <vector>

#include "qkv/mask.h"

namespace qkv::inline v0 {

/// [Tq]: how many of Tk keys each query keeps, in one sequence with one head. Tiles that are kept or dropped whole are not looked into;
/// dense masks and callbacks are read whole. Throws ShapeError or OptionError where the mask does not fit these sizes.
QKV_API std::vector<Index> mask_kept_keys(const Mask& mask, Index q_len, Index kv_len);

}  // namespace qkv::inline v0

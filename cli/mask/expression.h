// A mask in words, as `qkv mask` and `qkv attend --mask` take it: "(window(255,0) | first(4)) & causal". The grammar
// and every word: docs/cli/mask.md. Not: dense tensors and callbacks, which have no words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "qkv/mask.h"

namespace qkv::cli {

/// Patterns of blocks are made for Tq x Tk. UsageError that names the option and the position.
Mask parse_mask(std::string_view option, const std::string& text, Index q_len, Index kv_len);

/// The names of all leaves with their arguments, for help.
std::vector<std::string> mask_words();

}  // namespace qkv::cli

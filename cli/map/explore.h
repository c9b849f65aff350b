// `qkv map --qk`: the explorer's page from a file of q and k, or of the explorer's full form. Not: the page (qkv/view/explorer.h).
#pragma once

#include <string>

#include "qkv/context.h"

namespace qkv::cli {

/// `qk`: a .safetensors file (docs/explorer-file.md); `tokens`: a JSON file of its tokens, or empty; `title`: replaces the
/// file's, unless empty. UsageError names the option at fault.
std::string explorer_page(const std::string& qk, const std::string& tokens, const std::string& title, Context& context);

}  // namespace qkv::cli

// The words of --parallel and --layout that cut a sequence. Not: what they do (qkv/dist/context_parallel.h).
#pragma once

#include <string>

#include "qkv/dist/context_parallel.h"

namespace qkv::cli {

inline constexpr const char* kSequenceMethods =
    "all-gather, ring (dk, dv within rounding), ulysses (P divides key/value heads)";

/// UsageError that lists them.
dist::Method parse_method(const std::string& text);
/// Empty: zig-zag where the mask is causal, otherwise contiguous.
dist::Layout parse_layout(const std::string& text, bool causal);

}  // namespace qkv::cli

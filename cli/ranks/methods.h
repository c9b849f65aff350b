// The options that cut a sequence over ranks: the words of --parallel, --layout, --turns, --chunk.
#pragma once

#include <string>

#include "qkv/dist/context_parallel.h"
#include "support/command.h"

namespace qkv::cli {

inline constexpr const char* kSequenceMethods =
    "all-gather, ring (dk, dv within rounding), ulysses (P divides key/value heads)";

/// UsageError that lists them.
dist::Method parse_method(const std::string& text);
/// Empty: zig-zag where the mask is causal, otherwise contiguous.
dist::Layout parse_layout(const std::string& text, bool causal);

struct CutOptions {
  std::string layout;  ///< empty: chosen by the mask
  Index turns = 1, chunk = 0;
};
/// Beside --parallel.
void add_cut_options(Options& add, CutOptions& options);
/// UsageError for words and pairs that are not there.
dist::ContextParallelOptions parse_cut(const CutOptions& options, const std::string& method, bool causal);

}  // namespace qkv::cli

#include "ranks/methods.h"

#include "support/options.h"

namespace qkv::cli {

dist::Method parse_method(const std::string& text) {
  return named<dist::Method>("--parallel", text,
      {{"all-gather", dist::Method::kAllGather}, {"ring", dist::Method::kRing}, {"ulysses", dist::Method::kUlysses}});
}

dist::Layout parse_layout(const std::string& text, bool causal) {
  if (text.empty()) return causal ? dist::Layout::kZigZag : dist::Layout::kContiguous;
  return named<dist::Layout>(
      "--layout", text, {{"contiguous", dist::Layout::kContiguous}, {"zig-zag", dist::Layout::kZigZag}});
}

void add_cut_options(Options& add, CutOptions& options) {
  add("--layout NAME", &options.layout, "Rows of a rank: contiguous, zig-zag (default if causal)",
      {.needs = "--parallel"});
  add("--turns N", &options.turns, "Zig-zag gives each rank 2 N pieces (default 1)",
      {.least = 1, .needs = "--parallel"});
  add("--chunk N", &options.chunk,
      "Keys per message (default: 4096 in a ring, all of a head by all-gather; not by ulysses)",
      {.least = 1, .needs = "--parallel"});
}

dist::ContextParallelOptions parse_cut(const CutOptions& options, const std::string& method, bool causal) {
  const dist::ContextParallelOptions cut{.layout = parse_layout(options.layout, causal),
      .method = parse_method(method),
      .turns = options.turns,
      .chunk = options.chunk};
  if (options.turns > 1 && cut.layout != dist::Layout::kZigZag) throw UsageError("--turns is for --layout zig-zag");
  if (options.chunk > 0 && cut.method == dist::Method::kUlysses)
    throw UsageError("--chunk is for --parallel all-gather and ring: Ulysses computes whole heads");
  return cut;
}

}  // namespace qkv::cli

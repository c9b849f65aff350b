#include "ranks/methods.h"

#include "support/options.h"

namespace qkv::cli {

dist::Method parse_method(const std::string& text) {
  return named<dist::Method>(
      "--parallel", text,
      {{"all-gather", dist::Method::kAllGather}, {"ring", dist::Method::kRing}, {"ulysses", dist::Method::kUlysses}});
}

dist::Layout parse_layout(const std::string& text, bool causal) {
  if (text.empty()) return causal ? dist::Layout::kZigZag : dist::Layout::kContiguous;
  return named<dist::Layout>(
      "--layout", text,
      {{"contiguous", dist::Layout::kContiguous}, {"zig-zag", dist::Layout::kZigZag}, {"by-mask", dist::Layout::kByMask}});
}

}  // namespace qkv::cli

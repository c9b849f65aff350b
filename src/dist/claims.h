// What all ranks of a call of ContextParallel must have in common, in words (qkv/dist/agree.h). Not: lengths, which differ.
#pragma once

#include <string>
#include <vector>

#include "core/check.h"
#include "qkv/dist/agree.h"
#include "qkv/dist/context_parallel.h"

namespace qkv::inline v0::dist {

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, float>) return "f32";
  if constexpr (std::is_same_v<T, double>) return "f64";
  if constexpr (std::is_same_v<T, BFloat16>) return "bf16";
  return "f16";
}

/// "f32 [1, 8, T, 64]": T is each rank's own.
template <class E>
std::string sizes_but_length(const View<E, 4>& x) {
  return type_name<std::remove_const_t<E>>() + " [" + std::to_string(x.size(0)) + ", " + std::to_string(x.size(1)) + ", T, " +
         std::to_string(x.size(3)) + "]";
}

inline std::string given(bool is) { return is ? "given" : "not given"; }

/// The options' claims, and those of the cut.
inline void add_claims(std::vector<Claim>& claims, const ContextParallelOptions& cut, const AttentionOptions& o,
                       const Context& context) {
  const auto add = [&](const char* name, const std::string& value) { claims.push_back({name, value}); };
  add("layout", cut.layout == Layout::kZigZag ? "zig-zag" : "contiguous");
  add("method", cut.method == Method::kAllGather ? "all-gather" : cut.method == Method::kUlysses ? "ulysses" : "ring");
  add("block", std::to_string(cut.block));
  add("turns", std::to_string(cut.turns));
  add("chunk", std::to_string(cut.chunk));
  add("instruction set", std::string(isa_name(context.isa())));
  const bool invariant = o.bits == Bits::kInvariant || context.bits() == Bits::kInvariant;
  add("bits", std::string(bits_name(invariant ? Bits::kInvariant : Bits::kFast)));
  add("mask", o.mask.describe());
  add("bias", o.bias.f32.is_null() ? o.bias.f64.shape() : o.bias.f32.shape());
  add("scale", o.scale ? number_text(*o.scale) : "1/sqrt(D)");
  add("softcap", number_text(o.softcap));
  add("empty_row", std::to_string(static_cast<int>(o.empty_row)));
  add("dropout", o.dropout.active() ? number_text(o.dropout.p) + ", seed " + std::to_string(o.dropout.seed) +
                                          ", first sequence " + std::to_string(o.dropout.first_sequence)
                                    : "off");
  add("sinks", o.sinks.f32.is_null() ? o.sinks.f64.shape() : o.sinks.f32.shape());
  add("position_bias", std::to_string(o.position_bias.rows()) + " x " + std::to_string(o.position_bias.heads()));
  add("score_mod", given(o.score_mod != nullptr));
}

}  // namespace qkv::inline v0::dist

// How modules initialise, list and load their parameters.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {

/// Sizes of a layer lie below it, so that no product of two, nor a sum of some, overflows.
inline constexpr Index kMostInLayer = Index{1} << 30;
inline void check_layer_sizes(std::string_view type, std::initializer_list<Index> sizes) {
  check<OptionError>(std::max(sizes) < kMostInLayer, type, "sizes must be below 2^30: got ", std::max(sizes));
}

/// Uniform in [-bound, bound). `stream` separates the parameters that share a seed.
inline void fill_uniform(std::span<float> values, double bound, std::uint64_t seed, std::uint32_t stream) {
  Random random(seed, stream);
  for (float& value : values) value = static_cast<float>((2 * random.uniform() - 1) * bound);
}

/// N(0, 1).
inline void fill_normal(Tensor<float>& tensor, std::uint64_t seed, std::uint32_t stream) {
  Random random(seed, stream);
  for (float& value : tensor.span()) value = static_cast<float>(random.normal());
}

/// The bound of torch.nn.Linear's default: kaiming_uniform with a = sqrt(5) is +-1/sqrt(fan_in).
inline double linear_bound(Index fan_in) { return 1 / std::sqrt(static_cast<double>(fan_in)); }

inline Parameter parameter(std::string name, Tensor<float>& value, Tensor<float>& gradient) {
  return {std::move(name), value.sizes(), value.span(), gradient.span()};
}

/// Adds the parameters of a part under its prefix ("mlp.").
inline void append_parameters(std::vector<Parameter>& list, Module& part, const std::string& prefix) {
  for (Parameter& one : part.parameters()) {
    one.name = prefix + one.name;
    list.push_back(std::move(one));
  }
}

/// A name that a file may hold and the sizes that it must have.
struct Expected {
  std::string name;
  std::vector<Index> sizes;
  bool required = true;
};

/// "weight [3, 2], bias [3]"
std::string expected_text(const std::vector<Expected>& expected);

/// The entries of `state` whose names start with `prefix`, without that prefix.
struct StateEntry {
  std::string name;
  const AnyTensor* tensor = nullptr;
};
std::vector<StateEntry> entries_under(const StateDict& state, std::string_view prefix);

/// Throws unless `tensor` has the expected sizes. `type` and `prefix` are for the text.
void check_sizes(std::string_view type, std::string_view prefix, const AnyTensor& tensor, const Expected& wanted,
    const std::vector<Expected>& expected);

/// Throws for an unknown, missing or wrongly shaped entry; the result has the tensors in the order of `expected`, null
/// where an optional one is absent.
std::vector<const AnyTensor*> match_parameters(
    std::string_view type, const StateDict& state, std::string_view prefix, const std::vector<Expected>& expected);

/// "missing parameter NAME: expected ...; got ..." and "unknown parameter NAME: expected ...", as every loader says it;
/// `more` ends the text.
[[noreturn]] void throw_missing(std::string_view type, std::string_view prefix, std::string_view name,
    const std::vector<Expected>& expected, const std::vector<StateEntry>& got);
[[noreturn]] void throw_unknown(std::string_view type, std::string_view prefix, std::string_view name,
    const std::vector<Expected>& expected, const std::string& more = {});

}  // namespace qkv::inline v0::nn

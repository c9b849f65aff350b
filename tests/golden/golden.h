// Reads the golden cases that scripts/golden/make.py wrote with PyTorch (tests/golden/data) and judges results against
// them. scripts/golden/store.py describes the format of a set of cases; this header hides that inputs come from a
// formula and that large results are samples.
//
//   golden::File file("mha_3x2x4_in_proj");
//   layer.load_state_dict(file.parameters());
//   EXPECT_LE(file.ratio("out", y.span()), 1);     error / bound; bound = 2 (gradients 3) x error(PyTorch f32) + 4 eps
//   A
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/io/safetensors.h"
#include "qkv/state_dict.h"
#include "qkv/tensor.h"

namespace qkv::golden {

inline std::string path(std::string_view file_name) { return std::string(QKV_GOLDEN_DIR "/").append(file_name); }

/// store.py, hash32: the finaliser of MurmurHash3 over element number and stream.
inline std::uint32_t hash32(std::uint32_t n, std::uint32_t stream) {
  std::uint32_t h = n * 0x9E3779B1U + stream * 0x85EBCA77U;
  h = (h ^ (h >> 16)) * 0x85EBCA6BU;
  h = (h ^ (h >> 13)) * 0xC2B2AE35U;
  return h ^ (h >> 16);
}

/// store.py, generated: element n = ((hash32(n, stream) >> 11) - 2^20) * 2^(exponent - 20), exact in f32.
inline Tensor<float> generated(std::uint32_t stream, int exponent, std::vector<Index> sizes) {
  Tensor<float> values(std::move(sizes));
  for (Index n = 0; n < values.count(); ++n) {
    const auto whole = static_cast<std::int32_t>(hash32(static_cast<std::uint32_t>(n), stream) >> 11) - (1 << 20);
    values.data()[n] = std::ldexp(static_cast<float>(whole), exponent - 20);
  }
  return values;
}

/// The set that holds a case: a file of tests/golden/data.
inline const StateDict& set_of(std::string_view name) {
  static std::map<std::string, StateDict> sets;
  std::string set = "layers";
  for (const auto& [start, file] : {std::pair("sdpa_", "sdpa"), std::pair("modifier_", "modifiers"),
           std::pair("lm_", "lm"), std::pair("linear_", "linear"), std::pair("hf_", "huggingface")}) {
    if (name.starts_with(start)) set = file;
  }
  auto found = sets.find(set);
  if (found == sets.end()) found = sets.emplace(set, io::load_safetensors(path(set + ".safetensors"))).first;
  return found->second;
}

class File {
 public:
  explicit File(const std::string& name) : name_(name) {
    const StateDict& set = set_of(name);
    const std::string start = name + "/";
    for (const StateDict::Entry& entry : set.entries()) {
      if (entry.name.starts_with(start)) state_.add(entry.name.substr(start.size()), entry.tensor.clone());
    }
    for (const auto& [key, value] : set.metadata) {
      if (key.starts_with(start)) state_.metadata[key.substr(start.size())] = value;
    }
    if (state_.size() == 0) throw std::out_of_range("no golden case " + name);
  }

  /// The cases of one kind (sdpa, linear, modifier, layer, grouped), by name.
  static std::vector<std::string> of_kind(std::string_view kind) {
    std::vector<std::string> names;
    for (const char* set : {"", "sdpa_", "linear_", "modifier_", "hf_"}) {
      for (const auto& [key, value] : set_of(set).metadata) {
        if (key.ends_with("/kind") && value == kind) names.push_back(key.substr(0, key.size() - 5));
      }
    }
    return names;
  }

  const std::string& name() const { return name_; }
  const StateDict& tensors() const { return state_; }

  /// What the case is: layer, heads, fill, causal, mask_axes, dropout, residual, seed, mode, ...
  const std::string& fact(const std::string& key) const {
    const auto found = state_.metadata.find(key);
    if (found == state_.metadata.end()) throw std::out_of_range(name_ + " says nothing about " + key);
    return found->second;
  }
  double number(const std::string& key) const { return std::stod(fact(key)); }
  std::uint64_t seed() const { return std::stoull(fact("seed")); }

  bool has(const std::string& tensor) const {
    return state_.contains(tensor) || state_.contains("generated." + tensor);
  }

  /// An input: x, dout, mask, q, k, v, bias, ids, param.NAME. f32 holds each exactly.
  Tensor<float> f32(const std::string& tensor) const {
    const AnyTensor* formula = state_.find("generated." + tensor);
    if (formula == nullptr) return to_f32(state_.at(tensor));
    const Tensor<std::int64_t> numbers = to_i64(*formula);  // stream, exponent, sizes
    return generated(static_cast<std::uint32_t>(numbers.data()[0]), static_cast<int>(numbers.data()[1]),
        {numbers.data() + 2, numbers.data() + numbers.count()});
  }
  Tensor<double> f64(const std::string& tensor) const {
    const AnyTensor* stored = state_.find(tensor);
    return stored != nullptr ? to_f64(*stored) : to_f64(any_tensor(f32(tensor)));
  }

  /// Every param.NAME, as NAME: the argument of load_state_dict.
  StateDict parameters() const {
    StateDict result;
    for (const std::string& tensor : names("param.")) result.add(tensor, any_tensor(f32("param." + tensor)));
    return result;
  }

  /// The names after `prefix` ("param.", "grad.") of full, generated and sampled tensors.
  std::vector<std::string> names(std::string_view prefix) const {
    std::vector<std::string> found;
    for (const StateDict::Entry& entry : state_.entries()) {
      std::string_view tensor = entry.name;
      for (const std::string_view kind : {"generated.", "sample."}) {
        if (tensor.starts_with(kind)) tensor.remove_prefix(kind.size());
      }
      if (tensor.starts_with(prefix)) found.emplace_back(tensor.substr(prefix.size()));
    }
    return found;
  }

  /// The bound of an f32 result of a layer against PyTorch's f64.
  double bound(const std::string& result) const {
    const double factor = result.starts_with("grad.") ? 3 : 2;
    return factor * number("error." + result) + 4 * std::numeric_limits<float>::epsilon() * number("terms." + result);
  }

  /// Largest error / bound over the elements in the file; infinity for a wrong size, or where only one side is NaN.
  double ratio(const std::string& result, std::span<const float> got) const {
    return ratio(result, got, bound(result));
  }

  /// The same with the caller's bound.
  template <class T> double ratio(const std::string& result, std::span<const T> got, double allowed) const {
    const double infinity = std::numeric_limits<double>::infinity();
    double worst = 0;
    const auto judge = [&](double value, double exact, double limit) {
      if (std::isnan(value) && std::isnan(exact)) return;
      if (value == exact) return;
      const double error = std::abs(value - exact);
      worst = std::isfinite(error) && std::isfinite(limit) ? std::max(worst, error / limit) : infinity;
    };
    const AnyTensor* sample = state_.find("sample." + result);
    if (sample == nullptr) {
      const Tensor<double> exact = to_f64(state_.at(result));
      if (exact.count() != static_cast<Index>(got.size())) return infinity;
      for (std::size_t n = 0; n < got.size(); ++n) judge(static_cast<double>(got[n]), exact.data()[n], allowed);
      return worst;
    }
    const Tensor<double> exact = to_f64(*sample);
    const Tensor<std::int64_t> at = to_i64(state_.at("sample_at." + result));
    for (Index n = 0; n < at.count(); ++n) {
      if (at.data()[n] >= static_cast<Index>(got.size())) return infinity;
      judge(static_cast<double>(got[static_cast<std::size_t>(at.data()[n])]), exact.data()[3 + n], allowed);
    }
    double sum = 0, squares = 0, magnitudes = 0;
    for (const T value : got) {
      const auto wide = static_cast<double>(value);
      sum += wide;
      squares += wide * wide;
      magnitudes += std::abs(wide);
    }
    const auto count = static_cast<double>(got.size());
    judge(sum, exact.data()[0], count * allowed);
    judge(magnitudes, exact.data()[2], count * allowed);
    judge(squares, exact.data()[1], (2 * magnitudes + count * allowed) * allowed);
    return worst;
  }

 private:
  std::string name_;
  StateDict state_;
};

}  // namespace qkv::golden

#include "qkv/nn/module.h"

#include <algorithm>

#include "core/check.h"
#include "core/listed.h"
#include "nn/parameters/parameters.h"

namespace qkv::inline v0::nn {
namespace {

std::string load_function(std::string_view type) { return std::string(type) + "::load_state_dict"; }

template <class T> std::vector<std::byte> bytes_as(std::span<const float> values) {
  std::vector<T> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), [](float x) { return static_cast<T>(x); });
  const auto bytes = std::as_bytes(std::span(rounded));
  return {bytes.begin(), bytes.end()};
}

/// parameters() returns writable views; the const functions here only read them.
std::vector<Parameter> views_of(const Module& module) { return const_cast<Module&>(module).parameters(); }

/// Copies of all parameters, or of their gradients.
StateDict copies(const Module& module, std::string_view function, std::span<float> Parameter::*values,
    std::string_view prefix, DType dtype) {
  check<OptionError>(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, function,
      "dtype must be F32, BF16 or F16: got ", dtype_name(dtype));
  StateDict state;
  for (const Parameter& one : views_of(module)) {
    AnyTensor copy;
    copy.dtype = dtype;
    copy.sizes = one.sizes;
    copy.bytes = dtype == DType::kF32    ? bytes_as<float>(one.*values)
                 : dtype == DType::kBF16 ? bytes_as<BFloat16>(one.*values)
                                         : bytes_as<Float16>(one.*values);
    state.add(std::string(prefix) + one.name, std::move(copy));
  }
  return state;
}

}  // namespace

std::string expected_text(const std::vector<Expected>& expected) {
  if (expected.empty()) return "no parameters";
  return listed(expected, [](const Expected& one) {
    return one.name + " " + shape_text(one.sizes.data(), static_cast<int>(one.sizes.size())) +
           (one.required ? "" : " (optional)");
  });
}

std::vector<StateEntry> entries_under(const StateDict& state, std::string_view prefix) {
  std::vector<StateEntry> found;
  for (const StateDict::Entry& entry : state.entries()) {
    if (entry.name.starts_with(prefix)) found.push_back({entry.name.substr(prefix.size()), &entry.tensor});
  }
  return found;
}

void throw_missing(std::string_view type, std::string_view prefix, std::string_view name,
    const std::vector<Expected>& expected, const std::vector<StateEntry>& got) {
  const std::string names = listed(got, [](const StateEntry& one) { return one.name + " " + one.tensor->shape(); });
  fail<OptionError>(load_function(type), "missing parameter ", prefix, name, ": expected ", expected_text(expected),
      "; got ", names.empty() ? "nothing" : names);
}

void throw_unknown(std::string_view type, std::string_view prefix, std::string_view name,
    const std::vector<Expected>& expected, const std::string& more) {
  fail<OptionError>(
      load_function(type), "unknown parameter ", prefix, name, ": expected ", expected_text(expected), more);
}

void check_sizes(std::string_view type, std::string_view prefix, const AnyTensor& tensor, const Expected& wanted,
    const std::vector<Expected>& expected) {
  if (tensor.sizes == wanted.sizes) return;
  fail<ShapeError>(load_function(type), "parameter ", prefix, wanted.name, " must be ",
      shape_text(wanted.sizes.data(), static_cast<int>(wanted.sizes.size())), ": got ", tensor.shape(), "; expected ",
      expected_text(expected));
}

std::vector<const AnyTensor*> match_parameters(
    std::string_view type, const StateDict& state, std::string_view prefix, const std::vector<Expected>& expected) {
  const std::vector<StateEntry> entries = entries_under(state, prefix);
  for (const StateEntry& entry : entries) {
    if (std::ranges::find(expected, entry.name, &Expected::name) == expected.end()) {
      throw_unknown(type, prefix, entry.name, expected);
    }
  }
  std::vector<const AnyTensor*> found;
  for (const Expected& wanted : expected) {
    const auto entry = std::ranges::find(entries, wanted.name, &StateEntry::name);
    if (entry == entries.end()) {
      if (wanted.required) throw_missing(type, prefix, wanted.name, expected, entries);
      found.push_back(nullptr);
      continue;
    }
    check_sizes(type, prefix, *entry->tensor, wanted, expected);
    found.push_back(entry->tensor);
  }
  return found;
}

namespace {

template <class T> void resize_any(Tensor<T>& tensor, std::span<const Index> sizes) {
  if (std::equal(sizes.begin(), sizes.end(), tensor.sizes().begin(), tensor.sizes().end())) return;
  std::vector<Index> wanted(sizes.begin(), sizes.end());
  if (tensor.rank() != 0 && checked_count(sizes) == tensor.count()) {
    tensor.reshape(std::move(wanted));
  } else {
    tensor = Tensor<T>(std::move(wanted));
  }
}

}  // namespace

void resize(Tensor<float>& tensor, std::span<const Index> sizes) { resize_any(tensor, sizes); }
void resize(Tensor<BFloat16>& tensor, std::span<const Index> sizes) { resize_any(tensor, sizes); }

Module::~Module() = default;

void Module::load_state_dict(const StateDict& state, std::string_view prefix) {
  const std::vector<Parameter> own = parameters();
  std::vector<Expected> expected;
  for (const Parameter& one : own) expected.push_back({one.name, one.sizes});
  const auto found = match_parameters(type_name(), state, prefix, expected);
  std::vector<Tensor<float>> values;  // all of them first: after an error the module is unchanged
  for (const AnyTensor* one : found) values.push_back(to_f32(*one));
  for (std::size_t i = 0; i < own.size(); ++i) std::ranges::copy(values[i].span(), own[i].value.begin());
}

Affine::Affine(std::string_view type, const std::vector<Index>& weight, bool bias) : Module(type) {
  weight_ = Tensor<float>(weight);
  weight_gradient_ = Tensor<float>(weight);
  if (!bias) return;
  bias_ = Tensor<float>({weight[0]});
  bias_gradient_ = Tensor<float>({weight[0]});
}

std::vector<Parameter> Affine::parameters() {
  std::vector<Parameter> list;
  list.push_back(parameter("weight", weight_, weight_gradient_));
  if (has_bias()) list.push_back(parameter("bias", bias_, bias_gradient_));
  return list;
}

void Affine::load_state_dict(const StateDict& state, std::string_view prefix) {
  const auto found =
      match_parameters(type_name(), state, prefix, {{"weight", weight_.sizes()}, {"bias", {weight_.size(0)}, false}});
  Tensor<float> weight = to_f32(*found[0]);
  Tensor<float> bias = found[1] == nullptr ? Tensor<float>() : to_f32(*found[1]);
  Tensor<float> gradient = found[1] == nullptr ? Tensor<float>() : Tensor<float>(bias.sizes());
  weight_ = std::move(weight);
  bias_ = std::move(bias);
  bias_gradient_ = std::move(gradient);
}

StateDict Module::state_dict(std::string_view prefix, DType dtype) const {
  return copies(*this, "Module::state_dict", &Parameter::value, prefix, dtype);
}

StateDict Module::gradients(std::string_view prefix, DType dtype) const {
  return copies(*this, "Module::gradients", &Parameter::gradient, prefix, dtype);
}

void Module::zero_gradients() {
  for (const Parameter& one : parameters()) std::ranges::fill(one.gradient, 0.0F);
}

Index Module::parameter_count() const {
  Index count = 0;
  for (const Parameter& one : views_of(*this)) count += static_cast<Index>(one.value.size());
  return count;
}

}  // namespace qkv::inline v0::nn

// Module: named parameters and their gradients. Not: a forward pass (each module declares its own), a tape.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/state_dict.h"
#include "qkv/tensor.h"

namespace qkv::inline v0::nn {

/// One named parameter and its gradient: views of memory that the module owns, both contiguous and of `sizes`.
/// Valid until the module is loaded, moved, assigned to or destroyed, or copy_parameters is called on it.
struct Parameter {
  std::string name;  ///< as in files, e.g. "query_proj.weight"
  std::vector<Index> sizes;
  std::span<float> value;
  std::span<float> gradient;
};

class QKV_API Module {
 public:
  virtual ~Module();

  /// In the order of files. Built anew by each call: keep the result in a training loop.
  virtual std::vector<Parameter> parameters() = 0;

  /// Takes every parameter from `state`, whose names start with `prefix` ("attn."); names without it are ignored.
  /// Throws OptionError for an unknown, doubly named or missing parameter and ShapeError for a wrong shape; the error
  /// names the parameter and what was expected, and leaves the module unchanged.
  virtual void load_state_dict(const StateDict& state, std::string_view prefix = {});

  /// Copies under the names (and in the merged or separate form) that were loaded, or the module's own if nothing was
  /// loaded; as F32, or rounded once to BF16 or F16, as a model of 16 bits keeps them. Throws OptionError for another
  /// type.
  StateDict state_dict(std::string_view prefix = {}, DType dtype = DType::kF32) const;
  StateDict gradients(std::string_view prefix = {}, DType dtype = DType::kF32) const;

  void zero_gradients();
  Index parameter_count() const;

 protected:
  /// `type`: what error texts start with, "[SelfAttentionV1::load_state_dict]"; a literal.
  explicit Module(std::string_view type) : type_(type) {}
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;
  std::string_view type_name() const { return type_; }

 private:
  std::string_view type_;
};

/// A module of a weight [N, ...] and, perhaps, a bias [N].
class QKV_API Affine : public Module {
 public:
  std::vector<Parameter> parameters() override;
  /// The file decides whether there is a bias.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

  bool has_bias() const { return bias_.count() != 0; }
  const Tensor<float>& weight() const { return weight_; }
  const Tensor<float>& bias() const { return bias_; }  ///< empty without bias

 protected:
  Affine(std::string_view type, const std::vector<Index>& weight, bool bias);

  Tensor<float> weight_, weight_gradient_;
  Tensor<float> bias_, bias_gradient_;  // empty without bias
};

/// [..., N] contiguous as [M, N]: all axes but the last merged. View<T, 2>, or View<const T, 2> of a const tensor.
template <class Rows> auto as_rows(Rows& tensor) {
  const Index columns = tensor.rank() == 0 ? 1 : tensor.size(tensor.rank() - 1);
  return View<std::remove_pointer_t<decltype(tensor.data())>, 2>(
      tensor.data(), {columns == 0 ? 0 : tensor.count() / columns, columns});
}

/// Gives `tensor` these sizes. Keeps the memory and its contents when the number of elements is the same; zeros
/// otherwise. Allocates nothing when the sizes are unchanged.
QKV_API void resize(Tensor<float>& tensor, std::span<const Index> sizes);
QKV_API void resize(Tensor<BFloat16>& tensor, std::span<const Index> sizes);
template <class T> void resize(Tensor<T>& tensor, std::initializer_list<Index> sizes) {
  resize(tensor, std::span<const Index>(sizes.begin(), sizes.size()));
}

}  // namespace qkv::inline v0::nn

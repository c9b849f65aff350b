#include "qkv/nn/mlp.h"

#include "core/check.h"
#include "dispatch/kernels.h"
#include "nn/parameters/parameters.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {
namespace {

using Activation = void (*LayerKernels::*)(const ActivationRows&);

/// y = f(x), or with dy dy f'(x).
void activate(const char* function, Activation f, View<const float, 2> x, const View<const float, 2>* dy,
    View<float, 2> y, Context& context) {
  const char* result = dy == nullptr ? "y" : "dx";
  check<ShapeError>(
      x.sizes() == y.sizes(), function, "x and ", result, " must have the same sizes: got ", x, " and ", y);
  check_rows(function, "x", x, result, y);
  if (dy != nullptr) {
    check<ShapeError>(x.sizes() == dy->sizes(), function, "x and dy must have the same sizes: got ", x, " and ", *dy);
    check_rows(function, "dy", *dy);
  }
  const auto kernel = kernel_tables(context).attention.layers.*f;
  for_row_blocks(context, {x.size(0), x.size(1)}, [&](Index begin, Index end, Index) {
    kernel({x.data() + begin * x.stride(0), x.stride(0), dy == nullptr ? nullptr : dy->data() + begin * dy->stride(0),
        dy == nullptr ? 0 : dy->stride(0), y.data() + begin * y.stride(0), y.stride(0), end - begin, x.size(1)});
  });
}

}  // namespace

void gelu_forward(View<const float, 2> x, View<float, 2> y, Context& context) {
  activate("gelu_forward", &LayerKernels::gelu, x, nullptr, y, context);
}
void gelu_backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context) {
  activate("gelu_backward", &LayerKernels::gelu, x, &dy, dx, context);
}
void silu_forward(View<const float, 2> x, View<float, 2> y, Context& context) {
  activate("silu_forward", &LayerKernels::silu, x, nullptr, y, context);
}
void silu_backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context) {
  activate("silu_backward", &LayerKernels::silu, x, &dy, dx, context);
}

namespace {

Index hidden_of(const MlpOptions& options) {
  check<ShapeError>(options.embed_dim < kMostInLayer, "Mlp", "embed_dim must be below 2^30: got ", options.embed_dim);
  return options.hidden_dim == 0 ? 4 * options.embed_dim : options.hidden_dim;
}

}  // namespace

Mlp::Mlp(const MlpOptions& options)
    : Module("Mlp"),
      expand_({.in_features = options.embed_dim,
          .out_features = hidden_of(options),
          .bias = options.bias,
          .seed = options.seed}),
      contract_({.in_features = hidden_of(options),
          .out_features = options.embed_dim,
          .bias = options.bias,
          .seed = ~options.seed}) {}

void Mlp::forward(View<const float, 2> x, View<float, 2> y, MlpSaved& saved, Context& context) const {
  resize(saved.hidden, {x.size(0), expand_.out_features()});
  resize(saved.activated, saved.hidden.sizes());
  expand_.forward(x, saved.hidden, context);
  gelu_forward(saved.hidden, saved.activated, context);
  contract_.forward(saved.activated, y, context);
}

void Mlp::backward(
    View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, MlpSaved& saved, Context& context) {
  resize(saved.dactivated, saved.hidden.sizes());
  contract_.backward(saved.activated, dy, saved.dactivated, context);
  gelu_backward(saved.hidden, saved.dactivated, saved.dactivated, context);
  expand_.backward(x, saved.dactivated, dx, context);
}

std::vector<Parameter> Mlp::parameters() {
  std::vector<Parameter> list;
  append_parameters(list, expand_, "c_fc.");
  append_parameters(list, contract_, "c_proj.");
  return list;
}

}  // namespace qkv::inline v0::nn

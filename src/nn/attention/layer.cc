#include "qkv/nn/layer.h"

#include "core/check.h"

namespace qkv::inline v0::nn {
namespace {

/// The rank of a dense mask decides what its axes mean (layer.h, keep).
template <class Make> Mask mask_of(const Layer& layer, const Tensor<std::uint8_t>& dense, const Make& make) {
  const bool heads = layer.masks_have_heads();
  const bool square = dense.rank() == 2 && dense.size(0) == dense.size(1) && dense.size(0) > 1;
  check<ShapeError>(!square, layer.name(),
      "a square mask fits [B, Tk] and [Tq, Tk]: name its axes with MaskAxes::kBk or MaskAxes::kQk: got ", dense);
  if (dense.rank() == 2) return make(dense.view<2>(), MaskAxes::kBk);
  if (dense.rank() == 3 && !heads) return make(dense.view<3>(), MaskAxes::kBqk);
  if (dense.rank() == 4 && (heads || dense.size(1) == 1)) return make(dense.view<4>());
  fail<ShapeError>(layer.name(), "a mask must be ",
      heads ? "[B, Tk] or [B|1, H|1, Tq|1, Tk|1]" : "[B, Tk], [B, Tq, Tk] or [B, 1, Tq, Tk]",
      ", or its axes must be named: got ", dense);
}

}  // namespace

Index Layer::num_heads() const { return 1; }
bool Layer::masks_have_heads() const { return false; }

#define QKV_DEFINE(T)                                                                                              \
  Tensor<T> Layer::forward(View<const T, 3> x, const ForwardOptions& options, SavedOf<T>* saved) const {           \
    Tensor<T> y({x.size(0), x.size(1), output_dim() == 0 ? x.size(2) : output_dim()});                             \
    forward_into(x, y, options, saved);                                                                            \
    return y;                                                                                                      \
  }                                                                                                                \
  Tensor<T> Layer::backward(View<const T, 3> dy, SavedOf<T>& saved, Context& context) {                            \
    check<OptionError>(saved.x.rank() == 3, name(), "saved must come from this layer's forward: got x ", saved.x); \
    Tensor<T> dx(saved.x.sizes());                                                                                 \
    backward_into(dy, saved, dx, context);                                                                         \
    return dx;                                                                                                     \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

void Layer::forward_into(View<const BFloat16, 3>, View<BFloat16, 3>, const ForwardOptions&, Bf16Saved*) const {
  fail<UnsupportedError>(name(), "a layer without projections computes on float alone");
}
void Layer::backward_into(View<const BFloat16, 3>, Bf16Saved&, View<BFloat16, 3>, Context&) {
  fail<UnsupportedError>(name(), "a layer without projections computes on float alone");
}

Mask Layer::keep(const Tensor<std::uint8_t>& dense) const {
  return mask_of(*this, dense, [](auto... view_and_axes) { return Mask::keep(view_and_axes...); });
}
Mask Layer::drop(const Tensor<std::uint8_t>& dense) const {
  return mask_of(*this, dense, [](auto... view_and_axes) { return Mask::drop(view_and_axes...); });
}

}  // namespace qkv::inline v0::nn

// The selective scan of Mamba and the short convolution before it, forward and backward. Bit-identical for any number
// of threads. Any number of concurrent calls. ShapeError: sizes, strides, an output that overlaps any other argument.
//
// The scan: a recurrence of a few states for each channel, whose decay and input depend on the token. Gu and Dao 2023
// (arXiv:2312.00752), algorithm 2.
//   h[t, c, n] = exp(dt[t, c] A[c, n]) h[t-1, c, n] + dt[t, c] B[t, n] u[t, c]
//   out[t, c]  = sum_n C[t, n] h[t, c, n] + D[c] u[t, c]
// Shapes: batch B, T tokens, C channels, N states. u, dt, out [B, T, C], channels innermost (stride 1): then B and C,
// which all channels share, are read where they lie. A [C, N]; B, C [B, T, G, N] of any strides, G groups of channels
// (C % G == 0; Mamba has 1): channel c reads group c / (C / G). A number that does not depend on the token has a stride
// of 0. States [B, C, N], of any strides. dt is passed as it multiplies: bias and softplus are the caller's, the gate
// too. B, T and C may be 0, G and N not. A decay is infinite from exp(88.38) on, in f64 from exp(709.44).
//
// The convolution: depthwise and causal, of few taps. Dao 2023, causal-conv1d.
//   z[t, c] = bias[c] + sum over k < W of weight[c, k] x[t - W + 1 + k, c]       out = z, or z / (1 + e^-z) with silu
// x before the first token is `before`, or 0. With `sequence` a token reads only those of its own number that lie
// directly before it; where the number is below 0, its result and its gradients are 0. OptionError: both of them.
// Shapes: x, out [B, T, C], channels innermost; weight [C, W]; bias [C]; before [B, W - 1, C], channels innermost;
// sequence [B, T]. B, T and C may be 0, W not.
#pragma once

#include <cstdint>

#include "qkv/context.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// Tokens from one kept state to the next.
inline constexpr Index kSelectiveScanChunk = 16;

template <class T> struct SelectiveScanInputs {
  View<const T, 3> u, dt;
  View<const T, 2> a;
  View<const T, 4> b, c;
  View<const T, 1> skip{};     ///< D [C]; null: 0
  View<const T, 3> initial{};  ///< the state before the first token; null: zeros
};

/// Every view but `out` may be null: not wanted.
template <class T> struct SelectiveScanOutputs {
  View<T, 3> out;
  View<T, 3> final{};  ///< the state after the last token; may be the view of `initial`
  View<T, 4> kept{};   ///< for backward: [B, ceil(T / kSelectiveScanChunk), N, C], the state before each of its chunks
};

QKV_API void selective_scan_forward(const SelectiveScanInputs<float>& inputs,
    const SelectiveScanOutputs<float>& outputs, Context& context = Context::default_context());
QKV_API void selective_scan_forward(const SelectiveScanInputs<double>& inputs,
    const SelectiveScanOutputs<double>& outputs, Context& context = Context::default_context());

/// A null view is not computed; every other one is overwritten, in the shape of what it belongs to.
template <class T> struct SelectiveScanGradients {
  View<T, 3> du{}, ddt{};
  View<T, 2> da{};
  View<T, 4> db{}, dc{};
  View<T, 1> dskip{};
  View<T, 3> dinitial{};
  View<const T, 3> dfinal{};  ///< input, optional: gradient arriving at the final state
};

/// Gradients of sum(out * dout) (+ sum(final * dfinal)); `kept` is forward's. In addition to inputs and outputs it
/// holds sums of B and C for every few dozen channels, and for each thread the states of one chunk.
QKV_API void selective_scan_backward(const SelectiveScanInputs<float>& inputs, View<const float, 4> kept,
    View<const float, 3> dout, const SelectiveScanGradients<float>& gradients,
    Context& context = Context::default_context());
QKV_API void selective_scan_backward(const SelectiveScanInputs<double>& inputs, View<const double, 4> kept,
    View<const double, 3> dout, const SelectiveScanGradients<double>& gradients,
    Context& context = Context::default_context());

template <class T> struct ShortConvolutionInputs {
  View<const T, 3> x;
  View<const T, 2> weight;
  View<const T, 1> bias{};
  View<const T, 3> before{};
  View<const std::int32_t, 2> sequence{};
  bool silu = false;
};

QKV_API void short_convolution_forward(
    const ShortConvolutionInputs<float>& inputs, View<float, 3> out, Context& context = Context::default_context());
QKV_API void short_convolution_forward(
    const ShortConvolutionInputs<double>& inputs, View<double, 3> out, Context& context = Context::default_context());

/// A null view is not computed; every other one is overwritten, in the shape of what it belongs to.
template <class T> struct ShortConvolutionGradients {
  View<T, 3> dx{};
  View<T, 2> dweight{};
  View<T, 1> dbias{};
  View<T, 3> dbefore{};
};

/// Gradients of sum(out * dout).
QKV_API void short_convolution_backward(const ShortConvolutionInputs<float>& inputs, View<const float, 3> dout,
    const ShortConvolutionGradients<float>& gradients, Context& context = Context::default_context());
QKV_API void short_convolution_backward(const ShortConvolutionInputs<double>& inputs, View<const double, 3> dout,
    const ShortConvolutionGradients<double>& gradients, Context& context = Context::default_context());

}  // namespace qkv::inline v0

// The short convolution: checks; forward a work item for some tokens of a sequence, backward for some channels of one,
// whose gradients of weight and bias are added over the batch after the region, in one order.
#include <algorithm>

#include "attention/linear/tensors.h"
#include "core/threads/region.h"
#include "dispatch/kernels.h"
#include "kernels/carver.h"
#include "qkv/state_space.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kItemTokens = 64, kItemChannels = 256;  // of an item

template <class T> struct Convolution {
  const ShortConvolutionInputs<T>& in;
  const ScanKernels<T>& kernels;
  Index batch = in.x.size(0), length = in.x.size(1), channels = in.x.size(2), width = in.weight.size(1);
  T *weight = nullptr, *bias = nullptr;  // [width][channels], [channels]
  std::int32_t* reach = nullptr;         // [batch][length]

  ScratchLease borrow(Context& context) {
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      weight = carver.array<T>(width * channels);
      bias = in.bias.is_null() ? nullptr : carver.array<T>(channels);
      reach = in.sequence.is_null() ? nullptr : carver.array<std::int32_t>(batch * length);
      return carver.used();
    };
    ScratchLease lease = borrow_scratch(context, carve(nullptr));
    carve(lease.data());
    fill();
    return lease;
  }
  void fill() const {
    for (Index k = 0; k < width; ++k) {
      for (Index c = 0; c < channels; ++c) weight[k * channels + c] = in.weight(c, k);
    }
    for (Index c = 0; c < channels && bias != nullptr; ++c) bias[c] = in.bias(c);
    for (Index b = 0; b < batch && reach != nullptr; ++b) {
      for (Index t = 0; t < length; ++t) {
        Index count = in.sequence(b, t) < 0 ? -1 : 0;
        while (count >= 0 && count < std::min(t, width - 1) && in.sequence(b, t - count - 1) == in.sequence(b, t))
          ++count;
        reach[b * length + t] = static_cast<std::int32_t>(count);
      }
    }
  }

  ConvolutionRows<T> part(Index b, Index first, Index count) const {
    ConvolutionRows<T> t{};
    t.width = width, t.end = length, t.channels = count, t.silu = in.silu;
    t.x = token_rows(in.x, b, first), t.before = token_rows(in.before, b, first);
    t.weight = {weight + first, channels};
    t.bias = bias == nullptr ? nullptr : bias + first;
    t.reach = reach == nullptr ? nullptr : reach + b * length;
    return t;
  }
  double flops(double each) const {
    return each * static_cast<double>(batch * length) * static_cast<double>(channels * (width + (in.silu ? 2 : 0)));
  }

  void forward(const View<T, 3>& out, Context& context) const {
    const Index tiles = (length + kItemTokens - 1) / kItemTokens;
    parallel_for_flops(context, batch * tiles, flops(kConvolveFlops), [&](Index item, int) {
      const Index b = item / tiles;
      ConvolutionRows<T> t = part(b, 0, channels);
      t.begin = item % tiles * kItemTokens, t.end = std::min(length, t.begin + kItemTokens);
      t.out = token_rows(out, b, 0);
      kernels.convolve(t);
    });
  }

  void backward(const View<const T, 3>& dout, const ShortConvolutionGradients<T>& g, Context& context) const {
    const Index blocks = (channels + kItemChannels - 1) / kItemChannels, of_item = (width + 1) * kItemChannels;
    const ScratchLease lease = borrow_scratch(context, line_bytes<T>(2 * batch * blocks * of_item));
    T* const sums = reinterpret_cast<T*>(lease.data());
    for (Index b = 0; b < batch && !g.dbefore.is_null(); ++b) {
      for (Index k = 0; k < width - 1; ++k)
        std::fill_n(g.dbefore.data() + b * g.dbefore.stride(0) + k * g.dbefore.stride(1), channels, T{});
    }
    parallel_for_flops(context, batch * blocks, flops(kConvolveBackwardFlops), [&](Index item, int) {
      const Index b = item / blocks, first = item % blocks * kItemChannels;
      ConvolutionGradient<T> t{};
      t.forward = part(b, first, std::min(kItemChannels, channels - first));
      t.dout = token_rows(dout, b, first);
      t.dx = token_rows(g.dx, b, first), t.dbefore = token_rows(g.dbefore, b, first);
      T *const sum = sums + item * of_item, *const part = sum + batch * blocks * of_item;
      t.dweight = {part, kItemChannels};
      t.dbias = part + width * kItemChannels;
      std::fill_n(sum, of_item, T{});
      for (Index begin = 0; begin < length; begin += kSumTokens) {
        t.forward.begin = begin, t.forward.end = std::min(length, begin + kSumTokens);
        kernels.convolve_backward(t);
        for (Index k = 0; k <= width; ++k) {
          for (Index c = 0; c < t.forward.channels; ++c) sum[k * kItemChannels + c] += part[k * kItemChannels + c];
        }
      }
    });
    T sum[kItemChannels];
    for (Index c = 0; c < channels; c += kItemChannels) {
      const Index count = std::min(kItemChannels, channels - c);
      for (Index k = 0; k <= width; ++k) {
        std::fill_n(sum, count, T{});
        for (Index b = 0; b < batch; ++b) {
          const T* const part = sums + (b * blocks + c / kItemChannels) * of_item + k * kItemChannels;
          for (Index n = 0; n < count; ++n) sum[n] += part[n];
        }
        for (Index n = 0; n < count; ++n) {
          if (k < width && !g.dweight.is_null()) g.dweight(c + n, k) = sum[n];
          if (k == width && !g.dbias.is_null()) g.dbias(c + n) = sum[n];
        }
      }
    }
  }
};

/// The call's inputs and its outputs, checked, and what runs it.
template <class T> Convolution<T> checked(const char* function, const ShortConvolutionInputs<T>& in,
    const View<const T, 3>& dout, int dout_kind, std::span<const CallTensor> outputs, const Context& context) {
  const Convolution<T> c{in, for_element<T>(kernel_tables(context).linear_attention).scan};
  check<ShapeError>(c.width >= 1, function, "weight must be [C, W] with W at least 1: got ", in.weight);
  check<OptionError>(in.before.is_null() || in.sequence.is_null(), function,
      "before and sequence exclude each other: got before ", in.before, " and sequence ", in.sequence);
  const CallTensor inputs[] = {{"x", in.x, kInRows, c.batch, c.length, c.channels},
      {"weight", in.weight, kAnyStrides, c.channels, c.width}, {"bias", in.bias, kOptional, c.channels},
      {"before", in.before, kInRows | kOptional, c.batch, c.width - 1, c.channels},
      {"dout", dout, dout_kind, c.batch, c.length, c.channels}};
  check_tensors(function, outputs, inputs);
  check<ShapeError>(in.sequence.is_null() || (in.sequence.size(0) == c.batch && in.sequence.size(1) == c.length),
      function, "sequence must be [B, T]: got ", in.sequence, " for x ", in.x);
  for (const CallTensor& o : outputs) check_apart(function, {o.name, o.x}, {"sequence", in.sequence});
  return c;
}

template <class T> void forward(const ShortConvolutionInputs<T>& in, const View<T, 3>& out, Context& context) {
  const CallTensor outputs[] = {{"out", out, kInRows, in.x.size(0), in.x.size(1), in.x.size(2)}};
  Convolution<T> job = checked<T>("short_convolution_forward", in, {}, kOptional, outputs, context);
  const ScratchLease lease = job.borrow(context);
  job.forward(out, context);
}

template <class T> void backward(const ShortConvolutionInputs<T>& in, const View<const T, 3>& dout,
    const ShortConvolutionGradients<T>& g, Context& context) {
  const Index batch = in.x.size(0), length = in.x.size(1), channels = in.x.size(2), width = in.weight.size(1);
  const View<const T, 3>& before = in.before;
  const CallTensor outputs[] = {{"dx", g.dx, kInRows | kOptional, batch, length, channels},
      {"dweight", g.dweight, kOptional, channels, width}, {"dbias", g.dbias, kOptional, channels},
      {"dbefore", g.dbefore, kInRows | kOptional, before.size(0), before.size(1), before.size(2)}};
  Convolution<T> job = checked("short_convolution_backward", in, dout, kInRows, outputs, context);
  const ScratchLease lease = job.borrow(context);
  job.backward(dout, g, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                         \
  void short_convolution_forward(const ShortConvolutionInputs<T>& inputs, View<T, 3> out, Context& context) { \
    forward<T>(inputs, out, context);                                                                         \
  }                                                                                                           \
  void short_convolution_backward(const ShortConvolutionInputs<T>& inputs, View<const T, 3> dout,             \
      const ShortConvolutionGradients<T>& gradients, Context& context) {                                      \
    backward<T>(inputs, dout, gradients, context);                                                            \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
#undef QKV_DEFINE

}  // namespace qkv::inline v0

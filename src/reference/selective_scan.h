// The selective scan and the short convolution as in a textbook (formulas of
// qkv/state_space.h): one number at a time, gradients by the chain rule. N as in linear_head.h.
#pragma once

#include <cmath>
#include <vector>

#include "qkv/state_space.h"
#include "reference/linear_head.h"

namespace qkv::inline v0::reference {

template <class N> struct ScanTextbook {
  Tensor<N> out, final;                            ///< [B, T, C], [B, C, N]
  Tensor<N> du, ddt, da, db, dc, dskip, dinitial;  ///< in the shapes of what they belong to
};

/// Forward, and the gradients of sum(out * dout) + sum(final * dfinal); dfinal may be null.
template <class N>
ScanTextbook<N> selective_scan(const SelectiveScanInputs<N>& in, View<const N, 3> dout, View<const N, 3> dfinal) {
  using std::exp;
  const Index batch = in.u.size(0), length = in.u.size(1), channels = in.u.size(2), states = in.a.size(1),
              groups = in.b.size(2);
  ScanTextbook<N> r{Tensor<N>({batch, length, channels}), Tensor<N>({batch, channels, states}),
      Tensor<N>({batch, length, channels}), Tensor<N>({batch, length, channels}), Tensor<N>({channels, states}),
      Tensor<N>({batch, length, groups, states}), Tensor<N>({batch, length, groups, states}), Tensor<N>({channels}),
      Tensor<N>({batch, channels, states})};
  const View<N, 3> out = r.out, final = r.final, du = r.du, ddt = r.ddt, dinitial = r.dinitial;
  const View<N, 2> da = r.da;
  const View<N, 4> db = r.db, dc = r.dc;
  const auto skip = [&](Index c) { return in.skip.is_null() ? N(0) : in.skip(c); };
  for (Index b = 0; b < batch; ++b) {
    for (Index c = 0; c < channels; ++c) {
      const Index g = c / (channels / groups);
      for (Index t = 0; t < length; ++t) {
        out(b, t, c) += skip(c) * in.u(b, t, c);
        du(b, t, c) += skip(c) * dout(b, t, c);
        r.dskip.data()[c] += in.u(b, t, c) * dout(b, t, c);
      }
      for (Index n = 0; n < states; ++n) {
        const auto decay = [&](Index t) { return N(exp(in.dt(b, t, c) * in.a(c, n))); };
        std::vector<N> h(1, in.initial.is_null() ? N(0) : in.initial(b, c, n));
        for (Index t = 0; t < length; ++t) {
          const N before = settled(h.back());
          h.push_back(decay(t) * before + in.dt(b, t, c) * in.b(b, t, g, n) * in.u(b, t, c));
          out(b, t, c) += in.c(b, t, g, n) * h.back();
        }
        final(b, c, n) = h.back();
        N dh = dfinal.is_null() ? N(0) : dfinal(b, c, n);
        for (Index t = length - 1; t >= 0; --t) {
          const auto at = static_cast<std::size_t>(t);
          dh = settled(dh) + in.c(b, t, g, n) * dout(b, t, c);
          dc(b, t, g, n) += h[at + 1] * dout(b, t, c);
          const N input = dh * in.dt(b, t, c), dlog = dh * decay(t) * settled(h[at]);
          db(b, t, g, n) += input * in.u(b, t, c);
          du(b, t, c) += input * in.b(b, t, g, n);
          ddt(b, t, c) += dh * in.b(b, t, g, n) * in.u(b, t, c) + dlog * in.a(c, n);
          da(c, n) += dlog * in.dt(b, t, c);
          dh = dh * decay(t);
        }
        dinitial(b, c, n) = dh;
      }
    }
  }
  return r;
}

template <class N> struct ConvolutionTextbook {
  Tensor<N> out, dx, dweight, dbias, dbefore;
};

template <class N>
ConvolutionTextbook<N> short_convolution(const ShortConvolutionInputs<N>& in, View<const N, 3> dout) {
  using std::exp;
  const Index batch = in.x.size(0), length = in.x.size(1), channels = in.x.size(2), width = in.weight.size(1);
  ConvolutionTextbook<N> r{Tensor<N>({batch, length, channels}), Tensor<N>({batch, length, channels}),
      Tensor<N>({channels, width}), Tensor<N>({channels}), Tensor<N>({batch, width - 1, channels})};
  const View<N, 3> out = r.out, dx = r.dx, dbefore = r.dbefore;
  const View<N, 2> dweight = r.dweight;
  for (Index b = 0; b < batch; ++b) {
    const auto reads = [&](Index t, Index from) {  // whether token t reads token `from`
      for (Index s = from; s < t && !in.sequence.is_null(); ++s) {
        if (s < 0 || in.sequence(b, s) != in.sequence(b, t)) return false;
      }
      return from >= 0 || !in.before.is_null();
    };
    for (Index c = 0; c < channels; ++c) {
      for (Index t = 0; t < length; ++t) {
        if (!in.sequence.is_null() && in.sequence(b, t) < 0) continue;
        N z = in.bias.is_null() ? N(0) : in.bias(c);
        for (Index k = 0; k < width; ++k) {
          const Index from = t - width + 1 + k;
          if (reads(t, from)) z += in.weight(c, k) * (from < 0 ? in.before(b, width - 1 + from, c) : in.x(b, from, c));
        }
        const N s = N(1) / (N(1) + exp(N(0) - z));
        out(b, t, c) = in.silu ? z * s : z;
        const N dz = in.silu ? dout(b, t, c) * (s + z * s * (N(1) - s)) : dout(b, t, c);
        r.dbias.data()[c] += dz;
        for (Index k = 0; k < width; ++k) {
          const Index from = t - width + 1 + k;
          if (!reads(t, from)) continue;
          dweight(c, k) += dz * (from < 0 ? in.before(b, width - 1 + from, c) : in.x(b, from, c));
          (from < 0 ? dbefore(b, width - 1 + from, c) : dx(b, from, c)) += dz * in.weight(c, k);
        }
      }
    }
  }
  return r;
}

}  // namespace qkv::inline v0::reference

// A layer's attention for one token of each sequence, as a model with half-split rotary positions and a growing cache
// generates it: what would be some twenty calls from Python.
#include <algorithm>

#include "attention/options.h"

namespace qkv::python {

namespace {

/// y = x * cos + rotate_half(x) * sin, each step rounded to T, as transformers computes it; strides of x, cos, sin, y.
template <class T> [[gnu::noinline]] void turn(const T* x, Index x_step, const T* cosine, const T* sine, Index cos_step,
    Index sin_step, Index width, T* y, Index y_step) {
  using Sum = Accumulator<T>;
  const Index half = width / 2, upper = width - half;
  const auto at = [&](Index d) { return static_cast<Sum>(x[d * x_step]); };
#pragma GCC unroll 1
  for (Index d = 0; d < width; ++d) {
    const Sum turned = d < upper ? -at(half + d) : at(d - upper);
    const T first(at(d) * static_cast<Sum>(cosine[d * cos_step])),
        second(turned * static_cast<Sum>(sine[d * sin_step]));
    y[d * y_step] = T(static_cast<Sum>(first) + static_cast<Sum>(second));
  }
}

/// q [B, 1, H D], k [B, 1, Hkv D], v [B, 1, Hkv Dv], cos, sin [B|1, 1, D], keys, values [B, Hkv, rows, D|Dv], of which
/// `held` rows are full; out [B, 1, H Dv].
bool fits(const Arrays<8>& a, Index held) {
  for (std::size_t n = 0; n < 8; ++n) {
    if (a[n].rank() != (n == 5 || n == 6 ? 4 : 3)) return false;
  }
  const Index batch = a[0].size(0), groups = a[5].size(1), width = a[5].size(3), v_width = a[6].size(3);
  if (width == 0 || a[0].size(2) % width != 0) return false;
  const auto is = [&](std::size_t n, Index second, Index third) {
    return a[n].size(0) == batch && a[n].size(1) == second && a[n].size(2) == third;
  };
  for (const std::size_t n : {std::size_t{3}, std::size_t{4}}) {
    if ((a[n].size(0) != 1 && a[n].size(0) != batch) || a[n].size(1) != 1 || a[n].size(2) != width) return false;
  }
  return is(0, 1, a[0].size(2)) && is(1, 1, groups * width) && is(2, 1, groups * v_width) &&
         is(5, groups, a[5].size(2)) && is(6, groups, a[6].size(2)) && is(7, 1, a[0].size(2) / width * v_width) &&
         held >= 0 && held < std::min(a[5].size(2), a[6].size(2));
}

/// Turns q and k, writes row `held` of keys and values, and attends.
void decode_step(const OptionsObject* options, Index held, const nb::args& objects) {
  const Arrays a("decode_step", {"q", "k", "v", "cos", "sin", "keys", "values", "out"}, objects);
  if (!fits(a, held)) {
    throw ShapeError(
        "[decode_step] arrays must be q [B, 1, H D], k [B, 1, Hkv D], v [B, 1, Hkv Dv], cos, sin [B|1, 1, D], keys "
        "[B, Hkv, rows, D], values [B, Hkv, rows, Dv] and out [B, 1, H Dv], with a row left for the token");
  }
  const AttentionOptions o = options_or_default(options);
  a.compute([&]<class T>(Context& context) {
    const View<const T, 3> q = a[0], k = a[1], v = a[2], cosine = a[3], sine = a[4];
    const View<T, 4> keys = a[5], values = a[6];
    const View<T, 3> out = a[7];
    const Index batch = q.size(0), groups = keys.size(1), width = keys.size(3), v_width = values.size(3);
    const Index heads = q.size(2) / width;
    std::vector<T> turned(static_cast<std::size_t>(batch * heads * width));
    for (Index b = 0; b < batch; ++b) {
      for (Index h = 0; h < heads + groups; ++h) {
        const View<const T, 3>& x = h < heads ? q : k;
        const Index g = h - heads, at = cosine.size(0) == 1 ? 0 : b;
        turn(&x(b, 0, (h < heads ? h : g) * width), x.stride(2), &cosine(at, 0, 0),
            &sine(sine.size(0) == 1 ? 0 : b, 0, 0), cosine.stride(2), sine.stride(2), width,
            h < heads ? &turned[static_cast<std::size_t>((b * heads + h) * width)] : &keys(b, g, held, 0),
            h < heads ? 1 : keys.stride(3));
        for (Index d = 0; h >= heads && d < v_width; ++d) values(b, g, held, d) = v(b, 0, g * v_width + d);
      }
    }
    const auto held_rows = [&](const View<T, 4>& x) {
      return View<const T, 4>(x.data(), {batch, groups, held + 1, x.size(3)}, x.strides());
    };
    const View<T, 4> rows(
        out.data(), {batch, heads, 1, v_width}, {out.stride(0), v_width * out.stride(2), out.stride(1), out.stride(2)});
    attention_forward(View<const T, 4>(turned.data(), {batch, heads, 1, width}), held_rows(keys), held_rows(values),
        AttentionOutputs<T>{.out = rows}, o, context);
  });
}

}  // namespace

void bind_step(nb::module_& m) {
  m.def("decode_step", &decode_step, nb::arg("options").none(), nb::arg("held"), nb::arg("arrays"));
}

}  // namespace qkv::python

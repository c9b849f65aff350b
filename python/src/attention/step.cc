// A layer's attention for one token of each sequence, as a model with half-split rotary positions and a growing cache
// generates it: what would be some twenty calls from Python.
#include "attention/options.h"

namespace qkv::python {

namespace {

/// y = x * cos + rotate_half(x) * sin, each step rounded to T, as transformers computes it.
template <class T> void turn(const T* x, Index step, const T* cosine, const T* sine, Index width, T* y) {
  using Sum = Accumulator<T>;
  const Index half = width / 2, upper = width - half;
  const auto at = [&](Index d) { return static_cast<Sum>(x[d * step]); };
  for (Index d = 0; d < width; ++d) {
    const Sum turned = d < upper ? -at(half + d) : at(d - upper);
    const T first(at(d) * static_cast<Sum>(cosine[d])), second(turned * static_cast<Sum>(sine[d]));
    y[d] = T(static_cast<Sum>(first) + static_cast<Sum>(second));
  }
}

void require(bool holds, const char* what) {
  if (!holds) throw ShapeError(std::string("[decode_step] ") + what);
}

/// q [B, 1, H D], k [B, 1, Hkv D], v [B, 1, Hkv Dv], cos, sin [B|1, 1, D], keys, values [B, Hkv, rows, D|Dv], of which
/// `held` rows are full: row `held` is written; out [B, 1, H Dv].
void decode_step(const OptionsObject* options, Index held, const nb::args& objects) {
  const Arrays a("decode_step", {"q", "k", "v", "cos", "sin", "keys", "values", "out"}, objects);
  const AttentionOptions o = options_or_default(options);
  a.compute([&]<class T>(Context& context) {
    const View<const T, 3> q = a[0], k = a[1], v = a[2], cosine = a[3], sine = a[4];
    const View<T, 4> keys = a[5], values = a[6];
    const View<T, 3> out = a[7];
    const Index batch = q.size(0), groups = keys.size(1), width = keys.size(3), v_width = values.size(3);
    require(width > 0 && q.size(2) % width == 0, "q must be [B, 1, H D], of the D of keys [B, Hkv, rows, D]");
    const Index heads = q.size(2) / width;
    for (const auto* x : {&q, &k, &v}) require(x->size(0) == batch && x->size(1) == 1, "q, k, v must be of one token");
    require(k.size(2) == groups * width && v.size(2) == groups * v_width, "k, v must be [B, 1, Hkv D], [B, 1, Hkv Dv]");
    require(keys.size(0) == batch && values.size(0) == batch && values.size(1) == groups, "keys, values: other sizes");
    require(held >= 0 && held < keys.size(2) && held < values.size(2), "keys, values have no row left");
    for (const auto* x : {&cosine, &sine}) {
      require((x->size(0) == 1 || x->size(0) == batch) && x->size(1) == 1 && x->size(2) == width && x->stride(2) == 1,
          "cos, sin must be [B|1, 1, D]");
    }
    require(keys.stride(3) == 1 && out.size(0) == batch && out.size(1) == 1 && out.size(2) == heads * v_width,
        "out must be [B, 1, H Dv]");
    std::vector<T> turned(static_cast<std::size_t>(batch * heads * width));
    for (Index b = 0; b < batch; ++b) {
      const T* const c = &cosine(cosine.size(0) == 1 ? 0 : b, 0, 0);
      const T* const s = &sine(sine.size(0) == 1 ? 0 : b, 0, 0);
      for (Index h = 0; h < heads; ++h)
        turn(&q(b, 0, h * width), q.stride(2), c, s, width, turned.data() + (b * heads + h) * width);
      for (Index g = 0; g < groups; ++g) {
        turn(&k(b, 0, g * width), k.stride(2), c, s, width, &keys(b, g, held, 0));
        for (Index d = 0; d < v_width; ++d) values(b, g, held, d) = v(b, 0, g * v_width + d);
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

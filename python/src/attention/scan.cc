// The selective scan and the short convolution, forward and backward.
#include "arrays/array.h"
#include "bindings.h"
#include "qkv/state_space.h"

namespace qkv::python {

namespace {

void scan_forward(const nb::args& objects) {
  const Arrays a("selective_scan", {"u", "dt", "A", "B", "C", "D?", "initial?", "out", "final?", "kept?"}, objects);
  a.compute_wide([&]<class T>(Context& context) {
    const SelectiveScanInputs<T> inputs{a[0], a[1], a[2], a[3], a[4], a[5], a[6]};
    selective_scan_forward(inputs, SelectiveScanOutputs<T>{a[7], a[8], a[9]}, context);
  });
}

void scan_backward(const nb::args& objects) {
  const Arrays a("selective_scan_backward",
      {"u", "dt", "A", "B", "C", "D?", "initial?", "kept?", "dout", "du?", "ddt?", "dA?", "dB?", "dC?", "dD?",
          "dinitial?", "dfinal?"},
      objects);
  a.compute_wide([&]<class T>(Context& context) {
    const SelectiveScanInputs<T> inputs{a[0], a[1], a[2], a[3], a[4], a[5], a[6]};
    const SelectiveScanGradients<T> gradients{a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16]};
    selective_scan_backward(inputs, a[7], a[8], gradients, context);
  });
}

void convolution_forward(bool silu, const nb::args& objects) {
  const Arrays a("short_convolution", {"x", "weight", "bias?", "before?", "sequence?", "out"}, objects);
  a.compute_wide([&]<class T>(Context& context) {
    short_convolution_forward(ShortConvolutionInputs<T>{a[0], a[1], a[2], a[3], a[4], silu}, a[5], context);
  });
}

void convolution_backward(bool silu, const nb::args& objects) {
  const Arrays a("short_convolution_backward",
      {"x", "weight", "bias?", "before?", "sequence?", "dout", "dx?", "dweight?", "dbias?", "dbefore?"}, objects);
  a.compute_wide([&]<class T>(Context& context) {
    const ShortConvolutionInputs<T> inputs{a[0], a[1], a[2], a[3], a[4], silu};
    short_convolution_backward(inputs, a[5], ShortConvolutionGradients<T>{a[6], a[7], a[8], a[9]}, context);
  });
}

}  // namespace

void bind_scan(nb::module_& m) {
  m.attr("selective_scan_chunk") = kSelectiveScanChunk;
  m.def("selective_scan_forward", &scan_forward);
  m.def("selective_scan_backward", &scan_backward);
  m.def("short_convolution_forward", &convolution_forward);
  m.def("short_convolution_backward", &convolution_backward);
}

}  // namespace qkv::python

// Kinds of heads, and weights of some rows, of the calls of running models (qkv/view/kinds.h).
#include "qkv/view/kinds.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays/masks.h"
#include "layers/nn.h"

namespace qkv::python {

namespace {

using Numbers = std::vector<Index>;

/// A call, and the arrays that it refers to.
struct HeadCallObject {
  view::HeadCall call;
  std::vector<std::shared_ptr<const Array>> held;
};

// q [H, Tq, D], k [Hkv, Tk, D], bias [H|1, Tq|1, Tk|1] or None: float32. lse, entropy, sink [H, Tq] or None: float64.
HeadCallObject make_call(nb::handle q, nb::handle k, nb::handle bias, nb::handle lse, nb::handle entropy,
    nb::handle sink, double scale, double softcap, const MaskObject& mask, Index batch, Index sequence, Index offset,
    bool same_text, Numbers ids, Numbers starts, std::optional<Numbers> rows) {
  HeadCallObject made{{}, mask.borrowed};
  const auto array = [&made](const char* name, nb::handle object) -> const Array& {
    return *made.held.emplace_back(std::make_shared<const Array>("kinds", name, object));
  };
  view::HeadCall& call = made.call;
  call.q = array("q", q).input<float, 3>();
  call.k = array("k", k).input<float, 3>();
  call.lse = array("lse", lse).input<double, 2>();
  if (!entropy.is_none()) call.entropy = array("entropy", entropy).input<double, 2>();
  if (!sink.is_none()) call.sink = array("sink", sink).input<double, 2>();
  call.scale = scale;
  call.softcap = softcap;
  if (!bias.is_none()) {
    auto view = array("bias", bias).input<float, 3>();
    auto strides = view.strides();
    for (int axis = 0; axis < 3; ++axis)
      if (view.size(axis) == 1) strides[static_cast<std::size_t>(axis)] = 0;
    view = {view.data(), view.sizes(), strides};
    call.bias = [view](Index h, Index i, Index j) { return static_cast<double>(view(h, i, j)); };
  }
  call.mask = mask.mask;
  call.batch = batch;
  call.sequence = sequence;
  call.offset = offset;
  call.same_text = same_text;
  call.ids = std::move(ids);
  call.starts = std::move(starts);
  call.rows = std::move(rows);
  return made;
}

/// (kind, share or None, first, shares) of every head.
std::vector<std::tuple<std::string, std::optional<double>, double, nb::dict>> kinds_of_heads(
    const std::vector<const HeadCallObject*>& calls, Index first, std::pair<Index, Index> grid) {
  std::vector<view::HeadKind> found;
  {
    const Released released;
    std::vector<view::HeadCall> all;
    for (const HeadCallObject* one : calls) all.push_back(one->call);
    found = view::kinds_of_heads(all, first, grid);
  }
  std::vector<std::tuple<std::string, std::optional<double>, double, nb::dict>> out;
  for (const view::HeadKind& head : found) {
    nb::dict shares;
    for (const auto& [name, share] : head.shares) shares[nb::str(name.data(), name.size())] = share;
    out.emplace_back(head.kind, head.share, head.first, shares);
  }
  return out;
}

/// float32 [Tq, 2], and whether the keys are all that lie between.
std::pair<nb::object, bool> key_intervals(
    const MaskObject& mask, Index batch, Index sequence, Index q_len, Index kv_len) {
  std::pair<Tensor<float>, bool> found;
  {
    const Released released;
    found = view::key_intervals(mask.mask, {batch, 1, q_len, kv_len}, sequence);
  }
  return {numpy_of<float>(std::move(found.first), {q_len, 2}), found.second};
}

/// [H, n, Tk]
nb::object weights_of_rows(const HeadCallObject& object, const Numbers& rows) {
  Tensor<double> weights;
  {
    const Released released;
    weights = view::weights_of_rows(object.call, rows);
  }
  const std::vector<Index> sizes = weights.sizes();
  return numpy_of<double>(std::move(weights), sizes);
}

}  // namespace

void bind_kinds(nb::module_& m) {
  nb::class_<HeadCallObject>(m, "HeadCall").def("weights_of_rows", &weights_of_rows);
  m.def("head_call", &make_call, nb::arg("q"), nb::arg("k"), nb::arg("bias").none(), nb::arg("lse"),
      nb::arg("entropy").none(), nb::arg("sink").none(), nb::arg("scale"), nb::arg("softcap"), nb::arg("mask"),
      nb::arg("batch"), nb::arg("sequence"), nb::arg("offset"), nb::arg("same_text"), nb::arg("ids") = Numbers(),
      nb::arg("starts") = Numbers(), nb::arg("rows") = nb::none());
  m.def("key_intervals", &key_intervals);
  m.def("kinds_of_heads", &kinds_of_heads, nb::arg("calls"), nb::arg("first"), nb::arg("grid"));
}

}  // namespace qkv::python

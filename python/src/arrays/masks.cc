// Mask and BlockMap. Each factory is one of Mask's (qkv/mask.h); lists of numbers come in as any sequence of ints.
#include "arrays/masks.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "bindings.h"
#include "qkv/block_map.h"
#include "qkv/error.h"

namespace qkv::python {

Align parse_align(const char* function, const std::string& name) {
  return choice<Align>("[" + std::string(function) + "] align", name,
      {{"square", Align::kSquare}, {"top_left", Align::kTopLeft}, {"bottom_right", Align::kBottomRight}});
}

namespace {

using Numbers = std::vector<Index>;

// A dense mask of four axes, or of fewer that are named.
MaskObject dense(bool keep, nb::handle object, const std::optional<std::string>& axes, bool leading_ones) {
  const std::string function = keep ? "Mask.keep" : "Mask.drop";
  const auto array = std::make_shared<const Array>(keep ? "Mask.keep" : "Mask.drop", keep ? "keep" : "drop", object);
  const auto make = [&](auto view, auto... named) {
    return keep ? Mask::keep(view, named...) : Mask::drop(view, named...);
  };
  if (!axes) {
    if (array->rank() != 4 && !leading_ones) {
      throw ShapeError(
          "[" + function +
          "] a mask with fewer than four axes must name them: mask_axes=\"bk\", \"qk\", \"bqk\" or \"hqk\": got " +
          std::to_string(array->rank()) + " axes");
    }
    return {make(array->input<std::uint8_t, 4>()), {array}};
  }
  const auto named = choice<MaskAxes>("[" + function + "] mask_axes", *axes,
      {{"bk", MaskAxes::kBk}, {"qk", MaskAxes::kQk}, {"bqk", MaskAxes::kBqk}, {"hqk", MaskAxes::kHqk}});
  if (array->rank() != static_cast<int>(axes->size())) {
    throw ShapeError("[" + function + "] mask_axes=\"" + *axes + "\" is for " + std::to_string(axes->size()) +
                     " axes: got " + std::to_string(array->rank()));
  }
  return {
      array->rank() == 2 ? make(array->input<std::uint8_t, 2>(), named) : make(array->input<std::uint8_t, 3>(), named),
      {array}};
}

MaskObject joined(const MaskObject& a, const MaskObject& b, Mask mask) {
  MaskObject made{std::move(mask), a.borrowed};
  made.borrowed.insert(made.borrowed.end(), b.borrowed.begin(), b.borrowed.end());
  return made;
}

nb::bytes to_dense(const MaskObject& object, Index batch, Index heads, Index q_len, Index kv_len) {
  if (batch < 0 || heads < 0 || q_len < 0 || kv_len < 0) throw ShapeError("[Mask.to_dense] sizes must not be negative");
  Tensor<std::uint8_t> keep({batch, heads, q_len, kv_len});
  {
    const Released released;
    mask_to_dense(object.mask, keep);
  }
  return nb::bytes(keep.data(), static_cast<std::size_t>(keep.count()));
}

using Rows = std::tuple<Index, Index, Index, Index, Index, Index, Numbers, Numbers>;

void bind_block_maps(nb::module_& m) {
  const auto q_len = nb::arg("q_len"), kv_len = nb::arg("kv_len");
  nb::class_<BlockMap>(m, "BlockMap",
      "Which blocks of queries and keys are computed (compressed rows). Attention costs what the listed blocks cost.")
      .def_static(
          "from_mask",
          [](nb::handle mask, Index queries, Index keys, Index batch, Index num_heads, Index q_block, Index kv_block) {
            const Mask of = nb::cast<const MaskObject&>(mask.attr("_core")).mask;
            const Released released;
            return block_map(of, BlockMapSizes{batch, num_heads, queries, keys, q_block, kv_block});
          },
          nb::arg("mask"), q_len, kv_len, nb::kw_only(), nb::arg("batch") = 1, nb::arg("num_heads") = 1,
          nb::arg("q_block") = 64, nb::arg("kv_block") = 64, "The blocks in which a mask keeps anything.")
      .def_prop_ro("density", &BlockMap::density, "Share of the blocks that are listed.")
      .def_prop_ro("live_blocks", &BlockMap::live_blocks, "How many blocks are listed.")
      .def_ro("num_heads", &BlockMap::num_heads, "Heads with lists of their own, or 1.")
      .def("__repr__",
          [](const BlockMap& b) {
            return nb::str("BlockMap({} x {} blocks of {} x {}, {} listed, density {:.3g})")
                .attr("format")(b.q_blocks, b.kv_blocks, b.q_block, b.kv_block, b.live_blocks(), b.density());
          })
      .def("__getstate__",
          [](const BlockMap& b) {
            return Rows(b.q_block, b.kv_block, b.q_blocks, b.kv_blocks, b.batch, b.num_heads, b.row_begin, b.columns);
          })
      .def("__setstate__",
          [](BlockMap& self, const Rows& rows) { new (&self) BlockMap(std::make_from_tuple<BlockMap>(rows)); });
}

}  // namespace

namespace {

void refuse_both(Align align, const std::optional<Numbers>& offsets) {
  if (offsets && align != Align::kSquare)
    throw OptionError("[Mask] offsets are the diagonal of each sequence: align beside them would change nothing");
}

}  // namespace

void bind_masks(nb::module_& m) {
  bind_block_maps(m);
  const auto plain = [](Mask mask) { return MaskObject{std::move(mask)}; };
  nb::class_<MaskObject>(m, "Mask")
      .def("__and__", [](const MaskObject& a, const MaskObject& b) { return joined(a, b, a.mask & b.mask); })
      .def("__or__", [](const MaskObject& a, const MaskObject& b) { return joined(a, b, a.mask | b.mask); })
      .def("describe", [](const MaskObject& object) { return object.mask.describe(); })
      .def("to_bytes", &to_dense);

  m.def("everything", [=] { return plain(Mask()); });
  m.def(
      "causal",
      [=](const std::string& align, const std::optional<Numbers>& offsets) {
        const Align aligned = parse_align("Mask", align);
        refuse_both(aligned, offsets);
        return plain(offsets ? Mask::causal(*offsets) : Mask::causal(aligned));
      },
      nb::arg("align"), nb::arg("offsets") = nb::none());
  m.def(
      "window",
      [=](Index left, Index right, const std::string& align, const std::optional<Numbers>& offsets) {
        const Align aligned = parse_align("Mask", align);
        refuse_both(aligned, offsets);
        return plain(offsets ? Mask::window(left, right, *offsets) : Mask::window(left, right, aligned));
      },
      nb::arg("left"), nb::arg("right"), nb::arg("align"), nb::arg("offsets") = nb::none());
  m.def("sliding",
      [=](Index n, const std::string& align) { return plain(Mask::sliding(n, parse_align("Mask", align))); });
  m.def("dilated",
      [=](Index step, const std::string& align) { return plain(Mask::dilated(step, parse_align("Mask", align))); });
  m.def(
      "chunked",
      [=](Index size, const std::string& align, const std::optional<Numbers>& starts) {
        const Align aligned = parse_align("Mask", align);
        return plain(starts ? Mask::chunked(size, *starts, aligned) : Mask::chunked(size, aligned));
      },
      nb::arg("size"), nb::arg("align"), nb::arg("starts") = nb::none());
  m.def("key_lengths", [=](const Numbers& lengths) { return plain(Mask::key_lengths(lengths)); });
  m.def("key_starts", [=](const Numbers& starts) { return plain(Mask::key_starts(starts)); });
  m.def("query_lengths", [=](const Numbers& lengths) { return plain(Mask::query_lengths(lengths)); });
  m.def("prefix", [=](const Numbers& lengths) { return plain(Mask::prefix(lengths)); });
  m.def("first", [=](Index n) { return plain(Mask::first(n)); });
  m.def("global_rows", [=](const Numbers& rows) { return plain(Mask::global_rows(rows)); });
  m.def("global_columns", [=](const Numbers& columns) { return plain(Mask::global_columns(columns)); });
  m.def("documents", [=](const Numbers& q_offsets, const Numbers& k_offsets, const MaskObject& inside) {
    return MaskObject{Mask::documents(q_offsets, k_offsets, inside.mask), inside.borrowed};
  });
  m.def("document_ids",
      [=](const Numbers& q_ids, const Numbers& k_ids) { return plain(Mask::document_ids(q_ids, k_ids)); });
  m.def("document_ids_batch", [=](nb::handle q_ids, nb::handle k_ids) {
    const Array q("Mask.document_ids", "q_ids", q_ids), k("Mask.document_ids", "k_ids", k_ids);
    return plain(Mask::document_ids(q.input<Index, 2>(), k.input<Index, 2>()));
  });
  m.def("blocks", [=](const BlockMap& map) { return plain(Mask::blocks(std::make_shared<const BlockMap>(map))); });
  m.def("keys", [=](nb::handle index) {
    const Array array("Mask.keys", "index", index);
    return plain(Mask::keys(array.input<std::int32_t, 4>()));
  });
  for (const bool keep : {true, false}) {
    m.def(
        keep ? "keep" : "drop",
        [keep](nb::handle array, const std::optional<std::string>& axes, bool leading_ones) {
          return dense(keep, array, axes, leading_ones);
        },
        nb::arg("array"), nb::arg("axes").none(), nb::arg("leading_ones"));
  }
}

}  // namespace qkv::python

// Capture: what to capture goes in, what was captured comes out as NumPy arrays.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "attention/options.h"

namespace qkv::python {

namespace {

// Arrays that own the memory of the results; None where nothing was asked for.
nb::dict result(CaptureObject& object) {
  CaptureResult& result = object.result;
  RowStatistics& rows = result.statistics;
  nb::dict d;
  d["rows"] = to_numpy(std::move(result.rows));
  d["top_weights"] = to_numpy(std::move(result.top_weights));
  d["top_keys"] = to_numpy(std::move(result.top_keys));
  d["map"] = to_numpy(std::move(result.map));
  d["column_mass"] = to_numpy(std::move(result.column_mass));
  d["entropy"] = to_numpy(std::move(rows.entropy));
  d["max_weight"] = to_numpy(std::move(rows.max_weight));
  d["max_key"] = to_numpy(std::move(rows.max_key));
  d["self_"] = to_numpy(std::move(rows.self));
  d["previous"] = to_numpy(std::move(rows.previous));
  d["first"] = to_numpy(std::move(rows.first));
  d["distance"] = to_numpy(std::move(rows.distance));
  d["sink"] = to_numpy(std::move(rows.sink));
  return d;
}

}  // namespace

void bind_capture(nb::module_& m) {
  nb::class_<CaptureObject>(m, "Capture")
      .def("__init__",
          [](CaptureObject* self, const nb::kwargs& given) {
            Capture c;
            Keywords("Capture", given)("heads", c.heads)("rows", c.rows)("top_k", c.top_k)("statistics", c.statistics)(
                "column_mass", c.column_mass)("map_rows", c.map_rows)("map_columns", c.map_columns)(
                "offsets", c.offsets)("positive", c.positive)
                .word("of", c.of,
                    {{"weights", CaptureOf::kWeights}, {"applied", CaptureOf::kApplied},
                        {"gradient", CaptureOf::kGradient}})
                .end();
            new (self) CaptureObject{std::move(c)};
          })
      .def("result", &result);
}

}  // namespace qkv::python

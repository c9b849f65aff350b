// Capture: what to look at goes in, copies of what was seen come out as NumPy arrays.
#include "attention/capture.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "bindings.h"

namespace qkv::python {

namespace {

CaptureOf parse_of(const std::string& name) {
  return choice<CaptureOf>(
      "[Capture] of", name,
      {{"weights", CaptureOf::kWeights}, {"applied", CaptureOf::kApplied}, {"gradient", CaptureOf::kGradient}});
}

// None where nothing was asked for.
template <class T>
nb::object copied(const Tensor<T>& tensor) {
  if (tensor.data() == nullptr) return nb::none();
  std::vector<std::size_t> sizes;
  std::size_t count = 1;
  for (const Index size : tensor.sizes()) {
    sizes.push_back(static_cast<std::size_t>(size));
    count *= static_cast<std::size_t>(size);
  }
  auto* data = new T[count];
  const nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  std::copy_n(tensor.data(), count, data);
  return nb::cast(nb::ndarray<nb::numpy, T>(data, sizes.size(), sizes.data(), owner));
}

nb::dict seen(const CaptureObject& object) {
  const CaptureResult& result = object.seen;
  nb::dict d;
  d["rows"] = copied(result.rows);
  d["top_weights"] = copied(result.top_weights);
  d["top_keys"] = copied(result.top_keys);
  d["map"] = copied(result.map);
  d["column_mass"] = copied(result.column_mass);
  d["entropy"] = copied(result.statistics.entropy);
  d["max_weight"] = copied(result.statistics.max_weight);
  d["max_key"] = copied(result.statistics.max_key);
  d["self"] = copied(result.statistics.self);
  d["previous"] = copied(result.statistics.previous);
  d["first"] = copied(result.statistics.first);
  d["distance"] = copied(result.statistics.distance);
  d["sink"] = copied(result.statistics.sink);
  return d;
}

}  // namespace

void bind_capture(nb::module_& m) {
  nb::class_<CaptureObject>(m, "Capture").def("seen", &seen);
  m.def("capture",
        [](std::vector<Index> heads, std::vector<Index> rows, Index top_k, bool statistics, bool column_mass, Index map_rows,
           Index map_columns, const std::string& of, std::vector<Index> offsets, bool positive, bool mean_of_heads) {
          CaptureObject made;
          made.look.heads = std::move(heads);
          made.look.rows = std::move(rows);
          made.look.top_k = top_k;
          made.look.statistics = statistics;
          made.look.column_mass = column_mass;
          made.look.map_rows = map_rows;
          made.look.map_columns = map_columns;
          made.look.of = parse_of(of);
          made.look.offsets = std::move(offsets);
          made.look.positive = positive;
          made.look.mean_of_heads = mean_of_heads;
          return made;
        });
}

}  // namespace qkv::python

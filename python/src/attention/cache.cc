// KVCache, and attention on it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attention/capture.h"
#include "attention/options.h"
#include "bindings.h"
#include "qkv/error.h"
#include "qkv/kv_cache.h"

namespace qkv::python {

namespace {

using Optional = std::optional<Array>;
using Numbers = std::vector<Index>;

CacheStorage parse_storage(const std::string& name) {
  if (name == "float32") return CacheStorage::kF32;
  if (name == "float64") return CacheStorage::kF64;
  if (name == "bfloat16") return CacheStorage::kBF16;
  if (name == "float16") return CacheStorage::kF16;
  if (name == "int8") return CacheStorage::kInt8;
  throw OptionError("[KVCache] storage must be \"float32\", \"float64\", \"bfloat16\", \"float16\" or \"int8\": got \"" + name +
                    "\"");
}

CacheLayout parse_layout(const std::string& name) {
  if (name == "contiguous") return CacheLayout::kContiguous;
  if (name == "ring") return CacheLayout::kRing;
  if (name == "paged") return CacheLayout::kPaged;
  throw OptionError("[KVCache] layout must be \"contiguous\", \"ring\" or \"paged\": got \"" + name + "\"");
}

void append(KVCache& cache, nb::handle k, nb::handle v, const std::optional<Numbers>& sequences) {
  constexpr const char* kName = "KVCache.append";
  const Array ka(kName, "k", k), va(kName, "v", v);
  with_float_type(kName, ka, [&]<class T>() {
    const auto kv = ka.input<T, 4>(), vv = va.input<T, 4>();
    if (sequences) {
      cache.append(*sequences, kv, vv);
    } else {
      cache.append(kv, vv);
    }
  });
}

void read(const KVCache& cache, Index sequence, Index begin, nb::handle k, nb::handle v) {
  constexpr const char* kName = "KVCache.read";
  const Array ka(kName, "k", k), va(kName, "v", v);
  with_wide_type(kName, ka, [&]<class T>() { cache.read(sequence, begin, ka.output<T, 3>(), va.output<T, 3>()); });
}

// shared > 0: the cascade.
void forward(const KVCache& cache, nb::handle q, const std::optional<Numbers>& sequences, Index shared, nb::handle out,
             nb::handle lse, const OptionsObject* options, CaptureObject* capture) {
  constexpr const char* kName = "attention";
  const Array qa(kName, "q", q), oa(kName, "out", out);
  const Optional la = optional_array(kName, "lse", lse);
  AttentionOptions o = options_or_default(options);
  if (capture != nullptr) o.capture = {capture->look, capture->seen};
  const std::shared_ptr<Context> with = context();
  with_float_type(kName, qa, [&]<class T>() {
    const auto qv = qa.input<T, 4>();
    const auto ov = oa.output<T, 4>();
    const auto lv = output_or_null<Accumulator<T>, 3>(la);
    const KeyValue kv = sequences ? cache.key_value(*sequences) : cache.key_value();
    const nb::gil_scoped_release released;
    if (shared > 0) {
      attention_forward_cascade(qv, kv, shared, {.out = ov, .lse = lv}, o, *with);
    } else {
      attention_forward(qv, kv, {.out = ov, .lse = lv}, o, *with);
    }
  });
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<KVCache>(m, "KVCache")
      .def(
          "__init__",
          [](KVCache* self, Index num_kv_heads, Index head_dim, Index v_head_dim, const std::string& storage,
             const std::string& layout, Index sequences, Index max_sequences, Index capacity, Index window, Index max_append,
             Index first, Index page_size, Index pages) {
            new (self) KVCache(KVCacheConfig{num_kv_heads, head_dim, v_head_dim, parse_storage(storage), parse_layout(layout),
                                             sequences, max_sequences, capacity, window, max_append, first, page_size, pages},
                               *context());
          },
          nb::kw_only(), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("v_head_dim") = 0,
          nb::arg("storage") = "float32", nb::arg("layout") = "contiguous", nb::arg("sequences") = 1,
          nb::arg("max_sequences") = 0, nb::arg("capacity") = 0, nb::arg("window") = 0, nb::arg("max_append") = 1,
          nb::arg("first") = 0, nb::arg("page_size") = 64, nb::arg("pages") = 0)
      .def("append", &append, nb::arg("k"), nb::arg("v"), nb::arg("sequences").none())
      .def("read", &read)
      .def("forward", &forward, nb::arg("q"), nb::arg("sequences").none(), nb::arg("shared"), nb::arg("out"),
           nb::arg("lse").none(), nb::arg("options").none(), nb::arg("capture").none())
      .def_prop_ro("sequences",
                   [](const KVCache& cache) { return Numbers(cache.sequences().begin(), cache.sequences().end()); })
      .def("length", &KVCache::length)
      .def("add_sequence", &KVCache::add_sequence)
      .def("fork", &KVCache::fork)
      .def("truncate", &KVCache::truncate)
      .def("free", &KVCache::free)
      .def("clear", &KVCache::clear)
      .def_prop_ro("num_kv_heads", [](const KVCache& cache) { return cache.config().num_kv_heads; })
      .def_prop_ro("head_dim", [](const KVCache& cache) { return cache.config().head_dim; })
      .def_prop_ro("v_head_dim",
                   [](const KVCache& cache) {
                     return cache.config().v_head_dim > 0 ? cache.config().v_head_dim : cache.config().head_dim;
                   })
      .def_prop_ro("free_pages", &KVCache::free_pages)
      .def_prop_ro("nbytes", &KVCache::bytes);
}

}  // namespace qkv::python

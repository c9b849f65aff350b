// KVCache, and attention on it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "attention/options.h"
#include "bindings.h"
#include "qkv/kv_cache.h"

namespace qkv::python {

namespace {

using Numbers = std::vector<Index>;

CacheStorage parse_storage(const std::string& name) {
  return choice<CacheStorage>("[KVCache] storage", name,
                              {{"float32", CacheStorage::kF32},
                               {"float64", CacheStorage::kF64},
                               {"bfloat16", CacheStorage::kBF16},
                               {"float16", CacheStorage::kF16},
                               {"int8", CacheStorage::kInt8}});
}

CacheLayout parse_layout(const std::string& name) {
  return choice<CacheLayout>(
      "[KVCache] layout", name,
      {{"contiguous", CacheLayout::kContiguous}, {"ring", CacheLayout::kRing}, {"paged", CacheLayout::kPaged}});
}

void append(KVCache& cache, nb::handle k, nb::handle v, const std::optional<Numbers>& sequences) {
  constexpr const char* kName = "KVCache.append";
  const Array ka(kName, "k", k);
  const OptionalArray va(kName, "v", v);
  with_float_type(kName, ka, [&]<class T>() {
    if (sequences) {
      cache.append(*sequences, ka.input<T, 4>(), va);
    } else {
      cache.append(ka.input<T, 4>(), va);
    }
  });
}

void read(const KVCache& cache, Index sequence, Index begin, nb::handle k, nb::handle v) {
  constexpr const char* kName = "KVCache.read";
  const Array ka(kName, "k", k), va(kName, "v", v);
  with_wide_type(kName, ka, [&]<class T>() { cache.read(sequence, begin, ka.output<T, 3>(), va); });
}

void forward(const KVCache& cache, nb::handle q, const std::optional<Numbers>& sequences, nb::handle out, nb::handle lse,
             const OptionsObject* options, CaptureObject* capture) {
  constexpr const char* kName = "attention";
  const Array qa(kName, "q", q), oa(kName, "out", out);
  const OptionalArray la(kName, "lse", lse);
  const AttentionOptions o = options_or_default(options, capture);
  with_float_type(kName, qa, [&]<class T>() {
    const KeyValue kv = sequences ? cache.key_value(*sequences) : cache.key_value();
    const AttentionOutputs<T> outputs{oa, la};
    const Computation call;
    attention_forward(qa, kv, outputs, o, *call.context);
  });
}

// On pages of the caller: k [P, Hkv, page, D], v [P, Hkv, page, Dv], table [B, M] of int64.
void paged_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle table, const Numbers& lengths, nb::handle out,
                   nb::handle lse, const OptionsObject* options) {
  constexpr const char* kName = "attention";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), ta(kName, "table", table), oa(kName, "out", out),
      la(kName, "lse", lse);
  const AttentionOptions o = options_or_default(options);
  with_float_type(kName, qa, [&]<class T>() {
    const KeyValue kv = KeyValue::paged(ka.input<T, 4>(), va.input<T, 4>(), ta.input<Index, 2>(), lengths);
    const Computation call;
    attention_forward(qa, kv, AttentionOutputs<T>{oa, la}, o, *call.context);
  });
}

}  // namespace

void bind_cache(nb::module_& m) {
  m.def("paged_forward", &paged_forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("table"), nb::arg("lengths"),
        nb::arg("out"), nb::arg("lse"), nb::arg("options").none());
  nb::class_<KVCache>(m, "KVCache")
      .def(
          "__init__",
          [](KVCache* self, Index num_kv_heads, Index head_dim, Index v_head_dim, const std::string& storage,
             const std::string& layout, Index sequences, Index max_sequences, Index capacity, Index window, Index max_append,
             Index first, Index page_size, Index pages, bool values_in_keys) {
            new (self) KVCache(
                KVCacheConfig{num_kv_heads, head_dim, v_head_dim, parse_storage(storage), parse_layout(layout), sequences,
                              max_sequences, capacity, window, max_append, first, page_size, pages, values_in_keys},
                *context());
          },
          nb::kw_only(), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("v_head_dim") = 0,
          nb::arg("storage") = "float32", nb::arg("layout") = "contiguous", nb::arg("sequences") = 1,
          nb::arg("max_sequences") = 0, nb::arg("capacity") = 0, nb::arg("window") = 0, nb::arg("max_append") = 1,
          nb::arg("first") = 0, nb::arg("page_size") = 64, nb::arg("pages") = 0, nb::arg("values_in_keys") = false)
      .def("append", &append, nb::arg("k"), nb::arg("v").none(), nb::arg("sequences").none())
      .def("read", &read)
      .def("forward", &forward, nb::arg("q"), nb::arg("sequences").none(), nb::arg("out"),
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

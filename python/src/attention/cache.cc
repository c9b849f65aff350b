// KVCache, and attention on it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attention/options.h"
#include "bindings.h"
#include "qkv/kv_cache.h"

namespace qkv::python {

namespace {

using Numbers = std::vector<Index>;

void make(KVCache* self, const nb::kwargs& given) {
  KVCacheConfig c;
  Keywords("KVCache", given)("num_kv_heads", c.num_kv_heads)("head_dim", c.head_dim)("v_head_dim", c.v_head_dim)(
      "sequences", c.sequences)("max_sequences", c.max_sequences)("capacity", c.capacity)("window", c.window)(
      "max_append", c.max_append)("first", c.first)("page_size", c.page_size)("pages", c.pages)(
      "values_in_keys", c.values_in_keys)
      .word("storage", c.storage,
          {{"float32", CacheStorage::kF32}, {"float64", CacheStorage::kF64}, {"bfloat16", CacheStorage::kBF16},
              {"float16", CacheStorage::kF16}, {"int8", CacheStorage::kInt8}, {"int4", CacheStorage::kInt4}})
      .word("layout", c.layout,
          {{"contiguous", CacheLayout::kContiguous}, {"ring", CacheLayout::kRing}, {"paged", CacheLayout::kPaged}})
      .end();
  new (self) KVCache(c, *context());
}

void append(KVCache& cache, nb::handle k, nb::handle v, const std::optional<Numbers>& sequences) {
  constexpr const char* kName = "KVCache.append";
  const Array ka(kName, "k", k), va(kName, "v?", v);
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

void error_bound(const KVCache& cache, nb::handle q, nb::handle bound, std::optional<double> scale) {
  constexpr const char* kName = "KVCache.error_bound";
  const Array qa(kName, "q", q), ba(kName, "bound", bound);
  with_float_type(kName, qa, [&]<class T>() { cache.error_bound(qa.input<T, 4>(), ba.output<double, 3>(), scale); });
}

void cache_forward(const KVCache& cache, const OptionsObject* options, CaptureObject* capture, const std::string& kind,
    const std::optional<Numbers>& sequences, const nb::args& objects) {
  const Arrays a("attention", {"q", "out", "lse?", "weights?", "lse_low?"}, objects);
  const AttentionOptions o = options_or_default(options, capture);
  const KeyValue kv = sequences ? cache.key_value(*sequences) : cache.key_value();
  a.compute([&]<class T>(Context& context) {
    attention_forward(a[0].input<T, 4>(), kv, outputs_of<T>(a[1], a[2], a[3], kind, a[4]), o, context);
  });
}

// On pages of the caller: k [P, Hkv, page, D], v [P, Hkv, page, Dv], table [B, M] of int64.
void paged_forward(const OptionsObject* options, const Numbers& lengths, const nb::args& objects) {
  const Arrays a("attention", {"q", "k", "v", "table", "out", "lse"}, objects);
  const AttentionOptions o = options_or_default(options);
  a.compute([&]<class T>(Context& context) {
    const KeyValue kv = KeyValue::paged(a[1].input<T, 4>(), a[2].input<T, 4>(), a[3].input<Index, 2>(), lengths);
    attention_forward(a[0].input<T, 4>(), kv, AttentionOutputs<T>{a[4], a[5]}, o, context);
  });
}

}  // namespace

void bind_cache(nb::module_& m) {
  m.def("paged_forward", &paged_forward, nb::arg("options").none(), nb::arg("lengths"), nb::arg("arrays"));
  nb::class_<KVCache>(m, "KVCache")
      .def("__init__", &make)
      .def("_append", &append, nb::arg("k"), nb::arg("v").none(), nb::arg("sequences").none())
      .def("_read", &read)
      .def("_error_bound", &error_bound, nb::arg("q"), nb::arg("bound"), nb::arg("scale").none())
      .def("_element_errors",
          [](const KVCache& cache) {
            const KVCache::ErrorBound most = cache.error_bound();
            return std::pair(most.k, most.v);
          })
      .def("_forward", &cache_forward, nb::arg("options").none(), nb::arg("capture").none(), nb::arg("kind"),
          nb::arg("sequences").none(), nb::arg("arrays"))
      .def_prop_ro(
          "sequences", [](const KVCache& cache) { return Numbers(cache.sequences().begin(), cache.sequences().end()); },
          "Numbers of all sequences, ascending.")
      .def("length", &KVCache::length, nb::arg("sequence"), "Tokens of one sequence.")
      .def("add_sequence", &KVCache::add_sequence, "Adds an empty sequence and returns its number.")
      .def("fork", &KVCache::fork, nb::arg("sequence"),
          "Adds a sequence with the same tokens; returns its number. Pages are shared until one of them appends to the "
          "last.")
      .def("truncate", &KVCache::truncate, nb::arg("sequence"), nb::arg("length"),
          "Removes all but the first `length` tokens.")
      .def("free", &KVCache::free, nb::arg("sequence"), "Removes a sequence; its pages and its number are free again.")
      .def("clear", &KVCache::clear, "Every sequence becomes empty.")
      .def_prop_ro(
          "num_kv_heads", [](const KVCache& cache) { return cache.config().num_kv_heads; }, "Hkv.")
      .def_prop_ro(
          "head_dim", [](const KVCache& cache) { return cache.config().head_dim; }, "D.")
      .def_prop_ro(
          "v_head_dim",
          [](const KVCache& cache) {
            return cache.config().v_head_dim > 0 ? cache.config().v_head_dim : cache.config().head_dim;
          },
          "Dv.")
      .def_prop_ro("free_pages", &KVCache::free_pages,
          "How many pages no sequence holds; contiguous and ring: how many sequences there is room for.")
      .def_prop_ro("nbytes", &KVCache::bytes, "Bytes of keys, values and scales.");
}

}  // namespace qkv::python

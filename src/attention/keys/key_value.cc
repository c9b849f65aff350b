// KeyValue over the caller's memory: its checks, made once, and strides.
#include <algorithm>

#include "core/check.h"
#include "core/overlap.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {
namespace {

KeyValue::Parts parts_of(const char* function, const AnyView& k, const AnyView& v) {
  check<ShapeError>(*std::min_element(k.sizes.begin(), k.sizes.end()) >= 0 && k.size(3) >= 1 && v.size(3) >= 1,
      function, "head_dim must be at least 1 and sizes not negative: got k ", k, ", v ", v);
  check<ShapeError>(k.size(0) == v.size(0) && k.size(1) == v.size(1) && k.size(2) == v.size(2), function,
      "k and v must differ in head_dim only: got k ", k, ", v ", v);
  check<ShapeError>(
      k.stride(3) == 1 || k.size(3) == 1, function, "the last axis of k must have stride 1: got ", k.stride(3));
  check<ShapeError>(
      v.stride(3) == 1 || v.size(3) == 1, function, "the last axis of v must have stride 1: got ", v.stride(3));
  check_reach(function, "k", k);
  check_reach(function, "v", v);
  const auto matrix = [](const AnyView& x) {
    return KeyValue::Matrix{x.data, nullptr, x.stride(0), x.stride(1), x.stride(2), 0, 0};
  };
  KeyValue::Parts p;
  p.storage = k.type;
  p.k = matrix(k);
  p.v = matrix(v);
  p.num_kv_heads = k.size(1);
  p.head_dim = k.size(3);
  p.v_head_dim = v.size(3);
  p.page_size = std::max<Index>(1, k.size(2));
  p.given_pages = k.size(2) == 0 ? 0 : k.size(0);
  return p;
}

void set_lengths(const char* function, KeyValue::Parts& p, std::span<const Index> lengths, Index most) {
  check<ShapeError>(static_cast<Index>(lengths.size()) == p.batch, function,
      "there must be one length per sequence: got ", lengths.size(), " for batch ", p.batch);
  for (const Index length : lengths) {
    check<OptionError>(length >= 0 && length <= most, function, "a length must be in 0..", most, ": got ", length);
    p.max_length = std::max(p.max_length, length);
  }
  p.lengths = lengths.data();
}

}  // namespace

KeyValue KeyValue::contiguous_of(const AnyView& k, const AnyView& v, std::span<const Index> lengths) {
  constexpr const char* function = "KeyValue::contiguous";
  KeyValue::Parts p = parts_of(function, k, v);
  p.batch = k.size(0);
  if (lengths.empty()) {
    p.max_length = k.size(2);
  } else {
    set_lengths(function, p, lengths, k.size(2));
  }
  return KeyValue(p);
}

KeyValue KeyValue::paged_of(
    const AnyView& k, const AnyView& v, View<const Index, 2> table, std::span<const Index> lengths) {
  constexpr const char* function = "KeyValue::paged";
  KeyValue::Parts p = parts_of(function, k, v);
  check<ShapeError>(table.size(1) <= 1 || table.stride(1) == 1, function,
      "the last axis of the block table must have stride 1: got ", table.stride(1));
  check_given(function, {"the block table", table});
  p.batch = table.size(0);
  p.pages = table.data();
  p.pages_stride = table.stride(0);
  p.num_pages = std::max<Index>(1, table.size(1));
  set_lengths(function, p, lengths, table.size(1) * k.size(2));
  for (Index b = 0; b < p.batch; ++b) {
    const Index used = (lengths[static_cast<std::size_t>(b)] + p.page_size - 1) / p.page_size;
    for (Index n = 0; n < used; ++n) {
      check<OptionError>(table(b, n) >= 0 && table(b, n) < k.size(0), function,
          "an entry of the block table must be a page in 0..", k.size(0) - 1, ": got ", table(b, n), " at [", b, ", ",
          n, "]");
    }
  }
  return KeyValue(p);
}

}  // namespace qkv::inline v0

// Rows of a key/value cache: where a position lies, reading positions as floats, storing floats in the cache's type.
// Integers: x = scale * n with n in -127 .. 127, one scale a row, scale = max |x| / 127, so that an element is off by
// at most max |x| / 254 (and a rounding of float). A row with NaN or infinity becomes NaN throughout; one whose largest
// number is below 2^-100 becomes 0. Integers of 4 bits: kernels/keys.h.
#pragma once

#include "kernels/ahead.h"
#include "kernels/attention/scores.h"
#include "kernels/cache/params.h"
#include "kernels/decode/blocks.h"
#include "simd/int4.h"
#include "simd/widen.h"

namespace qkv {
namespace {

/// The first n numbers, up to a vector of them: most vectors are whole, and AVX2 takes a tail lane by lane.
template <class T> inline typename Simd<SumOf<T>>::V load_row_part(const T* p, Index n) {
  return n == Simd<SumOf<T>>::kLanes ? load_row(p) : load_row_tail(p, static_cast<int>(n));
}
template <class T> inline void store_row_part(T* p, typename Simd<Accumulator<T>>::V x, Index n) {
  const bool whole = n == Simd<Accumulator<T>>::kLanes;
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    whole ? store<T>(p, x) : store_tail<T>(p, x, static_cast<int>(n));
  } else {
    whole ? store_narrowed(p, x) : store_narrowed_tail(p, x, static_cast<int>(n));
  }
}

/// Calls body(key - begin, page, row of the page, count) for each contiguous run of held keys of [begin, end).
template <class Body> inline __attribute__((always_inline)) void for_key_runs(
    const HeadKeys& keys, Index begin, Index end, const Body& body) {
  const Index last = smaller(end, keys.held.end);
  bool pinned = begin < keys.pinned.end;
  Index j = larger(begin, pinned ? keys.pinned.begin : keys.held.begin);
  if (j >= last) return;
  Index row = pinned ? keys.page_rows + j : (j - keys.origin) % keys.page_rows;
  Index n = pinned ? 0 : (j - keys.origin) / keys.page_rows % keys.num_pages;
  while (j < last) {
    const Index count = smaller(last, pinned ? keys.pinned.end : j + keys.page_rows - row) - j;
    body(j - begin, keys.page(n), row, count);
    j += count;
    row = 0;
    n = n + 1 == keys.num_pages ? 0 : n + 1;
    if (pinned) {  // the rest of a ring, whose only page this is
      pinned = false;
      j = larger(j, keys.held.begin);
      row = j % keys.page_rows;
    }
  }
}

template <class S> inline const S* key_row(const KeyMatrix& matrix, Index page, Index row) {
  return static_cast<const S*>(matrix.rows) + page * matrix.page_stride + row * matrix.row_stride;
}
inline const float* key_scales(const KeyMatrix& matrix, Index page, Index row) {
  return matrix.scales + page * matrix.scale_page_stride + row;
}

/// Rows of T, the first one on.
template <class T> struct TypedRows {
  T* data;
  Index stride;
};

/// Whether all rows of K, and of V, lie a constant distance apart in type T.
template <class T> inline bool in_one_piece(const HeadKeys& keys) {
  return keys.type == stored_as<T>() && keys.num_pages == 1 && keys.pinned.end == 0 &&
         keys.held.end - keys.origin <= keys.page_rows;
}

/// Row j0 if keys [j0, j0 + nj) lie in one page as T; otherwise null.
template <class T> inline const T* chunk_in_place(const HeadKeys& keys, const KeyMatrix& matrix, Index j0, Index nj) {
  const Index first = j0 - keys.origin, last = smaller(j0 + nj, keys.held.end) - 1 - keys.origin;
  const bool whole = keys.type == stored_as<T>() && j0 >= keys.pinned.end && first >= 0 && first <= last &&
                     last >= keys.held.begin - keys.origin && first / keys.page_rows == last / keys.page_rows;
  return whole ? key_row<T>(matrix, keys.page(first / keys.page_rows % keys.num_pages), first % keys.page_rows)
               : nullptr;
}

/// Rows of keys [begin, end) as they are stored, as many runs as there is room for.
[[gnu::noinline, maybe_unused]] void add_keys(
    Ahead& ahead, const HeadKeys& keys, const KeyMatrix& matrix, Index begin, Index end, Index width) {
  const Index size = stored_bytes(keys.type);
  for_key_runs(keys, begin, end, [&](Index, Index page, Index row, Index count) {
    if (ahead.used == Ahead::kTensors) return;
    const auto* const first = static_cast<const std::byte*>(matrix.rows);
    add_bytes(ahead, first + (page * matrix.page_stride + row * matrix.row_stride) * size, matrix.row_stride * size,
        row_bytes(keys.type, width), count);
  });
}

/// Rows [first, first + count) as rows of T: in place, or copied to `copy`.
template <class T> inline TypedRows<const T> rows_as(const Rows& rows, Index first, Index count, Index width, T* copy) {
  if (rows.type == stored_as<T>()) return {reinterpret_cast<const T*>(rows.data) + first * rows.stride, rows.stride};
  if constexpr (std::is_same_v<T, float>) {
    const auto widen = [&](auto stored) {
      using S = decltype(stored);
      widen_rows(reinterpret_cast<const S*>(rows.data) + first * rows.stride, rows.stride, count, width, copy);
    };
    rows.type == StoredType::kBF16 ? widen(BFloat16{}) : widen(Float16{});
  }
  return {copy, width};
}

/// to[0..width) = from[0..width) * scale
template <class S> inline void widen_row(const S* from, SumOf<S> scale, Index width, SumOf<S>* to) {
  using Sum = SumOf<S>;
  constexpr Index n = Simd<Sum>::kLanes;
  const auto factor = splat<Sum>(scale);
  const auto scaled = [&](auto x) __attribute__((always_inline)) {
    if constexpr (std::is_same_v<S, std::int8_t>) return x * factor;
    return x;
  };
  Index d = 0;
  for (; d + n <= width; d += n) store<Sum>(to + d, scaled(load_row(from + d)));
  const int rest = static_cast<int>(width - d);
  if (rest > 0) store_tail<Sum>(to + d, scaled(load_row_tail(from + d, rest)), rest);
}

/// Calls body(column, numbers) for the vectors of a row, of which the last ends with zeros.
template <class S, class Body> inline void for_columns(const S* row, Index width, const Body& body) {
  constexpr Index n = Simd<SumOf<S>>::kLanes;
  Index d = 0;
  for (; d + n <= width; d += n) body(d, load_row(row + d));
  if (d < width) body(d, load_row_tail(row + d, static_cast<int>(width - d)));
}
template <class Body> inline void for_columns(const Int4* from, Index width, const Body& body) {
  constexpr int n = Simd<float>::kLanes;
  const auto* const row = reinterpret_cast<const std::byte*>(from);
  for_pieces(width, [&](auto bytes, Index d, Index to_scales, Index to_words) {
    const Four scales = load_scales<bytes>(row + to_scales);
    for (int at = 0; at < 32 * bytes && d + at < width; at += n) {
      const U32 words = load_words_of<bytes>(row + to_words + at % 16 * bytes);
      body(d + at, Int4Levels{}.times(scales[at / 32]).of(words >> static_cast<unsigned>(at / 16 * 4)));
    }
  });
}
inline void widen_row(const Int4* from, float, Index width, float* to) {
  constexpr Index n = Simd<float>::kLanes;
  for_columns(from, width, [&](Index d, F32 x) { store_row_part(to + d, x, smaller(n, width - d)); });
}

/// The numbers of a row of `width` from column d on that fill a vector, of the last ones with zeros.
template <class S> inline typename Simd<SumOf<S>>::V load_column(const S* row, Index d, Index width) {
  constexpr Index n = Simd<SumOf<S>>::kLanes;
  if constexpr (std::is_same_v<S, Int4>) {
    F32 found{};
    for_columns(row, width, [&](Index at, F32 x) { found = at == d ? x : found; });
    return found;
  } else {
    return load_row_part(row + d, smaller(n, width - d));
  }
}

/// The same rows as they are stored.
template <class S>
inline void copy_keys(const HeadKeys& keys, const KeyMatrix& matrix, Index begin, Index count, Index width, S* to) {
  const auto bytes = static_cast<std::size_t>(width) * sizeof(S);
  __builtin_memset(static_cast<void*>(to), 0, static_cast<std::size_t>(count) * bytes);
  for_key_runs(keys, begin, begin + count, [&](Index at, Index page, Index row, Index rows) {
    const S* from = key_row<S>(matrix, page, row);
    for (Index r = 0; r < rows; ++r)
      __builtin_memcpy(static_cast<void*>(to + (at + r) * width), from + r * matrix.row_stride, bytes);
  });
}

/// f(S{}) with the type S of stored numbers, one of those whose sums are of type Sum: of tensors; of keys that are read
/// where a list says; of all caches.
template <class Sum, class F> inline auto for_float_type(StoredType type, const F& f) {
  if constexpr (std::is_same_v<Sum, double>) {
    return f(double{});
  } else {
    switch (type) {
      case StoredType::kBF16: return f(BFloat16{});
      case StoredType::kF16: return f(Float16{});
      default: return f(float{});
    }
  }
}
template <class Sum, class F> inline auto for_listed_type(StoredType type, const F& f) {
  if constexpr (std::is_same_v<Sum, float>) {
    if (type == StoredType::kInt8) return f(std::int8_t{});
  }
  return for_float_type<Sum>(type, f);
}
template <class Sum, class F> inline auto for_stored_type(StoredType type, const F& f) {
  if constexpr (std::is_same_v<Sum, float>) {
    if (type == StoredType::kInt4) return f(Int4{});
  }
  return for_listed_type<Sum>(type, f);
}

template <class Sum> using WidenRow = void (*)(const std::byte* row, Sum scale, Index width, Sum* to);

/// Positions [begin, begin + count) as numbers of the type of sums, rows one after the other; 0 where none is. One
/// loop for every type of rows.
template <class Sum> [[gnu::noinline]] void read_keys(
    const HeadKeys& keys, const KeyMatrix& matrix, Index begin, Index count, Index width, Sum* to) {
  const auto widen = for_stored_type<Sum>(keys.type, [](auto stored) -> WidenRow<Sum> {
    return [](const std::byte* row, Sum scale, Index columns, Sum* numbers) {
      widen_row(reinterpret_cast<const decltype(stored)*>(row), scale, columns, numbers);
    };
  });
  const Index size = stored_bytes(keys.type);
  Index done = 0;
  const auto zero_up_to = [&](Index row) {
    for (Index e = done * width; e < row * width; ++e) to[e] = 0;
  };
  for_key_runs(keys, begin, begin + count, [&](Index at, Index page, Index row, Index rows) {
    zero_up_to(at);
    const auto* const from =
        static_cast<const std::byte*>(matrix.rows) + (page * matrix.page_stride + row * matrix.row_stride) * size;
    for (Index r = 0; r < rows; ++r) {
      const Sum scale = matrix.scales == nullptr ? Sum{1} : static_cast<Sum>(key_scales(matrix, page, row)[r]);
      widen(from + r * matrix.row_stride * size, scale, width, to + (at + r) * width);
    }
    done = at + rows;
  });
  zero_up_to(count);
}

/// Keys [begin, begin + count) of one matrix as rows of T: in place, or copied.
template <class T> [[gnu::noinline]] TypedRows<const T> keys_as(
    const HeadKeys& keys, const KeyMatrix& matrix, Index begin, Index count, Index width, T* copy) {
  if (const T* rows = chunk_in_place<T>(keys, matrix, begin, count); rows != nullptr) return {rows, matrix.row_stride};
  read_keys(keys, matrix, begin, count, width, copy);
  return {copy, width};
}

inline void read_any(const HeadKeys& keys, const KeyMatrix& matrix, Index begin, Index count, Index width, void* to) {
  if (keys.type == StoredType::kF64) return read_keys(keys, matrix, begin, count, width, static_cast<double*>(to));
  read_keys(keys, matrix, begin, count, width, static_cast<float*>(to));
}

/// Quantises one row to integers; returns its scale.
template <class T> inline float quantise_row(const T* from, Index width, std::int8_t* to) {
  constexpr Index n = Simd<float>::kLanes;
  constexpr float smallest = 0x1p-100F;
  const auto for_vectors = [&](const auto& body) {
    for (Index d = 0; d < width; d += n) {
      const int count = static_cast<int>(smaller(n, width - d));
      body(d, count, load_row_part(from + d, count));
    }
  };
  F32 largest{}, marks{};
  for_vectors([&](Index, int, F32 x) {
    largest = max_or_second(x < 0 ? -x : x, largest);
    marks = fma(x, F32{}, marks);
  });
  const float maximum = largest_lane<float>(largest);
  const bool nonfinite = bits_where<float>(marks != marks) != 0;
  const F32 factor = splat<float>(nonfinite || maximum < smallest ? 0.0F : 127.0F / maximum);
  for_vectors([&](Index d, int count, F32 x) {
    // rounds to nearest even; the low byte is the integer
    const F32 shifted = (nonfinite ? F32{} : x * factor) + 0x1.8p23F;
    const I8 bytes = __builtin_convertvector(reinterpret_cast<I32>(shifted), I8);
    __builtin_memcpy(to + d, &bytes, static_cast<std::size_t>(count));
  });
  return nonfinite ? kNan<float> : maximum < smallest ? 0.0F : maximum / 127.0F;
}

template <class T, class S> inline void store_row_as(const T* from, Index width, S* to) {
  constexpr Index n = Simd<SumOf<T>>::kLanes;
  for (Index d = 0; d < width; d += n) {
    const Index count = smaller(n, width - d);
    store_row_part(to + d, load_row_part(from + d, count), count);
  }
}

/// Quantises one row to integers of 4 bits, 32 numbers with the smallest scale of f16 that reaches the largest: none is
/// off by more than half a scale (and a rounding of float). Where one is NaN, infinite or beyond 7 * 65504, all 32
/// become NaN.
template <class T> inline void quantise_groups(const T* from, Index width, Int4* to) {
  constexpr int n = Simd<float>::kLanes;
  auto* const row = reinterpret_cast<std::byte*>(to);
  __builtin_memset(row, 0, static_cast<std::size_t>(row_bytes(StoredType::kInt4, width)));  // unused scales too
  for_pieces(width, [&](auto bytes, Index d, Index to_scales, Index to_words) {
    U32 words[kInt4Parts]{};
    for (int group = 0; group < bytes; ++group) {
      F32 x[2 * kInt4Parts], largest{}, marks{};
      for (int v = 0; v < 2 * kInt4Parts; ++v) {
        const Index first = d + 32 * group + v * n;
        x[v] = first < width ? load_row_part(from + first, smaller<Index>(n, width - first)) : F32{};
        largest = max_or_second(x[v] < 0 ? -x[v] : x[v], largest);
        marks = fma(x[v], F32{}, marks);
      }
      const bool nonfinite = bits_where<float>(marks != marks) != 0;
      const Int4Scale scale = int4_scale(nonfinite ? kNan<float> : largest_lane<float>(largest));
      __builtin_memcpy(row + to_scales + 2 * group, &scale.bits, sizeof scale.bits);
      for (int v = 0; v < 2 * kInt4Parts; ++v) {
        const F32 shifted = (nonfinite ? F32{} : x[v] * splat<float>(scale.inverse)) + 0x1.8p23F;  // to nearest even
        const auto place = static_cast<unsigned>(8 * group + v / kInt4Parts * 4);
        words[v % kInt4Parts] |= ((as_u32(shifted) + 8) & 15u) << place;
      }
    }
    for (int part = 0; part < kInt4Parts; ++part) store_words_of<bytes>(row + to_words + part * n * bytes, words[part]);
  });
}

template <class T, class S> inline void store_rows(const StoreRows& t) {
  const T* from = static_cast<const T*>(t.from);
  S* to = static_cast<S*>(t.to);
  for (Index r = 0; r < t.count; ++r) {
    if constexpr (std::is_same_v<S, std::int8_t>) {
      t.scales[r] = quantise_row(from + r * t.from_stride, t.width, to + r * t.to_stride);
    } else if constexpr (std::is_same_v<S, Int4>) {
      quantise_groups(from + r * t.from_stride, t.width, to + r * t.to_stride);
    } else {
      store_row_as(from + r * t.from_stride, t.width, to + r * t.to_stride);
    }
  }
}

inline void store_any(const StoreRows& t) {
  if (t.from_type == StoredType::kF64) {
    store_rows<double, double>(t);
    return;
  }
  for_float_type<float>(t.from_type, [&](auto from) {
    for_stored_type<float>(t.to_type, [&](auto to) { store_rows<decltype(from), decltype(to)>(t); });
  });
}

}  // namespace
}  // namespace qkv

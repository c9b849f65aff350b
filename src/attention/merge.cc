// Attention over disjoint sets of keys, merged by their lse. Parts are added in their order, element by element, each
// row by itself: results are bit-identical for any number of threads. lse = -inf (no key) is the identity. 16-bit outs
// are summed in float and rounded once. Nothing is allocated after the first call of a shape.
//   lse_out = log sum_n exp(lse_n);   w_n = exp(lse_n - lse_out);   out = sum_n w_n out_n
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/maths.h"
#include "core/overlap.h"
#include "core/threads/region.h"
#include "qkv/attention.h"

namespace qkv::inline v0 {
namespace {

template <class T> constexpr T kNoKeys = -std::numeric_limits<T>::infinity();

template <class T> void check_parts(const char* function, std::span<const View<const T, 4>> outs,
    std::span<const View<const Accumulator<T>, 3>> lses, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  check<ShapeError>(!outs.empty() && outs.size() == lses.size(), function,
      "there must be at least one part, and one lse per out: got ", outs.size(), " outs, ", lses.size(), " lses");
  for (std::size_t n = 0; n < outs.size(); ++n) {
    check<ShapeError>(outs[n].sizes() == out.sizes() && lses[n].sizes() == lse.sizes(), function, "part ", n,
        " must have the sizes of the result: got out ", outs[n], ", lse ", lses[n], " for out ", out, ", lse ", lse);
  }
  check<ShapeError>(out.size(0) == lse.size(0) && out.size(1) == lse.size(1) && out.size(2) == lse.size(2), function,
      "lse must be [B, H, Tq] of out [B, H, Tq, Dv]: got out ", out, ", lse ", lse);
}

constexpr Index kRowsPerMerge = 64;

/// Calls body(b, h, i, row - first) for rows [first, end).
template <class T, class Body> void for_rows(const View<T, 3>& lse, Index first, Index end, const Body& body) {
  const Index length = lse.size(2), heads = lse.size(1);
  Index i = first % length, h = first / length % heads, b = first / length / heads;
  for (Index row = first; row < end; ++row) {
    body(b, h, i, row - first);
    if (++i < length) continue;
    i = 0;
    if (++h == heads) h = 0, ++b;
  }
}

/// weights[r] = exp(parts[r] - of[r]), row by row, in vectors.
template <class T> void exponentials(const T* parts, const T* of, T* weights, Index rows) {
  for (Index r = 0; r < rows; ++r) weights[r] = static_cast<T>(maths::exp(static_cast<double>(parts[r] - of[r])));
}

/// total[r] = log sum_n exp(parts[n][r]), NaN where a part is; weights[n][r] = exp(parts[n][r] - total[r]), NaN where
/// both are -inf. From the maximum, not from total: its rounding would be in all weights of a row, which would no
/// longer add up to 1. All but total: [n][kRowsPerMerge].
template <class T> void weigh(const T* parts, T* weights, T* total, Index count, Index rows) {
  T maximum[kRowsPerMerge], sum[kRowsPerMerge] = {};
  std::fill_n(maximum, rows, kNoKeys<T>);
  for (Index n = 0; n < count; ++n) {
    for (Index r = 0; r < rows; ++r) maximum[r] = std::max(maximum[r], parts[n * kRowsPerMerge + r]);
  }
  for (Index r = 0; r < rows; ++r) maximum[r] = maximum[r] == kNoKeys<T> ? T{0} : maximum[r];
  for (Index n = 0; n < count; ++n) {
    exponentials(parts + n * kRowsPerMerge, maximum, weights + n * kRowsPerMerge, rows);
    for (Index r = 0; r < rows; ++r) sum[r] += weights[n * kRowsPerMerge + r];
  }
  for (Index r = 0; r < rows; ++r) total[r] = maximum[r] + static_cast<T>(maths::log(static_cast<double>(sum[r])));
  for (Index n = 0; n < count; ++n) {
    for (Index r = 0; r < rows; ++r) weights[n * kRowsPerMerge + r] /= sum[r];
  }
}

/// An element as it is summed.
template <class T> Accumulator<T> number(T x) { return static_cast<Accumulator<T>>(x); }

}  // namespace

namespace detail {

template <class T> void merge(std::span<const View<const T, 4>> outs,
    std::span<const View<const Accumulator<T>, 3>> lses, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse,
    Context& context) {
  using Sum = Accumulator<T>;
  constexpr const char* function = "merge_attention";
  check_parts<T>(function, outs, lses, out, lse);
  const NamedBox outputs[] = {{"out", out}, {"lse", lse}};
  check_outputs(function, outputs, {});
  for (std::size_t n = 0; n < outs.size(); ++n) {
    for (const NamedBox& output : outputs) {
      check_apart(function, output, {"outs", outs[n]});
      check_apart(function, output, {"lses", lses[n]});
    }
  }
  const auto count = static_cast<Index>(outs.size()), width = out.size(3), rows = lse.count();
  const auto merge_rows = [&](Index item, std::byte* own) {
    const Index first = item * kRowsPerMerge, end = std::min(rows, first + kRowsPerMerge);
    Sum *const row = reinterpret_cast<Sum*>(own), *const parts = row + width,
               *const weights = parts + count * kRowsPerMerge, *const total = weights + count * kRowsPerMerge;
    for (Index n = 0; n < count; ++n) {
      const auto& part = lses[static_cast<std::size_t>(n)];
      for_rows(
          lse, first, end, [&](Index b, Index h, Index i, Index r) { parts[n * kRowsPerMerge + r] = part(b, h, i); });
    }
    weigh(parts, weights, total, count, end - first);
    for_rows(lse, first, end, [&](Index b, Index h, Index i, Index r) {
      lse(b, h, i) = total[r];
      std::fill_n(row, width, Sum{0});
      for (Index n = 0; n < count; ++n) {
        if (parts[n * kRowsPerMerge + r] == kNoKeys<Sum>) continue;
        const Sum w = weights[n * kRowsPerMerge + r];
        const auto& part = outs[static_cast<std::size_t>(n)];
        for (Index d = 0; d < width; ++d) row[d] += w * number(part(b, h, i, d));
      }
      for (Index d = 0; d < width; ++d) out(b, h, i, d) = static_cast<T>(row[d]);
    });
  };
  const double flops = kElementFlops * static_cast<double>(rows) * static_cast<double>((count + 1) * width);
  const auto own_numbers = static_cast<std::size_t>(width + (2 * count + 1) * kRowsPerMerge);
  run_items(context, {(rows + kRowsPerMerge - 1) / kRowsPerMerge, flops, own_numbers * sizeof(Sum)}, merge_rows);
}

#define QKV_INSTANTIATE(T)                                                                                       \
  template QKV_API void merge(std::span<const View<const T, 4>>, std::span<const View<const Accumulator<T>, 3>>, \
      const View<T, 4>&, const View<Accumulator<T>, 3>&, Context&);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
QKV_INSTANTIATE(BFloat16)
QKV_INSTANTIATE(Float16)
#undef QKV_INSTANTIATE

}  // namespace detail
}  // namespace qkv::inline v0

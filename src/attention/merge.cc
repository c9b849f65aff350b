// Attention over disjoint sets of keys, merged by their lse. Parts are added in their order, element by element, each
// row by itself: results are bit-identical for any number of threads. lse = -inf (no key) is the identity. 16-bit outs
// are summed in float and rounded once. Nothing is allocated after the first call of a shape.
//   lse_out = log sum_n exp(lse_n);   w_n = exp(lse_n - lse_out);   out = sum_n w_n out_n
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
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

/// Calls body(b, h, i, scratch of a worker) for every row; each row has `elements` numbers to process.
template <class T, class Body>
void for_rows(const View<T, 3>& lse, Index elements, std::size_t worker_bytes, Context& context, const Body& body) {
  const Index length = lse.size(2), heads = lse.size(1), rows = lse.count();
  const double flops = kElementFlops * static_cast<double>(rows) * static_cast<double>(elements);
  run_items(
      context, {(rows + kRowsPerMerge - 1) / kRowsPerMerge, flops, worker_bytes}, [&](Index item, std::byte* own) {
        const Index first = item * kRowsPerMerge, end = std::min(rows, first + kRowsPerMerge);
        Index i = first % length, h = first / length % heads, b = first / length / heads;
        for (Index row = first; row < end; ++row) {
          body(b, h, i, own);
          if (++i < length) continue;
          i = 0;
          if (++h == heads) h = 0, ++b;
        }
      });
}

template <class T> T part_weight(T part, T total) { return part == kNoKeys<T> ? T{0} : std::exp(part - total); }

template <class T> T log_sum_exp(std::span<const View<const T, 3>> lses, Index b, Index h, Index i) {
  T maximum = kNoKeys<T>;
  for (const auto& lse : lses) {
    const T part = lse(b, h, i);
    if (std::isnan(part)) return part;  // std::max would drop it, and the row would count as empty
    maximum = std::max(maximum, part);
  }
  if (maximum == kNoKeys<T>) return maximum;
  T sum = 0;
  for (const auto& lse : lses) sum += part_weight(lse(b, h, i), maximum);
  return maximum + std::log(sum);
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
  const auto row_bytes = static_cast<std::size_t>(out.size(3)) * sizeof(Sum);
  const auto merge_row = [&](Index b, Index h, Index i, std::byte* own) {
    Sum* const row = reinterpret_cast<Sum*>(own);
    const Sum total = log_sum_exp<Sum>(lses, b, h, i);
    lse(b, h, i) = total;
    std::fill_n(row, out.size(3), Sum{0});
    for (std::size_t n = 0; n < outs.size(); ++n) {
      if (lses[n](b, h, i) == kNoKeys<Sum>) continue;
      const Sum w = part_weight(lses[n](b, h, i), total);
      for (Index d = 0; d < out.size(3); ++d) row[d] += w * number(outs[n](b, h, i, d));
    }
    for (Index d = 0; d < out.size(3); ++d) out(b, h, i, d) = static_cast<T>(row[d]);
  };
  for_rows(lse, static_cast<Index>(outs.size() + 1) * out.size(3), row_bytes, context, merge_row);
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

// KVCache::error_bound: what rounding to the stored type may change. All of it follows from the numbers as they are
// read.
#include <algorithm>
#include <cmath>

#include "attention/keys/key_source.h"
#include "core/check.h"
#include "core/maths.h"

namespace qkv::inline v0 {
namespace {

/// The most that a number is off by, given the largest magnitude, as stored, of those that share its scale: half a unit
/// of integers, whose ties are moved by roundings of 127 / largest, or of 16-bit floats. Units that cannot be as small
/// as that add the second part.
double error_of(CacheStorage storage, double largest) {
  int exponent = 0;
  const double power = largest == 0 ? 0 : largest / std::frexp(largest, &exponent);  // of two, above it
  switch (storage) {
    case CacheStorage::kBF16: return power * 0x1p-9 + 0x1p-134;
    case CacheStorage::kF16: return power * 0x1p-12 + 0x1p-25;
    case CacheStorage::kInt8: return largest / 254 * (1 + 0x1p-13) + 0x1p-100;
    case CacheStorage::kInt4: return largest / 14 * (1 + 0x1p-10) + 0x1p-24;
    default: return 0;
  }
}

double number(StoredType type, const std::byte* at) {
  switch (type) {
    case StoredType::kF64: return *reinterpret_cast<const double*>(at);
    case StoredType::kBF16: return static_cast<float>(*reinterpret_cast<const BFloat16*>(at));
    case StoredType::kF16: return static_cast<float>(*reinterpret_cast<const Float16*>(at));
    default: return *reinterpret_cast<const float*>(at);
  }
}

/// The larger; NaN if one is.
double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double largest_of(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double x : numbers) largest = worse(x, largest);
  return largest;
}

/// errors[d] = the most that number d of any row x[g, j] may be off by, or more if it was.
void add_errors(CacheStorage storage, const View<float, 3>& x, Index g, std::vector<double>& errors) {
  const Index width = x.size(2), shared = storage == CacheStorage::kInt4 ? 32 : width;
  for (Index j = 0; j < x.size(1); ++j) {
    for (Index begin = 0; begin < width; begin += shared) {
      const Index end = std::min(width, begin + shared);
      double largest = 0;
      for (Index d = begin; d < end; ++d) largest = worse(std::abs(double{x(g, j, d)}), largest);
      const double error = error_of(storage, largest);
      for (Index d = begin; d < end; ++d) {
        double& most = errors[static_cast<std::size_t>(d)];
        most = worse(error, most);
      }
    }
  }
}

/// Of all that one head of a sequence holds.
struct HeadErrors {
  std::vector<double> k, v;             // by column
  std::vector<double> v_least, v_most;  // values by column, 0 among them
  double v_range() const {
    double range = 0;
    for (std::size_t d = 0; d < v.size(); ++d) range = worse(v_most[d] - v_least[d], range);
    return range;
  }
};

std::vector<HeadErrors> errors_of(const KVCache& cache, Index sequence) {
  const KVCacheConfig& c = cache.config();
  const std::vector<double> k_zeros(static_cast<std::size_t>(c.head_dim)),
      v_zeros(static_cast<std::size_t>(c.v_head_dim));
  std::vector heads(static_cast<std::size_t>(c.num_kv_heads), HeadErrors{k_zeros, v_zeros, v_zeros, v_zeros});
  if (c.storage == CacheStorage::kF32 || c.storage == CacheStorage::kF64) return heads;  // nothing is rounded
  constexpr Index piece = 256;
  Tensor<float> k({c.num_kv_heads, piece, c.head_dim}), v({c.num_kv_heads, piece, c.v_head_dim});
  const Index length = cache.length(sequence), pinned = std::min(c.first, length);
  const Index held = std::max(pinned, first_held(cache.key_value({&sequence, 1}), 0));
  for (Index j = pinned > 0 ? 0 : held; j < length;) {
    const Index end = std::min(j + piece, j < pinned ? pinned : length);
    const View<float, 3> keys = k.view<3>().sliced(1, 0, end - j), values = v.view<3>().sliced(1, 0, end - j);
    cache.read(sequence, j, keys, values);
    for (Index g = 0; g < c.num_kv_heads; ++g) {
      HeadErrors& head = heads[static_cast<std::size_t>(g)];
      add_errors(c.storage, keys, g, head.k);
      add_errors(c.storage, values, g, head.v);
      for (Index n = 0; n < end - j; ++n) {
        for (Index d = 0; d < c.v_head_dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          head.v_least[at] = -worse(-double{values(g, n, d)}, -head.v_least[at]);
          head.v_most[at] = worse(double{values(g, n, d)}, head.v_most[at]);
        }
      }
    }
    j = end == pinned ? held : end;
  }
  return heads;
}

}  // namespace

KVCache::ErrorBound KVCache::error_bound() const {
  ErrorBound most;
  for (const Index s : sequences()) {
    for (const HeadErrors& head : errors_of(*this, s)) {
      most.k = worse(largest_of(head.k), most.k);
      most.v = worse(largest_of(head.v), most.v);
    }
  }
  return most;
}

void KVCache::bound_rows(const AnyView& q, const View<double, 3>& bound, std::optional<double> scale) const {
  constexpr const char* function = "KVCache::error_bound";
  const KVCacheConfig& c = config();
  const auto batch = static_cast<Index>(sequences().size());
  check<ShapeError>(q.size(0) == batch && q.size(3) == c.head_dim && q.size(1) % c.num_kv_heads == 0, function,
      "q must be [B, H, Tq, D] of ", batch, " sequences and D ", c.head_dim, ", H a multiple of ", c.num_kv_heads,
      ": got ", q);
  check<ShapeError>(bound.sizes() == std::array{q.size(0), q.size(1), q.size(2)}, function,
      "bound must be [B, H, Tq] as q is: got ", AnyView(bound), " for q ", q);
  const double factor = std::abs(scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim))));
  for (Index b = 0; b < batch; ++b) {
    const std::vector<HeadErrors> heads = errors_of(*this, sequences()[static_cast<std::size_t>(b)]);
    for (Index h = 0; h < q.size(1); ++h) {
      const HeadErrors& head = heads[static_cast<std::size_t>(h / (q.size(1) / c.num_kv_heads))];
      const double range = head.v_range(), v_error = largest_of(head.v);
      for (Index i = 0; i < q.size(2); ++i) {
        double delta = 0;
        for (Index d = 0; d < c.head_dim; ++d) {
          delta += std::abs(number(q.type, q.at(b, h, i) + d * q.stride(3) * q.element_bytes())) *
                   head.k[static_cast<std::size_t>(d)];
        }
        const double shrunk = maths::exp(-factor * delta);  // tanh(x / 2) = (1 - exp(-x)) / (1 + exp(-x))
        bound(b, h, i) = (delta == 0 ? 0 : (1 - shrunk) / (1 + shrunk) * range) + v_error;
      }
    }
  }
}

}  // namespace qkv::inline v0

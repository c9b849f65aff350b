// PositionBias, and its numbers spread out as kernels read them: one vector of distances per head.
#include "attention/scores/position_bias.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/maths.h"
#include "core/threads/context_impl.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

std::vector<double> alibi_slopes(Index num_heads) {
  check<OptionError>(num_heads >= 0, "alibi_slopes", "num_heads must not be negative: got ", num_heads);
  Index power = 1;
  while (power * 2 <= num_heads) power *= 2;
  std::vector<double> slopes;
  const auto add = [&slopes](Index h, Index of) {
    slopes.push_back(maths::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(of)));
  };
  for (Index h = 0; h < std::min(power, num_heads); ++h) add(h, power);
  for (Index h = power; h < num_heads; ++h) add(2 * (h - power), 2 * power);
  return slopes;
}

namespace {

Index one_sided(const T5Buckets& buckets) {
  return buckets.bidirectional ? buckets.num_buckets / 2 : buckets.num_buckets;
}

void check_buckets(const T5Buckets& buckets, const char* function) {
  check<OptionError>(one_sided(buckets) >= 2, function, "num_buckets must be at least 2, or 4 when bidirectional: got ",
      buckets.num_buckets);
  check<OptionError>(buckets.max_distance > one_sided(buckets) / 2, function, "max_distance must be more than ",
      one_sided(buckets) / 2, ", the distances that have a bucket of their own: got ", buckets.max_distance);
}

/// t5_bucket for buckets that are already checked.
Index bucket_of(Index distance, const T5Buckets& buckets) {
  distance = std::max(distance, -std::numeric_limits<Index>::max());  // whose negative is a number
  const Index side = one_sided(buckets), exact = side / 2;
  const Index first = buckets.bidirectional && distance > 0 ? side : 0;
  const Index away = buckets.bidirectional ? std::abs(distance) : std::max<Index>(-distance, 0);
  if (away < exact) return first + away;
  // Computed in float and in this order, so that bucket bounds are those of Hugging Face.
  const float ratio = static_cast<float>(away) / static_cast<float>(exact);
  const auto whole =
      static_cast<float>(maths::log(static_cast<double>(buckets.max_distance) / static_cast<double>(exact)));
  const float beyond =
      static_cast<float>(maths::log(static_cast<double>(ratio))) / whole * static_cast<float>(side - exact);
  return first + std::min(exact + static_cast<Index>(beyond), side - 1);
}

}  // namespace

Index t5_bucket(Index distance, const T5Buckets& buckets) {
  check_buckets(buckets, "t5_bucket");
  return bucket_of(distance, buckets);
}

PositionBias PositionBias::alibi(std::vector<double> slopes, Align align) {
  PositionBias bias(Kind::kAlibi, align);
  for (const double slope : slopes) {
    check<OptionError>(std::isfinite(slope), "PositionBias::alibi", "slopes must be finite: got ", slope);
  }
  bias.slopes_ = std::make_shared<const std::vector<double>>(std::move(slopes));
  return bias;
}

PositionBias PositionBias::t5(SumsView<2> table, T5Buckets buckets, Align align) {
  PositionBias bias(Kind::kT5, align, table);
  bias.buckets_ = buckets;
  check_buckets(buckets, "PositionBias::t5");
  check<ShapeError>(bias.rows() == buckets.num_buckets, "PositionBias::t5", "table must be [num_buckets, H]: got ",
      bias.rows(), " rows for ", buckets.num_buckets, " buckets");
  return bias;
}

PositionBias PositionBias::relative(SumsView<2> table, Align align) {
  PositionBias bias(Kind::kRelative, align, table);
  check<ShapeError>(
      bias.rows() % 2 == 1, "PositionBias::relative", "table must be [2 R + 1, H]: got ", bias.rows(), " rows");
  return bias;
}

Index PositionBias::rows() const {
  if (kind_ == Kind::kNone) return 0;
  return is_alibi() ? 1 : std::max(table_.f32.size(0), table_.f64.size(0));
}

Index PositionBias::heads() const {
  if (kind_ == Kind::kNone) return 0;
  return is_alibi() ? static_cast<Index>(slopes_->size()) : std::max(table_.f32.size(1), table_.f64.size(1));
}

Index PositionBias::row(Index distance) const {
  switch (kind_) {
    case Kind::kT5: return bucket_of(distance, buckets_);
    case Kind::kRelative: {
      const Index reach = rows() / 2;
      return reach + std::clamp(distance, -reach, reach);
    }
    default: return 0;
  }
}

namespace {

/// The vectors [H, distances], of which distance 0 is number `before`.
template <class Sum> void spread_values(const PositionBias& bias, const View<const Sum, 2>& table,
    const std::int32_t* rows, Index before, Index count, Sum* values) {
  for (Index h = 0; h < bias.heads(); ++h, values += count) {
    for (Index n = 0; n < count; ++n) {
      if (!bias.is_alibi()) {
        values[n] = table(rows[n], h);
        continue;
      }
      constexpr auto most = static_cast<double>(std::numeric_limits<Sum>::max());  // -inf would hide the pair
      const double slope = bias.slopes()[static_cast<std::size_t>(h)];
      values[n] = static_cast<Sum>(std::clamp(slope * bias.factor(n - before), -most, most));
    }
  }
}

}  // namespace

std::size_t PositionVectors::bytes(const PositionBias& bias, StoredType elements, Index q_len, Index kv_len) {
  if (bias.is_none() || q_len == 0 || kv_len == 0) return 0;
  const Index distances = q_len + kv_len - 1, sum_bytes = elements == StoredType::kF64 ? 8 : 4;
  return line_bytes<std::int32_t>(distances) + static_cast<std::size_t>(distances * bias.heads() * sum_bytes);
}

ScratchLease PositionVectors::spread(
    const PositionBias& bias, StoredType elements, Index q_len, Index kv_len, const Context& context) {
  const std::size_t size = bytes(bias, elements, q_len, kv_len);
  if (size == 0) return {};
  const bool from_end = bias.align() == Align::kBottomRight;
  const Index before = from_end ? kv_len - 1 : q_len - 1, after = from_end ? q_len - 1 : kv_len - 1;
  const Index count = before + after + 1;
  ScratchLease memory(context.impl().scratch, size);
  auto* const rows_of = memory.as<std::int32_t>();
  for (Index n = 0; n < count; ++n) rows_of[n] = static_cast<std::int32_t>(bias.row(n - before));
  const auto spread_as = [&](const auto& table, auto* values) {
    spread_values(bias, table, rows_of, before, count, values);
    zero = values + before;
  };
  std::byte* const values = memory.data() + line_bytes<std::int32_t>(count);
  elements == StoredType::kF64 ? spread_as(bias.table().f64, reinterpret_cast<double*>(values))
                               : spread_as(bias.table().f32, reinterpret_cast<float*>(values));
  rows = rows_of + before;
  head_stride = count;
  return memory;
}

}  // namespace qkv::inline v0

// PositionBias, and its numbers spread out as kernels read them: one vector of distances per head.
#include "attention/scores/position_bias.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/threads/context_impl.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

std::vector<double> alibi_slopes(Index num_heads) {
  check<OptionError>(num_heads >= 0, "alibi_slopes", "num_heads must not be negative: got ", num_heads);
  Index power = 1;
  while (power * 2 <= num_heads) power *= 2;
  std::vector<double> slopes;
  const auto add = [&slopes](Index h, Index of) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(of)));
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
  const Index side = one_sided(buckets), exact = side / 2;
  const Index first = buckets.bidirectional && distance > 0 ? side : 0;
  const Index away = buckets.bidirectional ? std::abs(distance) : std::max<Index>(-distance, 0);
  if (away < exact) return first + away;
  // Computed in float and in this order, so that bucket bounds are those of Hugging Face.
  const float ratio = static_cast<float>(away) / static_cast<float>(exact);
  const auto whole =
      static_cast<float>(std::log(static_cast<double>(buckets.max_distance) / static_cast<double>(exact)));
  const float beyond = std::log(ratio) / whole * static_cast<float>(side - exact);
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
  const PositionBias bias(Kind::kRelative, align, table);
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

template <class Sum>
void check_position_bias(const PositionBias& bias, Index num_heads, Index q_len, Index kv_len, const char* function) {
  if (bias.is_none()) return;
  const bool other_type = std::is_same_v<Sum, float> ? !bias.table().f64.is_null() : !bias.table().f32.is_null();
  check<OptionError>(!other_type, function,
      "the table of position_bias must have the element type of q, or float where that has 16 bits");
  check<ShapeError>(bias.heads() == num_heads, function, "position_bias must have as many heads as q: got ",
      bias.heads(), " for ", num_heads);
  check<OptionError>(bias.align() != Align::kSquare || q_len == kv_len, function,
      "position_bias needs Align::kBottomRight (the last query is at the last key) or Align::kTopLeft (the first at "
      "the first) when Tq differs from Tk: got Tq ",
      q_len, ", Tk ", kv_len);
}

template <class Sum> std::size_t PositionVectors<Sum>::bytes(const PositionBias& bias, Index q_len, Index kv_len) {
  if (bias.is_none() || q_len == 0 || kv_len == 0) return 0;
  const Index distances = q_len + kv_len - 1;
  return line_bytes<std::int32_t>(distances) + static_cast<std::size_t>(distances * bias.heads()) * sizeof(Sum);
}

template <class Sum>
ScratchLease PositionVectors<Sum>::spread(const PositionBias& bias, Index q_len, Index kv_len, const Context& context) {
  if (bytes(bias, q_len, kv_len) == 0) return {};
  const bool from_end = bias.align() == Align::kBottomRight;
  const Index before = from_end ? kv_len - 1 : q_len - 1, after = from_end ? q_len - 1 : kv_len - 1;
  const Index count = before + after + 1, heads = bias.heads();
  head_stride = count;
  ScratchLease memory(context.impl().scratch, bytes(bias, q_len, kv_len));
  auto* const rows_of = memory.template as<std::int32_t>();
  auto* const values = reinterpret_cast<Sum*>(memory.data() + line_bytes<std::int32_t>(count));
  for (Index n = 0; n < count; ++n) rows_of[n] = static_cast<std::int32_t>(bias.row(n - before));
  for (Index h = 0; h < heads; ++h) {
    Sum* const of_head = values + h * count;
    if (bias.is_alibi()) {
      const double slope = bias.slopes()[static_cast<std::size_t>(h)];
      for (Index n = 0; n < count; ++n) of_head[n] = static_cast<Sum>(slope * bias.factor(n - before));
      continue;
    }
    for (Index n = 0; n < count; ++n) {
      if constexpr (std::is_same_v<Sum, float>) {
        of_head[n] = bias.table().f32(rows_of[n], h);
      } else {
        of_head[n] = bias.table().f64(rows_of[n], h);
      }
    }
  }
  zero = values + before;
  rows = rows_of + before;
  return memory;
}

template void check_position_bias<float>(const PositionBias&, Index, Index, Index, const char*);
template void check_position_bias<double>(const PositionBias&, Index, Index, Index, const char*);
template struct PositionVectors<float>;
template struct PositionVectors<double>;

}  // namespace qkv::inline v0

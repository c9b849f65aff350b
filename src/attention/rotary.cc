#include "qkv/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/call/tensor_checks.h"
#include "core/maths.h"
#include "core/threads/region.h"

namespace qkv::inline v0 {
namespace {

void check_options(Index head_dim, const RotaryOptions& o, Index rotary_dim) {
  constexpr const char* function = "Rotary";
  check<OptionError>(rotary_dim >= 2 && rotary_dim % 2 == 0 && rotary_dim <= head_dim, function,
      "rotary_dim must be even, at least 2 and at most head_dim: got ", rotary_dim, " for ", head_dim);
  check<OptionError>(o.base > 0 && o.base != 1 && std::isfinite(o.base), function,
      "base must be a number above 0, and not 1: got ", o.base);
  check<OptionError>(o.factor >= 1 && std::isfinite(o.factor), function, "factor must be at least 1: got ", o.factor);
  check<OptionError>(
      o.factor == 1 || o.scaling != RotaryScaling::kNone, function, "factor needs a scaling: got ", o.factor);
  check<OptionError>(!o.attention_factor || o.scaling == RotaryScaling::kYarn, function,
      "attention_factor is of kYarn: got ", o.attention_factor.value_or(1));
  check<OptionError>(o.scaling != RotaryScaling::kNtk || rotary_dim > 2, function,
      "NTK scaling needs a rotary_dim above 2: got ", rotary_dim);
  const bool by_context = o.scaling == RotaryScaling::kYarn || o.scaling == RotaryScaling::kLlama3;
  check<OptionError>(!by_context || o.original_context >= 1, function,
      "this scaling needs original_context, the length in training: got ", o.original_context);
  check<OptionError>(o.beta_fast >= o.beta_slow && o.beta_slow > 0 && std::isfinite(o.beta_fast), function,
      "beta_fast must be at least beta_slow, and beta_slow above 0: got ", o.beta_fast, " and ", o.beta_slow);
  check<OptionError>(o.high_frequency > o.low_frequency && o.low_frequency > 0 && std::isfinite(o.high_frequency),
      function, "high_frequency must be above low_frequency, and low_frequency above 0: got ", o.high_frequency,
      " and ", o.low_frequency);
  check<OptionError>(std::isfinite(o.attention_factor.value_or(1)), function, "attention_factor must be finite: got ",
      o.attention_factor.value_or(1));
}

/// The pair that turns `turns` times within the original context, as a real number of a pair.
double pair_of_turns(double turns, double rotary_dim, const RotaryOptions& o) {
  const double length = static_cast<double>(o.original_context);
  return rotary_dim * maths::log(length / (turns * 2 * std::numbers::pi)) / (2 * maths::log(o.base));
}

/// YaRN: the share of f / factor in pair i, 0 for fast pairs and 1 for slow ones. The ramp's ends are whole pairs.
double yarn_share(double pair, double rotary_dim, const RotaryOptions& o) {
  const double low = std::max(std::floor(pair_of_turns(o.beta_fast, rotary_dim, o)), 0.0);
  double high = std::min(std::ceil(pair_of_turns(o.beta_slow, rotary_dim, o)), rotary_dim - 1);
  if (low == high) high += 0.001;
  return std::clamp((pair - low) / (high - low), 0.0, 1.0);
}

/// Llama 3: the same share, decided by how often the pair turns within the original context.
double llama3_share(double frequency, const RotaryOptions& o) {
  const double turns = static_cast<double>(o.original_context) * frequency / (2 * std::numbers::pi);
  return 1 - std::clamp((turns - o.low_frequency) / (o.high_frequency - o.low_frequency), 0.0, 1.0);
}

double frequency_of(Index pair, Index rotary_dim, const RotaryOptions& o) {
  const auto width = static_cast<double>(rotary_dim), number = static_cast<double>(pair);
  const double base = o.scaling == RotaryScaling::kNtk ? o.base * maths::pow(o.factor, width / (width - 2)) : o.base;
  const double frequency = maths::pow(base, -2 * number / width);
  double share = 0;  // of the frequency divided by factor
  if (o.scaling == RotaryScaling::kLinear) share = 1;
  if (o.scaling == RotaryScaling::kYarn) share = yarn_share(number, width, o);
  if (o.scaling == RotaryScaling::kLlama3) share = llama3_share(frequency, o);
  return frequency / o.factor * share + frequency * (1 - share);
}

Index position_of(const RotaryPositions& positions, Index b, Index t) {
  if (!positions.ids.is_null()) return positions.ids(positions.ids.size(0) == 1 ? 0 : b, t);
  return (positions.offsets.empty() ? positions.offset : positions.offsets[static_cast<std::size_t>(b)]) + t;
}

/// Cosines, then sines of the angles at * frequencies.
void fill_angles(double at, const std::vector<double>& frequencies, double* cosines) {
  const std::size_t pairs = frequencies.size();
  const auto fill = [=, frequency = frequencies.data()](const auto& sine_cosine) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const maths::SineCosine is = sine_cosine(at * frequency[i]);
      cosines[i] = is.cosine;
      cosines[pairs + i] = is.sine;
    }
  };
  fill([](double angle) { return maths::sine_cosine_below(angle); });
  if (std::abs(at) * *std::max_element(frequencies.begin(), frequencies.end()) >= 0x1p32) fill(maths::sine_cosine);
}

/// Rotates one row; cosines and sines [R / 2] carry the attention factor. y may be x.
template <class T, class Sum>
void turn_row(const T* x, T* y, const Sum* cosines, const Sum* sines, Index pairs, RotaryLayout layout) {
  const Index step = layout == RotaryLayout::kInterleaved ? 2 : 1,
              apart = layout == RotaryLayout::kInterleaved ? 1 : pairs;
  for (Index i = 0; i < pairs; ++i) {
    const Sum first = static_cast<Sum>(x[i * step]), second = static_cast<Sum>(x[i * step + apart]);
    y[i * step] = static_cast<T>(first * cosines[i] - second * sines[i]);
    y[i * step + apart] = static_cast<T>(second * cosines[i] + first * sines[i]);
  }
}

void check_views(
    const char* function, Index head_dim, const AnyView& x, const AnyView& y, const RotaryPositions& positions) {
  const Index batch = x.size(0), length = x.size(2);
  check<ShapeError>(x.size(3) == head_dim, function, "the last axis must be head_dim ", head_dim, ": got ", x);
  check_sizes(function, "x", x, batch, x.size(1), length, head_dim);
  check_sizes(function, "y", y, batch, x.size(1), length, head_dim);
  const auto& ids = positions.ids;
  check<ShapeError>(ids.is_null() || ((ids.size(0) == batch || ids.size(0) == 1) && ids.size(1) == length), function,
      "ids must be [B|1, T]: got ", ids, " for ", x);
  check<ShapeError>(positions.offsets.empty() || static_cast<Index>(positions.offsets.size()) == batch, function,
      "offsets must have one number per sequence: got ", positions.offsets.size(), " for ", x);
  const bool in_place = y.data == x.data && y.strides == x.strides;
  const NamedBox outputs[] = {{"y", y}}, inputs[] = {{"x", x}};
  check_outputs(function, outputs, in_place ? std::span<const NamedBox>() : std::span<const NamedBox>(inputs));
}

/// Throws OptionError unless the tables have every token's position.
void check_positions(const char* function, const RotaryPositions& positions, Index batch, Index length, Index rows) {
  for (Index b = 0; b < batch; ++b) {
    for (Index t = 0; t < length; ++t) {
      const Index position = position_of(positions, b, t);
      check<OptionError>(position >= 0 && position < rows, function, "positions must be in the tables' [0, ", rows,
          "): got ", position, " for token ", t, " of sequence ", b);
    }
  }
}

/// [positions, 2, R / 2]. Throws ShapeError, OptionError.
template <class T>
std::vector<double> tables_of(Index head_dim, const View<const T, 2>& cosines, const View<const T, 2>& sines) {
  check<ShapeError>(cosines.sizes() == sines.sizes() && cosines.size(0) >= 0 && cosines.size(1) >= 1, "Rotary",
      "cosines and sines must be [positions, R / 2], both: got ", cosines, " and ", sines);
  check<OptionError>(2 * cosines.size(1) <= head_dim, "Rotary", "rotary_dim must be at most head_dim: got ",
      2 * cosines.size(1), " for ", head_dim);
  std::vector<double> tables;
  tables.reserve(static_cast<std::size_t>(2 * cosines.count()));
  for (Index position = 0; position < cosines.size(0); ++position) {
    for (const View<const T, 2>* table : {&cosines, &sines}) {
      for (Index i = 0; i < table->size(1); ++i) tables.push_back(static_cast<double>((*table)(position, i)));
    }
  }
  return tables;
}

}  // namespace

Rotary::Rotary(Index head_dim, View<const float, 2> cosines, View<const float, 2> sines, RotaryLayout layout)
    : head_dim_(head_dim), layout_(layout), pairs_(cosines.size(1)), tables_(tables_of(head_dim, cosines, sines)) {}
Rotary::Rotary(Index head_dim, View<const double, 2> cosines, View<const double, 2> sines, RotaryLayout layout)
    : head_dim_(head_dim), layout_(layout), pairs_(cosines.size(1)), tables_(tables_of(head_dim, cosines, sines)) {}

Rotary::Rotary(Index head_dim, const RotaryOptions& options)
    : head_dim_(head_dim),
      layout_(options.layout),
      pairs_((options.rotary_dim == 0 ? head_dim : options.rotary_dim) / 2) {
  const Index rotary_dim = options.rotary_dim == 0 ? head_dim : options.rotary_dim;
  check_options(head_dim, options, rotary_dim);
  for (Index pair = 0; pair < rotary_dim / 2; ++pair) {
    frequencies_.push_back(frequency_of(pair, rotary_dim, options));
    check<OptionError>(std::isfinite(frequencies_.back()), "Rotary",
        "base and factor must give finite frequencies: got ", options.base, " and ", options.factor);
  }
  if (options.scaling == RotaryScaling::kYarn) {
    attention_factor_ = options.attention_factor.value_or(1 + 0.1 * maths::log(options.factor));
  }
}

void Rotary::turn(const char* function, const AnyView& x, const AnyView& y, const RotaryPositions& positions,
    double direction, Context& context) const {
  check_views(function, head_dim_, x, y, positions);
  const Index length = x.size(2), tokens = x.size(0) * length;
  if (frequencies_.empty()) {
    check_positions(function, positions, x.size(0), length, static_cast<Index>(tables_.size()) / (2 * pairs_));
  }
  if (tokens == 0 || x.size(1) == 0) return;
  // Tokens per item: some microseconds of work, decided by shape alone. A cosine costs as much as several heads.
  const Index work = (x.size(1) + 16) * head_dim_, block = std::max<Index>(1, 8192 / work);
  const double flops = 8.0 * static_cast<double>(tokens) * static_cast<double>(work);
  const auto turn_all = [&]<class E>(E) {
    using Sum = Accumulator<E>;
    const auto turn_token = [&](Index b, Index t, double* angles) {
      Sum *const cosines = reinterpret_cast<Sum*>(angles + 2 * pairs_), *const sines = cosines + pairs_;
      const Index position = position_of(positions, b, t);
      if (tables_.empty()) fill_angles(static_cast<double>(position), frequencies_, angles);
      const double* const row = tables_.empty() ? angles : tables_.data() + 2 * pairs_ * position;
      for (Index i = 0; i < pairs_; ++i) {
        cosines[i] = static_cast<Sum>(attention_factor_ * row[i]);
        sines[i] = static_cast<Sum>(attention_factor_ * direction * row[pairs_ + i]);
      }
      for (Index h = 0; h < x.size(1); ++h) {
        const E* const from = x.as<const E>(b, h, t);
        E* const to = y.as<E>(b, h, t);
        turn_row(from, to, cosines, sines, pairs_, layout_);
        if (from != to) std::copy(from + 2 * pairs_, from + head_dim_, to + 2 * pairs_);
      }
    };
    run_items(context,
        {(tokens + block - 1) / block, flops, static_cast<std::size_t>(2 * pairs_) * (sizeof(double) + sizeof(Sum))},
        [&](Index item, std::byte* own) {
          for (Index n = item * block; n < std::min(tokens, (item + 1) * block); ++n) {
            turn_token(n / length, n % length, reinterpret_cast<double*>(own));
          }
        });
  };
  with_sums(x.type, [&]<class Sum>(Sum) { with_elements<Sum>(x.type, turn_all); });
}

}  // namespace qkv::inline v0

// Families beside attention's case list: linear attention, ragged batches, rotary positions.
#include "linear/check_linear.h"
#include "support/cases/ragged.h"
#include "support/checks/check_rotary.h"
#include "support/random.h"
#include "sweep/family.h"

namespace qkv::test {
namespace {

/// Heads, lengths, map, order, normalised, state, scale, form are combined exhaustively: indices into LinearChoice.
constexpr std::array<std::size_t, 8> kLinearMultiplied = {0, 1, 3, 4, 5, 6, 7, 8};

Index linear_count() {
  const LinearChoice values = linear_values();
  Index count = 1;
  for (const std::size_t option : kLinearMultiplied) count *= values[option];
  return count;
}

bool run_linear(Index n, Worst& worst) {
  const LinearChoice values = linear_values();
  Random random(static_cast<std::uint64_t>(n));
  for (int draw = 0; draw < 50; ++draw) {
    LinearChoice choice{};
    for (std::size_t option = 0; option < kLinearOptions; ++option) choice[option] = random.below(values[option]);
    Digits digits(n);
    for (const std::size_t option : kLinearMultiplied) choice[option] = digits.next(values[option]);
    const LinearCase each = linear_case(choice, static_cast<std::uint64_t>(n));
    if (!each.legal()) continue;
    if (random.below(2) == 0) {
      check_linear_case<float>(each, 1, worst);
    } else {
      check_linear_case<double>(each, 1, worst);
    }
    return true;
  }
  return false;
}

constexpr Index kRaggedMasks = 10;
constexpr std::array<double, 2> kRaggedDropouts = {0.0, 0.3};
constexpr std::array kEmptyRows = {EmptyRow::kZero, EmptyRow::kMean, EmptyRow::kNaN};
constexpr std::array<std::array<Index, 4>, 4> kRaggedWidths = {
    {{1, 1, 64, 64}, {4, 2, 24, 20}, {3, 1, 5, 9}, {2, 2, 40, 17}}};
constexpr Index kRaggedCount = kRaggedMasks * 2 * 2 * 2 * 3 * 2 * 4;

bool run_ragged(Index n, Worst&) {
  Digits digits(n);
  RaggedSetting setting;
  setting.name = std::to_string(n);
  switch (digits.next(kRaggedMasks)) {
    case 1: setting.mask = Mask::causal(Align::kBottomRight); break;
    case 2: setting.mask = Mask::causal(Align::kTopLeft); break;
    case 3:
      setting.mask = Mask::causal() & Mask::sliding(50);
      setting.lengths = kSquareLengths;
      break;
    case 4: setting.mask = Mask::window(20, 3, Align::kBottomRight); break;
    case 5: setting.offsets = true; break;
    case 6: setting.key_lengths = true; break;
    case 7: setting.offsets = true, setting.key_lengths = true; break;
    case 8: setting.mask = Mask::first(4) | Mask::window(9, 0, Align::kBottomRight); break;
    case 9:
      setting.mask = Mask::mask_mod([](Index, Index h, Index i, Index j) { return (h + i + 3 * j) % 4 != 0; });
      break;
    default: break;
  }
  setting.bias = digits.next(2) == 1;
  setting.softcap = digits.next(2) == 1;
  setting.dropout = digits.of(kRaggedDropouts);
  setting.empty_row = digits.of(kEmptyRows);
  setting.token_major = digits.next(2) == 0;
  const auto widths = digits.of(kRaggedWidths);
  setting.num_heads = widths[0], setting.num_kv_heads = widths[1];
  setting.head_dim = widths[2], setting.v_head_dim = widths[3];
  const Index type = Random(static_cast<std::uint64_t>(n)).below(4);
  if (type == 0) check_ragged<float>(setting, {1});
  if (type == 1) check_ragged<double>(setting, {1});
  if (type == 2) check_ragged<BFloat16>(setting, {1});
  if (type == 3) check_ragged<Float16>(setting, {1});
  return true;
}

constexpr std::array<Index, 4> kRotaryWidths = {2, 12, 64, 66};
constexpr std::array<Index, 3> kRotaryParts = {1, 2, 4};  // of the width, in quarters
constexpr std::array kRotaryLayouts = {RotaryLayout::kHalfSplit, RotaryLayout::kInterleaved};
constexpr std::array kRotaryScalings = {
    RotaryScaling::kNone, RotaryScaling::kLinear, RotaryScaling::kNtk, RotaryScaling::kYarn, RotaryScaling::kLlama3};
constexpr std::array<double, 2> kRotaryBases = {10000, 500000};
constexpr Index kRotaryCount = 4 * 3 * 2 * 5 * 2 * 4;

bool run_rotary(Index n, Worst&) {
  Digits digits(n);
  const Index width = digits.of(kRotaryWidths), part = digits.of(kRotaryParts) * width / 8 * 2;
  const RotaryLayout layout = digits.of(kRotaryLayouts);
  const RotaryScaling scaling = digits.of(kRotaryScalings);
  const double base = digits.of(kRotaryBases), factor = scaling == RotaryScaling::kNone ? 1 : 4;
  if (part == 0 || (scaling == RotaryScaling::kNtk && part == 2)) return false;
  const RotaryOptions options{.rotary_dim = part,
      .base = base,
      .layout = layout,
      .scaling = scaling,
      .factor = factor,
      .original_context = 128};
  SCOPED_TRACE("width " + std::to_string(width));
  const Index type = digits.next(4);
  if (type == 0) check_rotary<float>(width, options, 1);
  if (type == 1) check_rotary<double>(width, options, 1);
  if (type == 2) check_rotary<BFloat16>(width, options, 1);
  if (type == 3) check_rotary<Float16>(width, options, 1);
  return true;
}

}  // namespace

Family linear_family() {
  return {"linear",
      "heads x lengths x map x order (causal, decay, delta rule) x normalised x state x scale x form; f32 or f64",
      "widths, layout", linear_count(), run_linear};
}
Family ragged_family() {
  return {"ragged",
      "mask x bias x soft cap x dropout x empty rows x order of memory x heads and widths; one of four types",
      "nothing: ten sequences of 0 to 2,500 tokens, or six squares", kRaggedCount, run_ragged};
}
Family rotary_family() {
  return {"rotary", "width x part that is turned x layout x scaling x base x four types, at positions of every kind",
      "nothing", kRotaryCount, run_rotary};
}

}  // namespace qkv::test

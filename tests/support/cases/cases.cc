#include "support/cases/cases.h"

#include "support/cases/pairwise.h"
#include "support/random.h"

namespace qkv::test {

std::string AttentionCase::name() const {
  const auto number = [](const char* key, Index value) { return std::string(key) + std::to_string(value); };
  std::string text = number("b", batch) + number("_h", num_heads) + number("_kv", num_kv_heads) + number("_tq", q_len) +
                     number("_tk", kv_len) + number("_d", head_dim) + number("_dv", v_head_dim);
  const auto add = [&](bool said, const std::string& part) { text += said ? "_" + part : ""; };
  add(mask != MaskKind::kNone, mask_name(mask));
  add(bias != BiasKind::kNone, std::string("bias-") + kBiasNames[static_cast<std::size_t>(bias)]);
  add(softcap > 0, number("softcap", static_cast<Index>(softcap)));
  add(scale != ScaleKind::kDefault, std::string("scale-") + kScaleNames[static_cast<std::size_t>(scale)]);
  add(dropout > 0, number("dropout", static_cast<Index>(dropout * 100)));
  add(empty_row != EmptyRow::kZero, std::string("empty-") + kEmptyRowNames[static_cast<std::size_t>(empty_row)]);
  add(layout != Layout::kBhtd, kLayoutNames[static_cast<std::size_t>(layout)]);
  add(fill != Fill::kUniform, kFillNames[static_cast<std::size_t>(fill)]);
  add(sinks != SinkKind::kNone, std::string("sinks-") + kSinkNames[static_cast<std::size_t>(sinks)]);
  add(position != PositionKind::kNone, kPositionNames[static_cast<std::size_t>(position)]);
  add(mod != ModKind::kNone, std::string("mod-") + kModNames[static_cast<std::size_t>(mod)]);
  add(cache != CacheKind::kNone, std::string("cache-") + cache_name(cache));
  add(list_width > 0, number("lists", lists) + number("x", list_width));
  return text;
}

bool AttentionCase::legal() const {
  if (num_kv_heads > 0 && num_heads % num_kv_heads != 0) return false;
  if (needs_square(mask) && q_len != kv_len) return false;
  const bool same = num_heads == num_kv_heads && q_len == kv_len && head_dim == v_head_dim;
  if (layout == Layout::kPacked && !same) return false;
  if (fill == Fill::kNanBehindMask && mask == MaskKind::kNone && list_width == 0) return false;
  if (cache != CacheKind::kNone && (dropout > 0 || empty_row == EmptyRow::kMean)) return false;
  return true;
}

Choice option_values() {
  return {case_values::kHeads.size(), case_values::kLengths.size(), case_values::kWidths.size(), kMaskNames.size(),
      kBiasNames.size(), kLayoutNames.size(), kFillNames.size(), case_values::kSoftcaps.size(), kScaleNames.size(),
      case_values::kDropouts.size(), kEmptyRowNames.size(), kSinkNames.size(), kPositionNames.size(), kModNames.size(),
      case_values::kCaches.size()};
}

AttentionCase case_of(const Choice& choice, std::uint64_t seed) {
  AttentionCase made;
  const auto& heads = case_values::kHeads[choice[0]];
  const auto& lengths = case_values::kLengths[choice[1]];
  const auto& widths = case_values::kWidths[choice[2]];
  made.batch = heads[0], made.num_heads = heads[1], made.num_kv_heads = heads[2];
  made.q_len = lengths[0], made.kv_len = lengths[1];
  made.head_dim = widths[0], made.v_head_dim = widths[1];
  made.mask = static_cast<MaskKind>(choice[3]);
  made.bias = static_cast<BiasKind>(choice[4]);
  made.layout = static_cast<Layout>(choice[5]);
  made.fill = static_cast<Fill>(choice[6]);
  made.softcap = case_values::kSoftcaps[choice[7]];
  made.scale = static_cast<ScaleKind>(choice[8]);
  made.dropout = case_values::kDropouts[choice[9]];
  made.empty_row = static_cast<EmptyRow>(choice[10]);
  made.sinks = static_cast<SinkKind>(choice[11]);
  made.position = static_cast<PositionKind>(choice[12]);
  made.mod = static_cast<ModKind>(choice[13]);
  made.cache = case_values::kCaches[choice[14]];
  made.seed = seed;
  return made;
}

std::vector<AttentionCase> pairwise_cases(double max_work) {
  std::vector<AttentionCase> cases;
  const auto legal = [&](const Choice& choice) {
    const AttentionCase drawn = case_of(choice, 1);
    return drawn.legal() && drawn.work() <= max_work;
  };
  for (const Choice& choice : pairwise_choices(option_values(), 20240501, legal)) {
    cases.push_back(case_of(choice, cases.size() + 1));
  }
  return cases;
}

std::vector<AttentionCase> edge_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](Index b, Index h, Index kv, Index tq, Index tk, Index d, Index dv) -> AttentionCase& {
    cases.push_back({b, h, kv, tq, tk, d, dv});
    cases.back().seed = cases.size();
    return cases.back();
  };
  add(0, 2, 1, 5, 7, 8, 8);
  add(2, 0, 1, 5, 7, 8, 8);
  add(2, 2, 1, 0, 7, 8, 8);
  add(2, 2, 1, 0, 7, 8, 8).mask = MaskKind::kCausalTopLeft;
  for (const EmptyRow rule : {EmptyRow::kZero, EmptyRow::kMean, EmptyRow::kNaN}) {
    add(2, 2, 1, 5, 0, 8, 3).empty_row = rule;
    add(2, 2, 2, 70, 130, 16, 16).empty_row = rule;
    cases.back().mask = MaskKind::kDropAll;
    add(1, 2, 2, 130, 70, 16, 16).empty_row = rule;
    cases.back().mask = MaskKind::kCausalBottomRight;  // the first 60 queries see nothing
  }
  add(2, 2, 1, 0, 0, 8, 8);
  add(2, 2, 1, 5, 0, 8, 3).sinks = SinkKind::kSome;
  add(2, 2, 1, 0, 5, 8, 3).position = PositionKind::kT5;
  add(1, 2, 2, 130, 70, 16, 16).sinks = SinkKind::kUniform;
  cases.back().mask = MaskKind::kCausalBottomRight;  // rows that see only the sink
  cases.back().empty_row = EmptyRow::kNaN;           // and are not empty
  add(1, 8, 2, 1, 4096, 128, 128).mask = MaskKind::kCausalBottomRight;
  add(1, 1, 1, 700, 700, 4, 4).mask = MaskKind::kCausal;
  add(1, 2, 1, 600, 900, 5, 7).mask = MaskKind::kWindow;
  add(3, 2, 2, 3, 4, 2, 2).mask = MaskKind::kKeepBqk;
  add(1, 1, 1, 1, 1, 1, 1);
  for (const MaskKind mask :
      {MaskKind::kDocuments, MaskKind::kStartsAndQueries}) {  // rows that begin in a later chunk, equal scores
    for (const PositionKind position : {PositionKind::kT5, PositionKind::kNone}) {
      add(2, 2, 1, 16, 512, 64, 111).mask = mask;
      cases.back().position = position;
      cases.back().bias = BiasKind::kQueries;
      cases.back().scale = ScaleKind::kZero;
      cases.back().fill = Fill::kConstantV;
    }
  }
  add(1, 1, 1, 113, 203, 1, 1).bias = BiasKind::kQueries;  // equal scores that are not 0, nothing masked
  cases.back().scale = ScaleKind::kZero;
  add(3, 2, 1, 1, 700, 3, 5).mask = MaskKind::kKeepStrideZero;  // scores rise by 40 from a masked first tile
  cases.back().position = PositionKind::kAlibi;
  cases.back().mod = ModKind::kHide;
  cases.back().seed = 37;  // one of four in a hundred whose weights show what a far shift rounds away
  return cases;
}

std::vector<AttentionCase> long_cases() {
  std::vector<AttentionCase> cases = {{1, 2, 1, 150, 520, 20, 20, MaskKind::kCausalBottomRight, BiasKind::kKeys},
      {3, 1, 1, 1, 3000, 16, 16, MaskKind::kNone, BiasKind::kSquare},
      {2, 8, 2, 2, 900, 24, 17, MaskKind::kCausalBottomRight}, {1, 2, 1, 70, 390, 128, 16, MaskKind::kWindow},
      {2, 2, 1, 390, 700, 20, 12, MaskKind::kKeepDense}, {2, 2, 1, 0, 9, 8, 4, MaskKind::kNone, BiasKind::kHeads},
      {2, 2, 1, 9, 0, 8, 4, MaskKind::kNone, BiasKind::kHeads}};
  cases[1].dropout = cases[3].dropout = 0.1;
  cases[3].fill = Fill::kHugeLogits;
  cases[4].dropout = 0.2, cases[4].empty_row = EmptyRow::kMean;
  return cases;
}

}  // namespace qkv::test

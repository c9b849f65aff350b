// The family of grouped layers: every option of GroupedQueryAttention with every other, gradients by differences.
#include "nn/layer_cases.h"
#include "support/isas.h"
#include "sweep/family.h"

namespace qkv::test {
namespace {

constexpr std::array<Index, 3> kKvHeads = {1, 2, 4};
constexpr std::array kNorms = {nn::QkNorm::kNone, nn::QkNorm::kHead, nn::QkNorm::kVector};
constexpr std::array kScalings = {
    RotaryScaling::kNone, RotaryScaling::kLinear, RotaryScaling::kNtk, RotaryScaling::kYarn, RotaryScaling::kLlama3};
constexpr Index kRotaries = 1 + 2 * 2 * 5;  // none; layout x part x scaling
constexpr Index kGroupedCount = 3 * kRotaries * 3 * 2 * 2 * 2 * 2;

bool run_grouped(Index n, Worst&) {
  Digits digits(n);
  nn::LayerConfig config{.embed_dim = 12, .num_heads = 4, .head_dim = 6, .seed = 3};
  const Index rotary = digits.next(kRotaries);
  if (rotary > 0) {
    Digits parts(rotary - 1);
    RotaryOptions options{.original_context = 8};
    options.layout = parts.next(2) == 0 ? RotaryLayout::kHalfSplit : RotaryLayout::kInterleaved;
    options.rotary_dim = parts.next(2) == 0 ? 0 : 4;
    options.scaling = parts.of(kScalings);
    if (options.scaling != RotaryScaling::kNone) options.factor = 4;
    config.rotary = options;
  }
  config.num_kv_heads = digits.of(kKvHeads);
  config.qk_norm = digits.of(kNorms);
  config.bias = digits.next(2) == 1;
  config.output_bias = digits.next(2) == 1;
  config.causal = digits.next(2) == 1;
  if (digits.next(2) == 1) config.dropout = 0.25F, config.residual_dropout = 0.25F;
  SCOPED_TRACE("layer " + std::to_string(n));
  for_each_isa(1, [&](Context& context) {
    nn::GroupedQueryAttention layer(config);
    randomise(layer, 8);
    layer.train();
    check_gradients({"", "grouped-query", config}, layer, random_tensor({2, 5, config.embed_dim}, 11),
        random_tensor({2, 5, config.embed_dim}, 12), {.seed = 7, .positions = {.offset = 2}, .context = &context});
  });
  return true;
}

}  // namespace

Family grouped_family() {
  return {"grouped", "rotary (layout x part x scaling, or none) x shared heads x norms x biases x causal x dropout",
      "nothing", kGroupedCount, run_grouped};
}

}  // namespace qkv::test

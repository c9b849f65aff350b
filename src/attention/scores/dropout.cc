// Dropout as an array: the factors that kernels regenerate on the fly, written out for inspection or for other
// libraries.
#include "core/overlap.h"
#include "core/philox.h"
#include "qkv/attention.h"

namespace qkv::inline v0 {

// factors[b, h, i, j] = dropped ? 0 : 65536 / (65536 - t); all 1 where dropout is not active
void dropout_factors(const Dropout& dropout, View<float, 4> factors) {
  const std::uint32_t threshold = dropout_threshold(dropout.p, "dropout_factors");
  check_written("dropout_factors", {"factors", factors});
  const std::uint32_t active_threshold = dropout.active() ? threshold : 0;
  const auto kept = static_cast<float>(dropout_scale(active_threshold));
  const PhiloxKey key = philox_key(dropout.seed);
  const Index num_heads = factors.size(1);
  for (Index b = 0; b < factors.size(0); ++b) {
    for (Index h = 0; h < num_heads; ++h) {
      // Unsigned, so that the product of any sequence number and head count wraps mod 2^32.
      const auto sequence_head = static_cast<std::uint32_t>(
          (static_cast<std::uint64_t>(dropout.first_sequence) + static_cast<std::uint64_t>(b)) *
              static_cast<std::uint64_t>(num_heads) +
          static_cast<std::uint64_t>(h));
      for (Index i = 0; i < factors.size(2); ++i) {
        PhiloxWords words{};
        for (Index j = 0; j < factors.size(3); ++j) {
          if (j % 8 == 0) words = dropout_words(key, i, j, sequence_head);
          factors(b, h, i, j) = dropped(words, j, active_threshold) ? 0.0F : kept;
        }
      }
    }
  }
}

}  // namespace qkv::inline v0

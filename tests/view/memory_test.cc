// Pictures when memory is out, also where Cairo calls back. Not the explorer: nlohmann's destructors allocate.
#include <gtest/gtest.h>

#include "maps.h"
#include "qkv/view/kinds.h"
#include "qkv/view/pictures.h"
#include "support/allocations.h"
#include "support/storage.h"

namespace qkv::view {
namespace {

AttentionMap small_map() { return causal_map(1, 2, 3, {"a", "b", "a rather long token"}, "a title"); }

TEST(Memory, OutInPicturesIsBadAlloc) {
  expect_only_bad_alloc_of({
      {"SVG", [] { return numbers_of(render_svg(small_map())); }},
      {"terminal",
          [] { return numbers_of(render_terminal(small_map()), render_terminal(small_map(), {.colour = false})); }},
      {"labels", [] { return numbers_of(characters("grüße").at(2), picture_label("a\n"), picture_title("b")); }},
      {"statistics", [] { return std::vector{head_statistics(small_map(), 0, 1).entropy}; }},
      {"kinds",
          [] {
            const auto q = test::random_tensor({2, 3, 4}, 1), k = test::random_tensor({1, 3, 4}, 2);
            const Tensor<double> numbers({2, 3});
            const HeadCall call{
                .q = q, .k = k, .lse = numbers, .entropy = numbers, .mask = Mask::causal(), .ids = {1, 2, 1}};
            const std::vector<Index> rows{1, 2};
            const std::vector<HeadKind> kinds = kinds_of_heads(std::span(&call, 1));
            return numbers_of(kinds.at(0).kind, weights_of_rows(call, rows).span(),
                key_intervals(Mask::causal(), {1, 2, 3, 3}, 0).first.span());
          }},
  });
}

TEST(Memory, OutInPixelsAndPagesIsBadAlloc) {
  if (!draws_text()) GTEST_SKIP() << "no Pango";
  expect_only_bad_alloc_of({
      {"PNG", [] { return numbers_of(render_png(small_map())); }},
      {"PDF", [] { return numbers_of(render_pdf(small_map())); }},
      {"missing characters",
          [] { return std::vector{1.0 + static_cast<double>(missing_characters(small_map()).size())}; }},
  });
}

}  // namespace
}  // namespace qkv::view

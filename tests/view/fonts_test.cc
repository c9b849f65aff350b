// A build's text about itself, with Pango or without.
#include <gtest/gtest.h>

#include "maps.h"
#include "qkv/error.h"
#include "qkv/view/pictures.h"
#include "support/errors.h"

namespace qkv::view {
namespace {

TEST(Fonts, ABuildDrawsOrSaysWhatToDo) {
  const AttentionMap map = causal_map(1, 1, 3);
  for (const auto& render : {+[](const AttentionMap& m) { return render_png(m).size(); },
           +[](const AttentionMap& m) { return render_pdf(m).size(); }}) {
    if (draws_text()) {
      EXPECT_GT(render(map), 0u);
      continue;
    }
    test::expect_error<UnsupportedError>(
        [&] { render(map); }, {".svg", "pip install matplotlib", "-DQKV_TEXT=pango", "libpango1.0-dev"});
  }
}

TEST(Fonts, MissingCharactersChecksTheMap) {
  AttentionMap negative = causal_map(1, 1, 2);
  negative.weights.data()[0] = -1;
  EXPECT_THROW(missing_characters(negative), OptionError);
}

}  // namespace
}  // namespace qkv::view

// Lines of text: their lengths, what is markup elsewhere, and what no font has.
#include "view/print/typesetter.h"

#include <gtest/gtest.h>

#include "qkv/view/pictures.h"
#include "view/maps.h"
#include "view/text.h"

namespace qkv::view {
namespace {

TEST(Typesetter, LinesAreAsLongAsTheirCharacters) {
  const Typesetter typesetter;
  EXPECT_EQ(typesetter.width("", kLargeText), 0);
  const int ten = typesetter.width("0123456789", kLargeText);
  EXPECT_NEAR(typesetter.width("01234567890123456789", kLargeText), 2 * ten, 1);
  EXPECT_NEAR(2 * typesetter.width("0123456789", kSmallText), ten, 1);
  EXPECT_LE(ten, 10 * kLargeText);
}

/// It draws the text itself: no tag, no entity.
TEST(Typesetter, MarkupIsText) {
  const Typesetter typesetter;
  for (const char* text : {"<b>x</b>", "&lt;&gt;", "<big>8", "<span size='9000'>", "&#x1F600;", "</"}) {
    EXPECT_EQ(typesetter.width(text, kLargeText),
        typesetter.width(std::string(std::string_view(text).size(), '0'), kLargeText))
        << text;
  }
}

TEST(Typesetter, HostileTextIsDrawn) {
  const Typesetter typesetter;
  for (const std::string& token : hostile_tokens()) {
    EXPECT_GT(typesetter.width(visible_label(token, 100), kLargeText), 0);
  }
}

TEST(MissingCharacters, AreNamedOnceInOrder) {
  // No character at all, so in no font; then one of the private use of plane 16.
  const std::string nobody = "\u0378", own = "\U0010ABCD";
  const AttentionMap map = causal_map(1, 2, 3, {nobody + "a" + own, own, nobody}, "plain title");
  const std::vector<MissingCharacter> expected{{0x378, nobody}, {0x10ABCD, own}};
  EXPECT_EQ(missing_characters(map), expected);
  EXPECT_TRUE(missing_characters(causal_map(1, 1, 3, {"a", "b", "ü"}, "plain title")).empty());
}

/// Only what the picture shows: long sequences are numbered.
TEST(MissingCharacters, AreThoseThatAreShown) {
  const std::vector<std::string> tokens(200, "\u0378");
  EXPECT_TRUE(missing_characters(causal_map(1, 1, 200, tokens)).empty());
  EXPECT_EQ(missing_characters(causal_map(1, 1, 20, std::vector<std::string>(20, "\u0378"))).size(), 1u);
}

}  // namespace
}  // namespace qkv::view

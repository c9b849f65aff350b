// CharTokenizer: order of the ids, round trips, and texts that are not UTF-8.
#include "core/utf8.h"
#include "lm/lm_test_support.h"

namespace qkv {
namespace {

using lm::CharTokenizer;

TEST(Tokenizer, IdsAreCodePointsInOrder) {
  const CharTokenizer tokenizer = CharTokenizer::from_text("zé a𝄞世a");
  EXPECT_EQ(tokenizer.characters(), (std::vector<char32_t>{U' ', U'a', U'z', U'é', U'世', U'𝄞'}));
  EXPECT_EQ(tokenizer.encode("a𝄞"), (std::vector<Index>{1, 5}));
  EXPECT_EQ(test::default_tokenizer().decode(std::vector<Index>{0, 1, 2, 3, 4, 5, 6}), " abcxyz");
}

TEST(Tokenizer, RoundTrip) {
  const std::string text = "Grüße, 世界! \xF0\x9D\x84\x9E\n\t\x7F\xC2\x80\xF4\x8F\xBF\xBF";
  const CharTokenizer tokenizer = CharTokenizer::from_text(text);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  std::map<std::string, std::string> metadata;
  tokenizer.save_metadata(metadata);
  EXPECT_EQ(CharTokenizer::from_metadata(metadata).characters(), tokenizer.characters());
}

TEST(Tokenizer, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x900 ? 1 : 37) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(CharTokenizer::from_text(text).characters(), std::vector<char32_t>{c}) << static_cast<std::uint32_t>(c);
  }
}

TEST(Tokenizer, InvalidUtf8IsRefusedAtItsOffset) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"ab\x80", 2},            // a continuation byte alone
      {"\xC3", 0},              // cut off
      {"a\xE4\xB8", 1},         // cut off
      {"a\xC3z", 1},            // no continuation
      {"\xC0\x80", 0},          // overlong
      {"\xE0\x9F\xBF", 0},      // overlong
      {"xy\xED\xA0\x80", 2},    // surrogate
      {"\xF0\x8F\xBF\xBF", 0},  // overlong
      {"\xF4\x90\x80\x80", 0},  // above U+10FFFF
      {"abc\xFF", 3},
  };
  for (const auto& [text, offset] : cases) {
    try {
      CharTokenizer::from_text(text);
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      EXPECT_EQ(error.byte_offset(), offset) << error.what();
    }
  }
}

TEST(Tokenizer, Errors) {
  const CharTokenizer tokenizer = CharTokenizer::from_text("ab\n");
  test::expect_error<OptionError>([&] { tokenizer.encode("abé"); }, {"'é'", "position 2", "'a' 'b'", "U+000A"});
  test::expect_error<OptionError>([&] { tokenizer.decode(std::vector<Index>{3}); }, {"[0, 3)", "got 3"});
  test::expect_error<OptionError>([&] { CharTokenizer::from_text(""); }, {"at least one character"});
  test::expect_error<OptionError>([&] { CharTokenizer::from_metadata({}); }, {"tokenizer.characters"});
  test::expect_error<OptionError>(
      [&] {
        CharTokenizer::from_metadata({{"tokenizer.characters", "ba"}});
      },
      {"ascending"});
  test::expect_error<OptionError>(
      [&] {
        CharTokenizer::from_metadata({{"tokenizer.characters", "aa"}});
      },
      {"without repeats"});
}

}  // namespace
}  // namespace qkv

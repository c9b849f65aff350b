// Uses the installed language model: a text's characters there and back.
#include <qkv/lm/tokenizer.h>

#include <cstdio>
#include <string>

int main() {
  const std::string text = "abab xyz";
  const qkv::lm::CharTokenizer tokenizer = qkv::lm::CharTokenizer::from_text(text);
  const bool equal = tokenizer.decode(tokenizer.encode(text)) == text;
  std::printf(
      "%d characters, there and back: %s\n", static_cast<int>(tokenizer.vocab_size()), equal ? "equal" : "different");
  return equal ? 0 : 1;
}

#include "mask/expression.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <optional>

#include "core/escape.h"
#include "qkv/error.h"
#include "support/command.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

struct Sizes {
  Index q_len, kv_len;
};

/// The text between a leaf's parentheses: lists of numbers separated by ';', an alignment, a mask that holds inside.
struct Arguments {
  std::vector<std::vector<Index>> lists;
  std::optional<Align> align;
  std::optional<Mask> inside;

  const std::vector<Index>& list(std::size_t n) const { return lists[n]; }
  Index number(std::size_t n) const { return lists[0][n]; }
  Align alignment() const { return align.value_or(Align::kSquare); }
};

/// A leaf's arguments: how many lists, how many numbers in the first, with how many lists at most an alignment may
/// stand, and whether a mask may stand inside.
struct Leaf {
  std::string_view name, words;
  std::size_t fewest_lists, most_lists;
  std::size_t fewest_numbers, most_numbers;  // of the first list
  Index most_aligned_lists;                  // -1: nowhere
  bool has_inside;
  std::function<Mask(const Arguments&, const Sizes&)> make;
};

constexpr std::size_t kAny = static_cast<std::size_t>(-1);

/// A list for each query, or one for all.
Mask listed_keys(const std::vector<std::vector<Index>>& lists, const Sizes& sizes) {
  if (lists.size() != 1 && static_cast<Index>(lists.size()) != sizes.q_len) {
    throw OptionError("keys takes one list or one for each of the " + std::to_string(sizes.q_len) + " queries: got " +
                      std::to_string(lists.size()));
  }
  std::size_t longest = 0;
  for (const std::vector<Index>& list : lists) longest = std::max(longest, list.size());
  Tensor<std::int32_t> index({1, 1, sizes.q_len, static_cast<Index>(longest)});
  std::ranges::fill(index.span(), -1);
  for (Index i = 0; i < sizes.q_len; ++i) {
    const std::vector<Index>& list = lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(i)];
    std::ranges::transform(list, &index.data()[i * static_cast<Index>(longest)],
        [](Index key) { return static_cast<std::int32_t>(std::clamp<Index>(key, INT32_MIN, INT32_MAX)); });
  }
  return Mask::keys(index);
}

const std::vector<Leaf>& leaves() {
  using A = const Arguments&;
  using S = const Sizes&;
  static const std::vector<Leaf> all = {{"all", "all", 0, 0, 0, 0, -1, false, [](A, S) { return Mask(); }},
      {"causal", "causal[(ALIGN)], causal(OFFSET,...)", 0, 1, 1, kAny, 0, false,
          [](A a, S) { return a.lists.empty() ? Mask::causal(a.alignment()) : Mask::causal(a.list(0)); }},
      {"window", "window(LEFT,RIGHT[,ALIGN]), window(LEFT,RIGHT; OFFSET,...)", 1, 2, 2, 2, 1, false,
          [](A a, S) {
            return a.lists.size() == 2 ? Mask::window(a.number(0), a.number(1), a.list(1))
                                       : Mask::window(a.number(0), a.number(1), a.alignment());
          }},
      {"sliding", "sliding(N[,ALIGN])", 1, 1, 1, 1, 1, false,
          [](A a, S) { return Mask::sliding(a.number(0), a.alignment()); }},
      {"dilated", "dilated(STEP[,ALIGN])", 1, 1, 1, 1, 1, false,
          [](A a, S) { return Mask::dilated(a.number(0), a.alignment()); }},
      {"chunked", "chunked(SIZE[,ALIGN]), chunked(SIZE[,ALIGN]; START,...)", 1, 2, 1, 1, 2, false,
          [](A a, S) {
            return a.lists.size() == 2 ? Mask::chunked(a.number(0), a.list(1), a.alignment())
                                       : Mask::chunked(a.number(0), a.alignment());
          }},
      {"key_lengths", "key_lengths(LENGTH,...)", 1, 1, 1, kAny, -1, false,
          [](A a, S) { return Mask::key_lengths(a.list(0)); }},
      {"key_starts", "key_starts(START,...)", 1, 1, 1, kAny, -1, false,
          [](A a, S) { return Mask::key_starts(a.list(0)); }},
      {"query_lengths", "query_lengths(LENGTH,...)", 1, 1, 1, kAny, -1, false,
          [](A a, S) { return Mask::query_lengths(a.list(0)); }},
      {"prefix", "prefix(LENGTH,...)", 1, 1, 1, kAny, -1, false, [](A a, S) { return Mask::prefix(a.list(0)); }},
      {"first", "first(N)", 1, 1, 1, 1, -1, false, [](A a, S) { return Mask::first(a.number(0)); }},
      {"global_rows", "global_rows(I,...)", 1, 1, 1, kAny, -1, false,
          [](A a, S) { return Mask::global_rows(a.list(0)); }},
      {"global_columns", "global_columns(J,...)", 1, 1, 1, kAny, -1, false,
          [](A a, S) { return Mask::global_columns(a.list(0)); }},
      {"documents", "documents(0,...,Tq[; 0,...,Tk][; MASK])", 1, 2, 1, kAny, -1, true,
          [](A a, S) { return Mask::documents(a.list(0), a.list(a.lists.size() - 1), a.inside.value_or(Mask())); }},
      {"document_ids", "document_ids(ID,...[; ID,...])", 1, 2, 1, kAny, -1, false,
          [](A a, S) { return Mask::document_ids(a.list(0), a.list(a.lists.size() - 1)); }},
      {"keys", "keys(KEY,...[; KEY,...]...): a list for each query, or one for all; -1 for none", 1, kAny, 1, kAny, -1,
          false, [](A a, S s) { return listed_keys(a.lists, s); }}};
  return all;
}

/// mask := and { '|' and };  and := leaf { '&' leaf };  leaf := '(' mask ')' | name [ '(' arguments ')' ]
class Parser {
 public:
  Parser(std::string_view option, const std::string& text, const Sizes& sizes)
      : option_(option), text_(text), sizes_(sizes) {}

  Mask whole() {
    Mask result = mask();
    if (!at_end()) refuse("'&', '|' or the end");
    return result;
  }

 private:
  static constexpr int kDeepest = 64;  // nested parentheses: the caller must not be able to overflow the stack

  Mask mask() {
    if (++depth_ > kDeepest) refuse("at most 64 nested parentheses");
    Mask left = conjunction();
    while (consume('|')) left = left | conjunction();
    --depth_;
    return left;
  }
  Mask conjunction() {
    Mask left = factor();
    while (consume('&')) left = left & factor();
    return left;
  }
  Mask factor() {
    if (consume('(')) {
      Mask inner = mask();
      expect(')');
      return inner;
    }
    const std::size_t begin = offset();
    const std::string name = word();
    if (name.empty()) refuse("the name of a mask or '('");
    for (const Leaf& leaf : leaves()) {
      if (leaf.name != name) continue;
      const Arguments a = arguments(leaf);
      const bool fits =
          a.lists.size() >= leaf.fewest_lists && a.lists.size() <= leaf.most_lists &&
          (a.lists.empty() || (a.list(0).size() >= leaf.fewest_numbers && a.list(0).size() <= leaf.most_numbers)) &&
          (!a.align || static_cast<Index>(a.lists.size()) <= leaf.most_aligned_lists) && (leaf.has_inside || !a.inside);
      if (!fits) fail(begin, std::string(name) + " is written " + std::string(leaf.words));
      const bool by_square = static_cast<Index>(a.lists.size()) <= leaf.most_aligned_lists && !a.align;
      if (by_square && !inside_ && sizes_.q_len != sizes_.kv_len) {
        fail(begin,
            name + " alone needs as many queries as keys: write bottom-right (the last query sees the last key) or " +
                "top-left (the first sees the first) between its parentheses: got Tq " + std::to_string(sizes_.q_len) +
                ", Tk " + std::to_string(sizes_.kv_len));
      }
      try {
        return leaf.make(a, sizes_);
      } catch (const Error& error) {
        fail(begin, error.what());
      }
    }
    std::string names;
    for (const Leaf& leaf : leaves()) names += (names.empty() ? "" : ", ") + std::string(leaf.name);
    fail(begin, "no mask is called " + escaped(name) + ": there are " + names);
  }

  Arguments arguments(const Leaf& leaf) {
    Arguments a;
    if (!consume('(') || consume(')')) return a;
    bool fresh = true;  // a list begins
    while (true) {
      if (is_number()) {
        if (fresh) a.lists.emplace_back();
        fresh = false;
        a.lists.back().push_back(number());
      } else if (leaf.has_inside) {
        if (a.inside) refuse("one mask that holds inside: join several with '&'; a number or ')'");
        inside_ = true;  // sizes are those of each document
        a.inside = mask();
        inside_ = false;
      } else {
        const std::size_t begin = offset();
        const std::string text = word();
        if (a.align || (text != "top-left" && text != "bottom-right")) {
          if (begin >= text_.size()) refuse("')'");
          const bool aligns = leaf.most_aligned_lists >= 0 && !a.align;
          fail(begin, "there must be a whole number" + std::string(aligns ? ", top-left or bottom-right" : ""));
        }
        a.align = text == "top-left" ? Align::kTopLeft : Align::kBottomRight;
      }
      if (consume(')')) return a;
      if (consume(';')) {
        fresh = true;
      } else {
        expect(',');
      }
    }
  }

  std::size_t offset() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_;
  }
  bool at_end() { return offset() == text_.size(); }
  bool consume(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!consume(c)) refuse(std::string("'") + c + "'");
  }
  std::string word() {
    const std::size_t begin = offset();
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' || text_[at_] == '-')) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  bool is_number() {
    return !at_end() && (text_[at_] == '-' || std::isdigit(static_cast<unsigned char>(text_[at_])) != 0);
  }
  Index number() {
    const std::size_t begin = offset();
    Index value = 0;
    const auto [next, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail(begin, "there must be a whole number");
    at_ = static_cast<std::size_t>(next - text_.data());
    return value;
  }

  [[noreturn]] void refuse(const std::string& wanted) {
    fail(offset(), wanted + " must come " + (at_end() ? "where the text ends" : "here"));
  }
  [[noreturn]] void fail(std::size_t where, const std::string& why) const {
    throw UsageError(
        std::string(option_) + " " + escaped(text_) + ", character " + std::to_string(where + 1) + ": " + why);
  }

  std::string_view option_;
  const std::string& text_;
  const Sizes sizes_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool inside_ = false;
};

}  // namespace

Mask parse_mask(std::string_view option, const std::string& text, Index q_len, Index kv_len) {
  return Parser(option, text, {q_len, kv_len}).whole();
}

std::vector<std::string> mask_words() {
  std::vector<std::string> words;
  for (const Leaf& leaf : leaves()) words.emplace_back(leaf.words);
  return words;
}

}  // namespace qkv::cli

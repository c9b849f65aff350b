// The language that textbooks and mistakes are written in (text/*.txt): statements over a Work's arrays.
//
//   step        ["when" expression ":"] ["each" words ":"] statement {";" statement}; `$` is the word of `each`
//   statement   name {"," name} "=" expression {"," expression}  |  "need" expression: NotApplicable where it is 0
//   expression  + - * / @ and comparisons (1, 0) as in NumPy, broadcast both ways; x' exchanges the last two axes;
//               a ?? b is b where a is nothing; x? is nothing where there is no x, which otherwise is NotApplicable;
//               f(x, ...) is a function of functions.cc or a `let`
//   names       an array of the work, given.x an input of the probe, said.x numbers of its metadata, a `let` without
//               parameters;
//               inf, nothing, number (a family's)
//
// A constant of a formula has no axes and is exact: sizes, rates, 1 / sqrt(d).
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "judge/textbook.h"

namespace qkv::judge {

/// An array that lasts longer than the expression, or one that was computed.
class Value {
 public:
  Value(Array own) : own_(std::move(own)) {}  // NOLINT: what is computed is a value
  static Value of(const Array& lasting) {
    Value value{Array()};
    value.lasting_ = &lasting;
    return value;
  }
  const Array& operator*() const { return lasting_ != nullptr ? *lasting_ : own_; }
  const Array* operator->() const { return &**this; }
  Array array() && {
    if (lasting_ != nullptr) return *lasting_;
    return std::move(own_);
  }

 private:
  const Array* lasting_ = nullptr;
  Array own_;
};
using Values = std::span<const Value>;

struct Scope {
  Work& work;
  double number = 0;       ///< of a family
  Values parameters = {};  ///< of the `let` whose body is computed
};
using Expression = std::function<Value(const Scope&)>;
using Statements = std::function<void(Work&, double number)>;

/// Definitions shared by the texts: `let` and `names` of every text that was read.
struct Definitions {
  struct Let {
    std::size_t parameters = 0;
    Expression body;
  };
  ByName<Let> lets;
  std::map<std::string, std::vector<std::string_view>, std::less<>> names;

  /// "let f(x) = ...", "names n = ...": false for any other line.
  bool define(std::string_view line);
};
Definitions& definitions();

/// Throw std::logic_error with the text where it cannot be read.
Expression parse_expression(std::string_view text);
Statements parse_step(std::string_view text);

/// Of a text that is compiled in (text/*.txt; tasks.txt, which the runner reads too): lines without comments and empty
/// ones, which last as long as the program.
std::vector<std::string_view> text_lines(std::string_view file);
/// All of it.
std::string_view text_called(std::string_view file);
/// Every occurrence of `mark` replaced.
std::string replaced(std::string_view text, std::string_view mark, std::string_view by);
/// Words apart from blanks.
std::vector<std::string_view> words_of(std::string_view text);
std::string_view trimmed(std::string_view text);
/// The part of `text` before a mark; `text` keeps the rest.
std::string_view cut(std::string_view& text, std::string_view mark);
/// "B 1, eps 0.5": {B, 1}, {eps, 0.5}.
std::vector<std::pair<std::string_view, std::string_view>> pairs_of(std::string_view text);

/// An array without axes, exact.
Array constant(double x);
inline bool is_nothing(const Array& a) { return a.shape.empty() && a.data.empty(); }

/// functions.cc: nullptr where there is none.
using Function = Array (*)(Values arguments);
Function find_function(std::string_view name);

}  // namespace qkv::judge

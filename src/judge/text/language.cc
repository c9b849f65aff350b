#include "judge/text/language.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/embedded_file.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_judge();
std::span<const EmbeddedFile> embedded_tasks();  // what the runner reads too
}  // namespace qkv::inline v0

namespace qkv::judge {
namespace {

using Binary = Array (*)(const Array&, const Array&);

/// A value without axes is a constant: exact.
Array settled(Array a) {
  if (a.shape.empty() && !a.data.empty()) a.data.front().error = 0;
  return a;
}

template <bool (*holds)(double, double)> Array compared(const Array& a, const Array& b) {
  return zip(a, b, [](Number x, Number y) { return Number(holds(x.value, y.value) ? 1 : 0); });
}
constexpr std::pair<std::string_view, Binary> kComparisons[] = {
    {"==", compared<[](double a, double b) { return a == b; }>},
    {"!=", compared<[](double a, double b) { return a != b; }>},
    {"<=", compared<[](double a, double b) { return a <= b; }>},
    {">=", compared<[](double a, double b) { return a >= b; }>},
    {"<", compared<[](double a, double b) { return a < b; }>},
    {">", compared<[](double a, double b) { return b < a; }>}};
constexpr std::pair<std::string_view, Binary> kSums[] = {{"+", operator+ }, {"-", operator- } };
constexpr std::pair<std::string_view, Binary> kProducts[] = {{"*", operator* }, {"/", operator/ }, {"@", matmul}};

/// "3,1,1" -> [3, 1, 1]; one number has no axes.
Array numbers_of(const std::string& text) {
  Array found(Shape{0});
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const double number = std::strtod(at, &end);
    if (end == at) return Array();
    found.data.emplace_back(number);
    at = *end == ',' ? end + 1 : end;
  }
  if (found.data.empty()) return Array();
  if (found.data.size() == 1) return constant(found.data.front().value);
  found.shape = {static_cast<Index>(found.data.size())};
  return found;
}

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }

class Parser {
 public:
  Parser(std::string_view text, std::vector<std::string> parameters = {})
      : text_(text), parameters_(std::move(parameters)) {}

  Expression expression() {
    Expression first = comparison();
    while (eat("??")) {
      first = [a = std::move(first), b = comparison()](const Scope& scope) {
        Value found = a(scope);
        return is_nothing(*found) ? b(scope) : std::move(found);
      };
    }
    return first;
  }

  std::string_view name() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && in_name(text_[at_])) ++at_;
    if (at_ == begin) fail("a name is missing");
    return text_.substr(begin, at_ - begin);
  }

  bool eat(std::string_view what) {
    skip();
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void need_end() {
    skip();
    if (at_ != text_.size()) fail("something is left");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::logic_error("[judge] " + what + " at " + std::to_string(at_) + " of: " + std::string(text_));
  }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  /// Operands between operators of one rank, from the left.
  template <std::size_t count>
  Expression chain(Expression (Parser::*operand)(), const std::pair<std::string_view, Binary> (&operators)[count]) {
    Expression found = (this->*operand)();
    for (;;) {
      const auto one = std::ranges::find_if(operators, [this](const auto& pair) { return eat(pair.first); });
      if (one == std::end(operators)) return found;
      found = [binary = one->second, a = std::move(found), b = (this->*operand)()](const Scope& scope) {
        const Value left = a(scope), right = b(scope);
        return Value(settled(binary(*left, *right)));
      };
    }
  }
  Expression comparison() { return chain(&Parser::sum, kComparisons); }
  Expression sum() { return chain(&Parser::product, kSums); }
  Expression product() { return chain(&Parser::factor, kProducts); }

  Expression factor() {
    if (eat("-"))
      return [a = factor()](const Scope& scope) { return Value(map(a(scope).array(), [](Number x) { return -x; })); };
    Expression found = primary();
    while (eat("'")) found = [a = std::move(found)](const Scope& scope) { return Value(transpose(*a(scope))); };
    return found;
  }

  Expression primary() {
    if (eat("(")) {
      Expression inner = expression();
      if (!eat(")")) fail("a parenthesis is open");
      return inner;
    }
    skip();
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      const std::string rest(text_.substr(at_));
      char* end = nullptr;
      const double number = std::strtod(rest.c_str(), &end);
      at_ += static_cast<std::size_t>(end - rest.c_str());
      return always(constant(number));
    }
    const std::string found(name());
    if (eat("(")) return call(found);
    return named(found, eat_question());
  }

  /// `?`, and not the first half of `??`.
  bool eat_question() { return !text_.substr(at_).starts_with("??") && text_.substr(at_).starts_with('?') && eat("?"); }

  static Expression always(Array a) {
    return [kept = std::make_shared<const Array>(std::move(a))](const Scope&) { return Value::of(*kept); };
  }

  Expression call(const std::string& function) {
    std::vector<Expression> arguments;
    std::size_t begin = at_;
    while (!eat(")")) {
      if (!arguments.empty() && !eat(",")) fail("a comma is missing");
      begin = at_;
      arguments.push_back(expression());
    }
    if (function == "has") {
      return [a = arguments.at(0)](const Scope& scope) { return Value(constant(is_nothing(*a(scope)) ? 0 : 1)); };
    }
    if (function == "frozen") {
      const std::string array(trimmed(text_.substr(begin, at_ - 1 - begin)));
      return [array](const Scope& scope) {
        return Value::of((scope.work.frozen != nullptr ? scope.work.frozen : &scope.work)->at(array));
      };
    }
    const auto values_of = [arguments](const Scope& scope) {
      std::vector<Value> values;
      values.reserve(arguments.size());
      for (const Expression& argument : arguments) values.push_back(argument(scope));
      return values;
    };
    if (const Function found = find_function(function)) {
      return [found, values_of](const Scope& scope) { return Value(settled(found(values_of(scope)))); };
    }
    return [function, values_of](const Scope& scope) {
      const auto let = definitions().lets.find(function);
      const std::vector<Value> values = values_of(scope);
      if (let == definitions().lets.end() || let->second.parameters != values.size())
        throw std::logic_error("[judge] there is no function " + function + " of " + std::to_string(values.size()));
      return Value(let->second.body({scope.work, scope.number, values}).array());  // not of what a parameter holds
    };
  }

  Expression named(const std::string& found, bool optional) const {
    if (found == "inf") return always(constant(std::numeric_limits<double>::infinity()));
    if (found == "nothing") return always(Array());
    if (found == "number") return [](const Scope& scope) { return Value(constant(scope.number)); };
    if (const auto at = std::ranges::find(parameters_, found); at != parameters_.end()) {
      const auto index = static_cast<std::size_t>(at - parameters_.begin());
      return [index](const Scope& scope) { return Value::of(*scope.parameters[index]); };
    }
    if (found.starts_with("said.")) {
      return [key = found.substr(5), optional](const Scope& scope) {
        Array numbers = numbers_of(scope.work.probe.text(key));
        need(optional || !is_nothing(numbers));
        return Value(std::move(numbers));
      };
    }
    if (found.starts_with("given.")) {
      return [key = found.substr(6), optional](const Scope& scope) {
        const Probe& probe = scope.work.probe;
        need(optional || probe.has(key));
        return probe.has(key) ? Value::of(probe.at(key)) : Value(Array());
      };
    }
    return [found, optional](const Scope& scope) {
      const auto& arrays = scope.work.arrays;
      if (const auto array = arrays.find(found); array != arrays.end()) return Value::of(array->second);
      if (const auto let = definitions().lets.find(found);
          let != definitions().lets.end() && let->second.parameters == 0)
        return let->second.body({scope.work, scope.number});
      need(optional);  // two edits together may leave out the step that makes it
      return Value(Array());
    };
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<std::string> parameters_;
};

using Statement = std::function<void(const Scope&)>;

Statement parse_statement(std::string_view text) {
  Parser parser(text);
  if (parser.eat("need ")) {
    return [condition = parser.expression()](const Scope& scope) { need((*condition(scope))[0].value != 0); };
  }
  std::vector<std::string> names;
  do names.emplace_back(parser.name());
  while (parser.eat(","));
  if (!parser.eat("=")) parser.fail("= is missing");
  std::vector<Expression> values;
  do values.push_back(parser.expression());
  while (parser.eat(","));
  parser.need_end();
  if (names.size() != values.size()) parser.fail("as many values as names are needed");
  return [names, values](const Scope& scope) {
    std::vector<Array> computed;
    for (const Expression& value : values) computed.push_back(value(scope).array());
    for (std::size_t n = 0; n < names.size(); ++n) scope.work[names[n]] = std::move(computed[n]);
  };
}

}  // namespace

std::string_view text_called(std::string_view file) {
  const auto files = file == "tasks.txt" ? embedded_tasks() : embedded_judge();
  const auto found = std::ranges::find(files, file, &EmbeddedFile::name);
  if (found == files.end()) throw std::logic_error("[judge] there is no text " + std::string(file));
  return found->text;
}

std::vector<std::string_view> text_lines(std::string_view file) {
  std::vector<std::string_view> lines;
  for (std::string_view rest = text_called(file); !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    line = line.substr(0, line.find("  # "));
    line = line.substr(0, line.find_last_not_of(' ') + 1);
    if (!line.empty() && !line.starts_with('#')) lines.push_back(line);
  }
  return lines;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size()), end = text.find_last_not_of(' ');
  return begin == text.size() ? std::string_view() : text.substr(begin, end + 1 - begin);
}

std::string_view cut(std::string_view& text, std::string_view mark) {
  const std::size_t at = std::min(text.find(mark), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + mark.size(), text.size()));
  return trimmed(part);
}

std::vector<std::pair<std::string_view, std::string_view>> pairs_of(std::string_view text) {
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  while (!text.empty()) {
    std::string_view second = cut(text, ",");
    const std::string_view first = cut(second, " ");
    if (!first.empty()) pairs.emplace_back(first, trimmed(second));
  }
  return pairs;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) words.push_back(cut(text, " "));
  return words;
}

std::string replaced(std::string_view text, std::string_view mark, std::string_view by) {
  std::string out(text);
  for (std::size_t at = out.find(mark); at != std::string::npos; at = out.find(mark, at + by.size()))
    out.replace(at, mark.size(), by);
  return out;
}

Array constant(double x) { return Array(Shape{}, Number(x)); }

Definitions& definitions() {
  static Definitions all;
  return all;
}

bool Definitions::define(std::string_view line) {
  const bool let = line.starts_with("let "), list = line.starts_with("names ");
  if (!let && !list) return false;
  std::string_view rest = line.substr(line.find(' '));
  const std::string_view head = cut(rest, " =");
  if (list) {
    names[std::string(head)] = words_of(rest);
    return true;
  }
  std::string_view parameters = head.substr(std::min(head.find('('), head.size()));
  std::vector<std::string> all;
  if (!parameters.empty()) {
    parameters = parameters.substr(1, parameters.size() - 2);
    while (!parameters.empty()) all.emplace_back(cut(parameters, ","));
  }
  const std::size_t count = all.size();
  Parser parser(rest, std::move(all));
  Expression body = parser.expression();
  parser.need_end();
  lets[std::string(head.substr(0, head.find('(')))] = {count, std::move(body)};
  return true;
}

Expression parse_expression(std::string_view text) {
  Parser parser(text);
  Expression found = parser.expression();
  parser.need_end();
  return found;
}

Statements parse_step(std::string_view text) {
  text = trimmed(text);
  Expression condition;
  if (text.starts_with("when ")) {
    text.remove_prefix(5);
    condition = parse_expression(cut(text, ":"));
    text = trimmed(text);
  }
  std::vector<std::string_view> each = {""};
  if (text.starts_with("each ")) {
    text.remove_prefix(5);
    const std::string_view list = cut(text, ":");
    const auto named = definitions().names.find(list);
    each = named != definitions().names.end() ? named->second : words_of(list);
  }
  std::vector<Statement> all;
  for (const std::string_view word : each) {
    const std::string own = replaced(text, "$", word);
    for (std::string_view rest = own; !trimmed(rest).empty();) all.push_back(parse_statement(cut(rest, ";")));
  }
  return [condition, all](Work& work, double number) {
    const Scope scope{work, number};
    if (condition && (*condition(scope))[0].value == 0) return;
    for (const Statement& statement : all) statement(scope);
  };
}

}  // namespace qkv::judge

// The lesson's words, and answers against its numbers.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/embedded_file.h"
#include "core/escape.h"
#include "core/sentences.h"
#include "lesson/lesson.h"
#include "support/command.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_lesson();
}

namespace qkv::cli {
namespace {

double number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : std::nan("");
}

bool agree(double typed, double wanted, int digits) { return std::abs(typed - wanted) < std::pow(10.0, -digits); }

}  // namespace

const Json& lesson_text() {
  const std::string name = said("en.json");  // zh/lesson.txt: zh.json
  static std::map<std::string, Json> read;
  if (!read.contains(name)) {
    const auto files = embedded_lesson();
    const auto file = std::ranges::find(files, name, &EmbeddedFile::name);
    read[name] = Json::parse(file->text);
  }
  return read[name];
}

std::vector<double> typed_numbers(const std::string& text) {
  std::vector<double> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string one = text.substr(at, end - at);
    std::erase(one, ' ');
    for (const std::string_view minus : {"\u2212", "\u2013"})  // as the page writes it, and as editors turn it
      for (std::size_t found; (found = one.find(minus)) != std::string::npos;) one.replace(found, minus.size(), "-");
    const std::size_t slash = one.find('/');
    const std::string_view whole = one;
    numbers.push_back(slash == std::string::npos
                          ? number_of(whole)
                          : number_of(whole.substr(0, slash)) / number_of(whole.substr(slash + 1)));
    if (!std::isfinite(numbers.back()))
      throw UsageError("--answer must be numbers with commas between, .178,.088,.734: got " + escaped(text));
    at = end + 1;
  }
  return numbers;
}

LessonVerdict judge_numbers(const Json& pencil, const std::vector<double>& typed, const NamedNumbers& numbers) {
  const int digits = pencil.at("digits").get<int>();
  const std::vector<double>& wanted = numbers.at(pencil.at("answer").get<std::string>());
  if (typed.size() != wanted.size())
    throw UsageError(
        "--answer must be " + std::to_string(wanted.size()) + " numbers: got " + std::to_string(typed.size()));
  LessonVerdict verdict;
  for (std::size_t n = 0; n < typed.size(); ++n) verdict.agreeing += agree(typed[n], wanted[n], digits);
  verdict.right = verdict.agreeing == typed.size();
  if (verdict.right) return verdict;
  double near = 0.025;  // who computes from two digits is up to this far away; large numbers are rounded more
  for (const Json& hint : pencil.at("hints")) {
    const std::vector<double>& mistaken = numbers.at(hint.at("value").get<std::string>());
    double far = 0;
    for (std::size_t n = 0; n < typed.size(); ++n)
      far = std::max(far, std::abs(typed[n] - mistaken[n]) / std::max(1.0, std::abs(mistaken[n])));
    if (far < near) {
      near = far;
      verdict.hint = hint.at("say").get<std::string>();
    }
  }
  return verdict;
}

}  // namespace qkv::cli

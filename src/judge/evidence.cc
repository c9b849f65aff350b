#include "judge/evidence.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "judge/task.h"
#include "judge/text/language.h"
#include "qkv/error.h"

namespace qkv::judge {

std::string number_text(double value, const char* format) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();  // never "-nan"
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string with_number(std::string_view says, double number) {
  return replaced(says, "{}", number_text(number, "%.4g"));
}

std::string sizes_text(const Probe& probe) {
  const Task* task = find_task(probe.text("task"));
  std::string x = probe.has("x") ? "x" : "q";
  if (!probe.has(x) && task != nullptr) x = task->arguments.front().name;
  if (!probe.has(x)) return "";
  const Shape& shape = probe.at(x).shape;
  return x + " " + shape_text(shape.data(), static_cast<int>(shape.size()));
}

namespace {

/// " (1 0) (0 2)", "..." for what is beyond eight numbers or rows: zeros, of a block's inner width.
std::string rows_text(const Array& array) {
  constexpr Index kMost = 8;
  const Index width = array.rank() > 0 ? array.size(-1) : 1;
  std::string text;
  for (Index i = 0; i < std::min(array.count(), kMost * width); ++i) {
    if (i % width < kMost) text += (i % width == 0 ? " (" : " ") + number_text(array[i].value);
    if (i % width + 1 == width) text += width > kMost ? " ...)" : ")";
  }
  return text + (array.count() > kMost * width ? " ..." : "");
}

}  // namespace

std::string heading(const Probe& probe) {
  std::string text = "probe \"" + probe.text("name") + "\", " + sizes_text(probe) + ":\n";
  const Task* task = find_task(probe.text("task"));
  constexpr Index kByHand = 64;
  const bool small = !probe.text("small").empty();
  if (task == nullptr || (probe.count() > kByHand && !small)) return text;
  for (const Argument& argument : task->arguments) {
    if (!probe.has(argument.name)) continue;
    if (small && largest(probe.at(argument.name)) == 0) continue;  // a bias that the code lacks
    text += "  " + std::string(argument.name) + std::string(9 - std::min<std::size_t>(argument.name.size(), 8), ' ') +
            rows_text(probe.at(argument.name)) + "\n";
  }
  for (const char* key : {"heads", "kv_heads", "steps"}) {
    const std::string value = probe.text(key);
    const bool said = !value.empty() && value != (key[0] == 'k' ? probe.text("heads") : "1");
    if (small && said)
      text += "  " + std::string(key) + std::string(10 - std::string_view(key).size(), ' ') + value + "\n";
  }
  return text;
}

std::string row_text(const std::string& name, const Array& expected, const Given& given, const Difference& at) {
  if (std::isnan(at.bound)) {
    const Shape &want = expected.shape, &got = given.values.shape;
    return name + " should have the shape " + shape_text(want.data(), static_cast<int>(want.size())) + " and has " +
           shape_text(got.data(), static_cast<int>(got.size())) + "\n";
  }
  const Index width = std::max<Index>(1, expected.rank() > 0 ? expected.size(-1) : 1), begin = at.index / width * width;
  const Index shown_begin = begin + std::max<Index>(0, std::min(at.index - begin - 2, width - 6)),
              shown = std::min<Index>(6, width);
  std::string leading;
  Index rest = at.index / width;
  for (int axis = static_cast<int>(expected.rank()) - 2; axis >= 0; --axis) {
    leading = std::to_string(rest % expected.size(axis)) + ", " + leading;
    rest /= expected.size(axis);
  }
  const auto numbers = [&](const Array& of) {
    std::string text;
    for (Index i = shown_begin; i < shown_begin + shown; ++i) text += number_text(of[i].value, " %9.4f");
    return text;
  };
  const std::string columns = std::to_string(shown_begin - begin) + ":" + std::to_string(shown_begin - begin + shown);
  const std::string label = name + "[" + leading + columns + "]";
  return label + "\n  expected" + numbers(expected) + "\n  got     " + numbers(given.values) + "\n";
}

std::string everywhere(const std::vector<Case>& cases) {
  std::optional<double> first;
  for (const Case& one : cases) {
    for (const auto& [name, given] : one.answers) {
      for (const Number& x : given.values.data) {
        if (!first) first = x.value;
        if (x.value != *first && !(std::isnan(x.value) && std::isnan(*first))) return {};
      }
    }
  }
  if (!first) return {};
  return (std::isnan(*first) ? "NaN" : number_text(*first)) + " everywhere";
}

Apart apart(const Task& task, const Choices& choices, const std::vector<Case>& cases) {
  Apart far;
  for (const Case& one : cases) {
    const std::optional<Work> work = run_with(task, choices, *one.probe);
    for (const auto& [name, given] : one.answers) {
      for (Index i = 0; work && work->has(name) && i < given.values.count(); ++i) {
        const Number& expected = work->at(name)[i];
        if (!std::isfinite(expected.value)) continue;
        const double difference = std::fabs(expected.value - given.values[i].value);
        far.most = std::max(far.most, difference);
        far.share = std::max(far.share, difference / bound_of(expected, given.unit));
      }
    }
  }
  return far;
}

bool are_scores(const Work& work, const Given& given) {
  Array scores = work.at("scores");
  if (!work.has("visible") || given.values.count() != scores.count()) return false;
  for (Index i = 0; i < scores.count(); ++i) {
    if (work.at("visible")[i].value == 0) scores[i] = given.values[i];
  }
  return matches(scores, given);
}

std::vector<std::string> situation(std::span<const Check> checks, const std::vector<Case>& cases) {
  using Holds = bool (*)(const Probe&);
  static constexpr std::pair<Holds, const char*> kSituations[] = {
      {[](const Probe& p) { return p.has("mask"); },
          "right without a mask, wrong with one: look at where the mask acts, on which axis, and at what hidden "
          "scores become"},
      {[](const Probe& p) {
         return p.text("name").find("large") != std::string::npos || p.text("name").find("far") != std::string::npos;
       },
          "right on small scores, wrong on large ones: look for what overflows"},
      {[](const Probe& p) { return p.text("causal") == "1"; },
          "right without the causal mask, wrong with it: look at how it is made, and at which scores it hides"},
      {[](const Probe& p) { return p.has("q") && p.has("k") && p.at("q").shape != p.at("k").shape; },
          "right with as many keys as queries, wrong with more: look at which length is read where"}};
  if (std::ranges::none_of(checks, &Check::ok) || std::ranges::all_of(checks, &Check::ok)) return {};
  for (const auto& [holds, says] : kSituations) {
    bool exact = true;
    for (std::size_t i = 0; i < checks.size(); ++i) exact = exact && checks[i].ok != holds(*cases[i].probe);
    if (exact) return {says};
  }
  return {};
}

}  // namespace qkv::judge

// The lesson in the terminal: the texts of lesson/text, the numbers that they name, a drawing for each step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "explain/explain.h"
#include "qkv/context.h"
#include "qkv/view/heatmap.h"
#include "support/json.h"

namespace qkv::cli {

using NamedNumbers = std::map<std::string, std::vector<double>>;

/// What the page draws is computed by its engine (lesson/page/example.js); this is the same by explain's textbook: all
/// names that steps use, and the arrays of `example` that drawings show.
struct LessonNumbers {
  NamedNumbers named;
  Example example;
};
LessonNumbers lesson_numbers(Context& context);

/// A step's drawing: arrays as explain shows them, and maps of weights.
struct LessonDrawing {
  std::vector<std::vector<Shown>> shown;
  std::vector<view::AttentionMap> maps;
};
/// `id`: of a step, "softmax".
LessonDrawing lesson_drawing(const std::string& id, const Example& example, Context& context);

/// The document of lesson/text in the language of the command.
const Json& lesson_text();

/// What was given to --answer, "1.41, 0.71, 17/6".
std::vector<double> typed_numbers(const std::string& text);
struct LessonVerdict {
  bool right = false;
  std::size_t agreeing = 0;  ///< how many of the numbers are right
  std::string hint;          ///< of a known mistake; empty: it is none
};
/// Throws UsageError for another count of numbers than the step asks for.
LessonVerdict judge_numbers(const Json& pencil, const std::vector<double>& typed, const NamedNumbers& numbers);

/// The page, docs/lesson.html.
std::string lesson_page();

}  // namespace qkv::cli

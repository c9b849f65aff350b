// A task: what is asked for (its contract), its probes, its textbook. Not: mistakes (catalogue/), the verdict (judge.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/textbook.h"

namespace qkv::judge {

/// B, L, M, E, H, Hkv, d of a judgement. The defaults are all different, E is no square, d is not 4: nothing coincides by chance.
struct Sizes {
  Index batch = 2, length = 5, memory = 7, embed = 18, heads = 3, kv_heads = 3, head_dim = 6;
};

/// An argument of the function contract with its axes, in letters of which one stands for one size: "B H T d".
struct Argument {
  std::string_view name, axes;
  bool optional = false;
};

/// A formula, the part of it that a term is about, and where one reads about it: commands, and pages of docs/.
struct Formula {
  std::string_view whole, part, read;
};

struct Task {
  std::string_view name;
  std::string_view title;                            ///< a few words
  std::string_view teaches;                          ///< one sentence
  std::string_view article;                          ///< "000, 004"; "none"
  std::vector<std::string_view> functions, classes;  ///< the contract's names; either may be empty
  std::vector<Argument> arguments;                   ///< of the (first) function
  /// What its textbook is made of; the catalogue's entries name these: "scores", "heads", "projection", "mask", "causal" ...
  std::vector<std::string_view> parts;
  Sizes sizes;
  Textbook textbook;
  std::vector<std::string_view> answers;  ///< what is compared in a forward call: "out" first
  std::function<std::vector<Probe>(const Sizes&, std::uint64_t seed)> probes;

  bool has(std::string_view part) const;
  Formula formula(std::string_view term) const;
};

/// The ladder, in order.
const std::vector<Task>& tasks();
/// "sdpa, v1, v2, ...".
std::string task_names();
/// nullptr when there is none of this name.
const Task* find_task(std::string_view name);
/// Throws OptionError when a tensor of the contract is missing or has other axes than the contract says.
void check_probe(const Task& task, const Probe& probe);

// tasks/*.cc, in the ladder's order.
std::vector<Task> function_tasks();  ///< sdpa, causal
std::vector<Task> layer_tasks();     ///< v1..v4, self-attention, single-head, mha, gqa, cross
Task cache_task();
Task rope_task();
Task flash_task();
Task linear_task();
Task backward_task();
Task dropout_task();
Task lm_task();

}  // namespace qkv::judge

// A task: what is asked for (its contract), its probes, its textbook.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "judge/textbook.h"

namespace qkv::judge {

/// B, L, M, E, H, Hkv, d of a judgement. The defaults are all different, E is no square, d is not 4: nothing coincides
/// by chance.
struct Sizes {
  Index batch = 2, length = 5, memory = 7, embed = 18, heads = 3, kv_heads = 3, head_dim = 6;
  Index hidden = 22;  ///< of a block
};

/// A tensor of a probe with its axes, in letters of which one stands for one size: "B H T d".
struct Argument {
  std::string_view name, axes;
  bool optional = false;
  std::string_view below = {};  ///< whole numbers from 0 to this size - 1: "V"
};

/// A formula, the part of it that a term is about, and where one reads about it: commands, and pages of docs/.
struct Formula {
  std::string_view whole, part, read;
};

/// A section of tasks.txt, which says what its lines are.
struct Task {
  std::string_view name, title, teaches, article = "none", path;  ///< path: the part of the path that it belongs to
  std::vector<std::string_view> functions, returns, classes;      ///< the contract's names and what they return
  std::vector<Argument> arguments;
  std::vector<std::string_view> parts;
  Sizes sizes;
  std::map<std::string_view, Index> letters;  ///< sizes that are this task's alone
  Textbook textbook;
  std::vector<std::string_view> probe_lines;  ///< probes that are written in tasks.txt
  std::vector<std::string_view> answers;

  bool has(std::string_view part) const;
  bool takes(std::string_view argument) const;
  std::string size_names() const;  ///< "batch, length, embed": those that its tensors have; "": none
  Formula formula(std::string_view term) const;
  std::vector<Probe> probes(const Sizes& sizes, std::uint64_t seed) const;
};

/// The ladder, in order.
const std::vector<Task>& tasks();
/// "sdpa, v1, v2, ...".
std::string task_names();
/// Of a word of Argument::axes, "3E", "B", "4": 3 and E, 1 and B, 4 and nothing.
std::pair<Index, std::string_view> cut_axis(std::string_view word);
/// nullptr when there is none of this name.
const Task* find_task(std::string_view name);
/// Throws OptionError when a tensor of the contract is missing or has other axes than the contract says, or where
/// metadata do not fit.
void check_probe(const Task& task, const Probe& probe);

}  // namespace qkv::judge

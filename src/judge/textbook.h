// A textbook: attention in named steps over named arrays, and edits of it. A mistake or a convention is a list of
// edits; two mistakes together are both lists.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "judge/array.h"
#include "qkv/state_dict.h"

namespace qkv::judge {

using Arrays = std::map<std::string, Array, std::less<>>;
/// By names that formulas use all the time.
struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
};
template <class T> using ByName = std::unordered_map<std::string, T, NameHash, std::equal_to<>>;
using Metadata = std::map<std::string, std::string>;
/// Empty when it is not there.
std::string value_of(const Metadata& metadata, const std::string& key);

/// Inputs and parameters of one call, by the names of the task's contract.
struct Probe {
  Arrays inputs;
  Metadata metadata;

  bool has(std::string_view name) const { return inputs.find(name) != inputs.end(); }
  const Array& at(std::string_view name) const;  ///< throws OptionError that names what is missing
  Index count() const;                           ///< of numbers, in all inputs
  std::string text(const std::string& key) const { return value_of(metadata, key); }
  double number(const std::string& key, double otherwise = 0) const;
  bool call(std::string_view name) const { return text("call") == name; }
};

Probe to_probe(const StateDict& state);
StateDict to_state(const Probe& probe);  ///< a mask as bool
Array to_array(const AnyTensor& tensor);
AnyTensor to_tensor(const Array& array);

/// The memory of the steps: the arrays, of which `heads`, `kv_heads`, `causal`, `round` and `rounds` are numbers. A
/// textbook is run `rounds` times over the same arrays: calls of a cache, tiles of flash, steps of training.
struct Work {
  const Probe& probe;
  ByName<Array> arrays;
  const Work* frozen = nullptr;  ///< the same before a parameter was moved: what a detached array keeps (gradients)

  explicit Work(const Probe& p);
  Array& operator[](std::string_view name);  ///< made when it is not there
  const Array& at(std::string_view name) const;
  bool has(std::string_view name) const { return arrays.find(name) != arrays.end(); }
};

using Step = std::function<void(Work&)>;

struct Stage {
  std::string name;
  Step step;
  std::function<bool(Work&)> only = {};       ///< where it is left out, and what edits made of it
  std::vector<Step> before = {}, after = {};  ///< of edits: they stay where another edit replaces the step
};
/// What stands before it, itself, what stands behind it.
void run(const Stage& stage, Work& work);
using Textbook = std::vector<Stage>;
/// A textbook of text/textbooks.txt.
const Textbook& textbook_called(std::string_view name);

enum class Where { kBefore, kInstead, kAfter };

struct Edit {
  Where where;
  std::string stage;
  Step step;
};
using Edits = std::vector<Edit>;

/// Whether the textbook has every stage that the edits name.
bool fits(const Textbook& textbook, const Edits& edits);
void apply(Stage& stage, const Edit& edit);
/// The textbook with `edits`, in their order. Precondition: fits.
Textbook edited(Textbook textbook, const Edits& edits);
/// Runs every step, in every round.
Work run(const Textbook& textbook, const Probe& probe, const Work* frozen = nullptr);

}  // namespace qkv::judge

// The ladder: every task in order, and whether a probe is one of a task.
#include <algorithm>
#include <iterator>
#include <map>

#include "judge/judge.h"
#include "judge/task.h"
#include "qkv/error.h"

namespace qkv::judge {

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = [] {
    std::vector<Task> functions = function_tasks(), layers = layer_tasks(), out;
    const auto move = [&out](std::vector<Task>& from, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < std::min(end, from.size()); ++i) out.push_back(std::move(from[i]));
    };
    move(functions, 0, 1);           // sdpa
    move(layers, 0, 6);              // v1 v2 v3 v4 self-attention single-head
    move(functions, 1, 2);           // causal
    move(layers, 6, layers.size());  // mha gqa cross
    for (Task (*task)() : {cache_task, rope_task, flash_task, linear_task, backward_task, dropout_task, lm_task}) {
      out.push_back(task());
    }
    return out;
  }();
  return all;
}

const Task* find_task(std::string_view name) {
  const auto found = std::ranges::find(tasks(), name, &Task::name);
  return found == tasks().end() ? nullptr : &*found;
}

bool Task::has(std::string_view part) const { return std::ranges::find(parts, part) != parts.end(); }

namespace {
/// The size that a word of Argument::axes stands for: a number, a letter, or a number times a letter ("3E").
bool axis_fits(std::string_view word, Index size, std::map<std::string, Index, std::less<>>& letters) {
  Index factor = 0;
  std::size_t digits = 0;
  for (; digits < word.size() && word[digits] >= '0' && word[digits] <= '9'; ++digits)
    factor = factor * 10 + (word[digits] - '0');
  if (digits == word.size()) return size == factor;
  if (digits > 0 && size % factor != 0) return false;
  const Index value = digits > 0 ? size / factor : size;
  return letters.emplace(std::string(word.substr(digits)), value).first->second == value;
}
}  // namespace

void check_probe(const Task& task, const Probe& probe) {
  std::map<std::string, Index, std::less<>> letters;
  for (const Argument& argument : task.arguments) {
    if (!probe.has(argument.name)) {
      if (argument.optional) continue;
      throw OptionError("[judge] a probe of " + std::string(task.name) + " lacks the tensor '" + std::string(argument.name) +
                        "'");
    }
    const Shape& shape = probe.at(argument.name).shape;
    std::size_t axis = 0, begin = 0;
    bool fits = true;
    for (const std::string_view axes = argument.axes; begin < axes.size(); ++axis) {
      const std::size_t end = std::min(axes.find(' ', begin), axes.size());
      fits = fits && axis < shape.size() && axis_fits(axes.substr(begin, end - begin), shape[axis], letters);
      begin = end + 1;
    }
    if (!fits || axis != shape.size()) {
      throw OptionError("[judge] '" + std::string(argument.name) + "' of a probe of " + std::string(task.name) + " must be [" +
                        std::string(argument.axes) + "]: got " + shape_text(shape.data(), static_cast<int>(shape.size())));
    }
  }
  const Index heads = probe.integer("heads", 1), kv_heads = probe.integer("kv_heads", heads);
  const auto divides = [&letters](Index n, const char* letter) {
    const auto found = letters.find(letter);
    return n > 0 && (found == letters.end() || found->second % n == 0);
  };
  const bool given = letters.count("H") == 0 || letters["H"] == heads;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || !divides(heads, "P") || !divides(kv_heads, "G") || !given) {
    throw OptionError("[judge] heads " + probe.text("heads") + " and kv_heads " + probe.text("kv_heads") +
                      " do not fit the probe's tensors");
  }
}

std::string task_names() {
  std::string names;
  for (const Task& task : tasks()) names.append(names.empty() ? "" : ", ").append(task.name);
  return names;
}

Sizes default_sizes(std::string_view task) {
  const Task* found = find_task(task);
  if (found == nullptr) throw OptionError("[judge] unknown task '" + std::string(task) + "'; `qkv practice` lists them");
  return found->sizes;
}

std::vector<StateDict> make_probes(std::string_view task, const Sizes& sizes, std::uint64_t seed, const Owner& owner) {
  default_sizes(task);  // throws for an unknown one
  std::vector<StateDict> out;
  for (Probe& probe : find_task(task)->probes(sizes, seed)) {
    if (owner.causal) probe.metadata["causal"] = "1";
    if (owner.dropout && (probe.call("training") || probe.call("evaluation")))
      probe.metadata["dropout"] = std::to_string(*owner.dropout);
    if (!owner.output) probe.metadata["without"] = "output";
    for (auto& [name, array] : probe.inputs) {
      if (name.starts_with("b_") && std::ranges::find(owner.absent, name) != owner.absent.end()) array = Array(array.shape);
    }
    StateDict state;
    state.metadata = probe.metadata;
    for (const auto& [name, array] : probe.inputs) {
      if (name != "mask") {
        state.add(name, to_tensor(array));
        continue;
      }
      Tensor<std::uint8_t> mask(array.shape);
      for (Index i = 0; i < array.count(); ++i) mask.data()[i] = array[i].value != 0;
      AnyTensor tensor = any_tensor(mask);
      tensor.dtype = DType::kBool;
      state.add(name, std::move(tensor));
    }
    out.push_back(std::move(state));
  }
  return out;
}

}  // namespace qkv::judge

#include "qkv/lm/task.h"

#include <array>

#include "core/check.h"

namespace qkv::inline v0::lm {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";

// docs/cli/train.md says what was tried for induction.
const std::array<Task, 5> kTasks{{{.name = "text", .letters = {}, .config = {}},
    {.name = "previous", .letters = {}, .config = {}}, {.name = "same", .letters = kLetters, .config = {}},
    {.name = "induction",
        .letters = kLetters,
        .config = {.context = 24, .num_layers = 2, .blocks = true, .positions = PositionKind::kRotary},
        .batch = 16,
        .steps = 300,
        .rate = 6e-3},
    {.name = "masked", .letters = {}, .config = {.causal = false}}}};

}  // namespace

std::span<const Task> tasks() { return kTasks; }

const Task& task_named(std::string_view name, const char* function, std::string_view what) {
  std::string names;
  for (const Task& task : kTasks) {
    if (task.name == name) return task;
    names += (names.empty() ? "" : &task == &kTasks.back() ? " or " : ", ") + std::string(task.name);
  }
  fail<OptionError>(function, what, " must be ", names, ": got \"", name.substr(0, 40), "\"");
}

BatchSource Task::batches(std::vector<Index> ids, Index characters, BatchShape shape, std::uint64_t seed) const {
  if (name == "previous") return BatchSource::previous(characters, shape, seed);
  if (name == "same") return BatchSource::same(characters, shape, seed);
  if (name == "induction") return BatchSource::induction(characters, shape, seed);
  if (name == "masked") return BatchSource::masked(std::move(ids), characters, shape, seed);
  return BatchSource::windows(std::move(ids), shape, seed);
}

}  // namespace qkv::inline v0::lm

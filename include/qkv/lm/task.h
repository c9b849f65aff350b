// What the toy model can learn, by name: the batches of each task, and sizes with which it is learned in seconds.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "qkv/export.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/lm/data.h"

namespace qkv::inline v0::lm {

struct QKV_API Task {
  std::string_view name;     ///< "text", "previous", "same", "induction" or "masked"
  std::string_view letters;  ///< a text of its characters, where the caller has none; empty: default_text()
  AttentionLMConfig config;  ///< vocab_size is left to the characters
  Index batch = 32, steps = 800;
  double rate = 3e-3;

  /// Ids of a model that knows `characters`.
  Index vocab_size(Index characters) const { return characters + (name == "masked" ? 1 : 0); }
  /// Batches of a text's ids; those of random characters have `characters` of them.
  BatchSource batches(std::vector<Index> ids, Index characters, BatchShape shape, std::uint64_t seed) const;
};

QKV_API std::span<const Task> tasks();
/// Throws OptionError in the name of `function`, "WHAT must be ...", for a name that is none of them.
QKV_API const Task& task_named(std::string_view name, const char* function, std::string_view what = "task");

}  // namespace qkv::inline v0::lm

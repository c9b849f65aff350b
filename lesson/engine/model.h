// The model that the page trains: at most one at a time.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "qkv/lm/task.h"
#include "qkv/lm/trainer.h"

namespace qkv::inline v0::lesson {

struct Moment {
  std::vector<float> parameters;
  lm::AdamState adam;
};

struct Model {
  const lm::Task* task;
  lm::CharTokenizer tokenizer;
  lm::AttentionLM lm;
  lm::BatchSource source;
  std::string text;  ///< what it learns; the task's letters where there is none
  bool own_text;
  std::uint64_t seed;
  double rate;
  std::unique_ptr<lm::Trainer> trainer = {};
  std::map<int, Moment> moments = {};
};

/// Throws OptionError, in the name of `function`, before the first lesson_start.
Model& model(const char* function);

/// From pairs of (layer, head).
lm::HeadSet heads_of(const int* pairs, int count);

}  // namespace qkv::inline v0::lesson

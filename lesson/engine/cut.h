// Heads left out of a model for as long as this lives: their columns of the output projections are 0.
#pragma once

#include <vector>

#include "lesson/engine/model.h"

namespace qkv::inline v0::lesson {

class Cut {
 public:
  /// pairs: `count` of (layer, head).
  Cut(lm::AttentionLM& model, const int* pairs, int count);
  ~Cut();
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

 private:
  struct Kept {
    float* at;
    float value;
  };
  std::vector<Kept> kept_;
};

}  // namespace qkv::inline v0::lesson

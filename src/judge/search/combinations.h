// Sets of mistakes that explain one case, by depth-first search over the textbook's stages: all sets that begin alike
// share what the stages before their next mistake computed.
#pragma once

#include <functional>
#include <vector>

#include "judge/search/search.h"

namespace qkv::judge {

class Combinations {
 public:
  /// Of mistakes that are not fitted, on a textbook.
  Combinations(Textbook textbook, const std::vector<const Entry*>& mistakes, const Case& one);

  /// Every set of `size` whose mistakes are of different groups, in each order in which two of them edit one stage;
  /// until `found` says that it has enough.
  void each_of(std::size_t size, const std::function<bool(const Choices&)>& found);

  std::size_t ends = 0;  ///< sets that were computed to their end

 private:
  struct Alternative {
    Choice choice;
    Edits edits;
    std::vector<std::size_t> at;  ///< the stage of each edit
    std::size_t first = 0;
  };
  using Chosen = std::vector<const Alternative*>;

  static bool joins(const Alternative& later, const Alternative& earlier);
  void from(std::size_t stage, const Work& before, const Chosen& chosen, std::size_t left);
  bool step(std::size_t stage, Work& work, const Chosen& chosen) const;
  void end(Work& work, const Chosen& chosen);

  Textbook textbook_;
  const Case& one_;
  std::vector<Alternative> alternatives_;
  std::vector<Chosen> begins_;  ///< alternatives by the first stage that they edit
  const std::function<bool(const Choices&)>* found_ = nullptr;
  bool enough_ = false;
};

}  // namespace qkv::judge

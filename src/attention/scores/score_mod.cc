// The one function of ScoreMod that the user does not write.
#include "qkv/score_mod.h"

namespace qkv::inline v0 {

ScoreMod::~ScoreMod() = default;

}  // namespace qkv::inline v0

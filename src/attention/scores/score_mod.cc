// The one function of ScoreMod that is not the user's.
#include "qkv/score_mod.h"

namespace qkv {
inline namespace v0 {

ScoreMod::~ScoreMod() = default;

}  // namespace v0
}  // namespace qkv

#include "train/sequence_part.h"

namespace qkv::cli {

TokensOfRank::TokensOfRank(dist::Transport& transport, const dist::ContextParallelOptions& cut, Index length, Context& context)
    : attention_(transport, cut, context) {
  for (const dist::Rows& rows : attention_.rows(length)) {
    for (Index i = rows.begin; i < rows.end; ++i) positions_.push_back(i);
  }
}

}  // namespace qkv::cli

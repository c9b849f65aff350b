// Attention on arrays of any type: the only functions of dist that know element types.
#pragma once

#include <functional>

#include "dist/arrays.h"

namespace qkv::inline v0::dist {

/// out and lse of q, k, v; lse may be null.
void compute_forward(const Array& q, const Array& k, const Array& v, const Array& out, const Array& lse,
    const AttentionOptions& options, Context& context);
void compute_backward(const Array& q, const Array& k, const Array& v, const Array& out, const Array& lse,
    const Array& dout, const Gradients& gradients, const AttentionOptions& options, Context& context);

/// Keys from `begin` on of some heads; v is null where only rows' maxima are computed.
struct ArrivedKeys {
  Array k, v;
  Index begin = 0;
};
/// All keys of some heads.
struct AllKeys {
  Index heads, length, v_head_dim;
};
/// Queries whose keys arrive: `many` times, in chunks that attention/plan/carried.h allows, or all at once.
struct ForwardPiece {
  std::function<void(const ArrivedKeys&)> add;
  std::function<bool()> finish;  ///< true: all keys are needed once more
};
struct BackwardPiece {
  std::function<void(const ArrivedKeys&)> add_maxima;
  std::function<void()> end_maxima;
  std::function<void(const ArrivedKeys&, const Array& dk, const Array& dv, const Gradients& shared)> add;
};
ForwardPiece forward_piece(bool many, const Array& q, const AllKeys& keys, const Array& out, const Array& lse,
    const AttentionOptions& options, Context& context);
BackwardPiece backward_piece(bool many, const Array& q, const AllKeys& keys, const Array& out, const Array& lse,
    const Array& dout, const Gradients& wanted, const AttentionOptions& options, Context& context);

/// Whether a call of these sizes, of whose queries q has some, can be computed chunk by chunk. In forward few queries
/// over many keys, which decode computes, and the mean over all values that EmptyRow::kMean writes, need all at once;
/// in forward and backward so do keys that are read by lists (Mask::keys).
bool takes_chunks(bool backward, const Array& q, const AllKeys& keys, Index queries, const AttentionOptions& options,
    Context& context);
/// A chunk begins, and all but the last end, at a multiple of this many keys.
Index chunk_step(Type type, Index head_dim, Index v_head_dim, const AttentionOptions& options, const Context& context);
/// Whether backward in chunks needs the keys of these rows twice.
bool needs_maxima(const Array& lse);

}  // namespace qkv::inline v0::dist

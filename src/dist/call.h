// One call of ContextParallel: checked, agreed on with the other ranks, lengths known.
#pragma once

#include <functional>

#include "attention/plan/carried.h"
#include "dist/exchange.h"
#include "qkv/dist/agree.h"

namespace qkv::inline v0::dist {

/// Inputs of forward and backward, and forward's outputs, local.
struct Tensors {
  AnyView q, k, v, out, lse, dout;
};

struct ParallelCall {
  const char* function;
  Transport& transport;
  const ContextParallelOptions& cut;
  Context& context;
  const AttentionOptions& options;
  Tensors x;
  Sequence queries = {}, keys = {};
  std::vector<std::vector<Rows>> needed = {};  // by rank: the keys that its queries may attend

  std::size_t rank() const { return static_cast<std::size_t>(transport.rank()); }
  bool invariant() const { return is_invariant(context, options.bits); }
  Index group() const { return x.q.sizes[1] / x.k.sizes[1]; }
  const std::vector<Rows>& my_queries() const { return queries.of_rank[rank()]; }
  const std::vector<Rows>& my_keys() const { return keys.of_rank[rank()]; }

  /// All keys, of some heads.
  KeySizes sizes_of_keys(Index heads) const { return {heads, keys.length, x.v.size(3)}; }
  /// ShapeError unless x, called `name`, is [B, H, Tq_local].
  void check_row_numbers(const char* name, const AnyView& x) const;
  /// Collective: `checks` throws where this rank's arguments are wrong; then every rank throws. `claims` are the
  /// method's own.
  void agree(std::vector<Claim> claims, const std::function<void()>& checks);
  /// The options of some of all queries and of q's heads from first_head on.
  AttentionOptions options_at(const Rows& rows, Index first_head) const {
    AttentionOptions some = options;
    some.part = {rows.begin, queries.length, first_head, x.q.sizes[1]};
    return some;
  }

 private:
  void check_rows() const;
  void share_lengths();
  std::vector<Rows> keys_of(const std::vector<Rows>& rows) const;
  Sequence sequence_of(const char* name, const std::vector<std::vector<Index>>& lengths, std::size_t which) const;
};

/// Heads of q and its like that read key/value heads [first, first + count).
inline AnyView query_heads(const ParallelCall& call, const AnyView& x, Index first, Index count) {
  return sliced(x, 1, first * call.group(), (first + count) * call.group());
}

/// Gradients that all ranks have a share of: dbias, dsinks, dposition_bias. This rank's shares, while they are computed
/// piece by piece.
class RankShares {
 public:
  /// Of what is wanted; refers to it.
  explicit RankShares(const Gradients& wanted);

  bool any() const;
  /// compute(gradients with outputs of a piece's shares), which are added.
  void add(Gradients gradients, const std::function<void(const Gradients&)>& compute);
  /// Collective: sums over ranks, into what is wanted.
  void finish(Transport& transport);

 private:
  static constexpr AnyView Gradients::*kShared[] = {&Gradients::dbias, &Gradients::dsinks, &Gradients::dposition_bias};

  const Gradients& wanted_;
  std::array<Buffer, 3> sums_;  // of kShared; empty where not wanted
};

/// The methods. Keys are brought to queries: all-gather, the ring. Rows are exchanged for heads: Ulysses.
void forward_by_keys(const ParallelCall& call);
void backward_by_keys(const ParallelCall& call, const Gradients& gradients);
void forward_by_heads(const ParallelCall& call);
void backward_by_heads(const ParallelCall& call, const Gradients& gradients);

}  // namespace qkv::inline v0::dist

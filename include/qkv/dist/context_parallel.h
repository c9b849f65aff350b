// Attention over a sequence that is cut over ranks: every rank passes its own rows of q, k and v and gets its own rows
// of out, with the bits that one machine gives wherever the order of sums allows it. docs/concepts/parallel.md says who
// sends what and which bits are equal. Gradients of biases, sinks and position biases are sums over ranks, the same on
// every rank.
#pragma once

#include <vector>

#include "qkv/attention.h"
#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

/// The rows that a rank holds.
enum class Layout {
  kContiguous,  ///< rank r holds the r-th of P pieces
  kZigZag,  ///< pieces r and 2 P - 1 - r of 2 P, ContextParallelOptions::turns times: under a causal mask the same work
            ///< for all
};

enum class Method {
  kAllGather,  ///< every rank gets all of k and v, and computes its own queries
  kUlysses,    ///< rows are exchanged for heads, P must divide Hkv. Jacobs 2023 (arXiv:2309.14509)
  kRing  ///< keys pass from neighbour to neighbour; but for the order Liu, Zaharia, Abbeel 2023 (arXiv:2310.01889)
};

struct ContextParallelOptions {
  Layout layout = Layout::kContiguous;
  Method method = Method::kAllGather;
  /// Rows are assigned in blocks of this many, at least 1. The default fits every instruction set; with other numbers
  /// rows at the cuts cost a copy (AttentionOptions::part). 1 is as even as possible.
  Index block = 32;
  /// Of kZigZag: how often pieces are assigned to the ranks, there and back, at least 1: 2 P turns pieces. Ranks that
  /// wait for each other's work (those with a chunk, below) wait less with more (docs/concepts/parallel.md), but each
  /// piece is computed by itself: it should keep a thousand rows.
  Index turns = 1;
  /// Keys per message, rounded down to a multiple that the kernels take, at least one: a rank holds two such chunks of
  /// a key/value head beside its own rows; whole heads where few queries are decoded, empty rows are a mean, or keys
  /// are read by lists. 0: 4,096 in a ring; all of a head by all-gather, where ranks then do not wait for each other's
  /// work. Ulysses computes whole heads: 0.
  Index chunk = 0;
};

/// Rows [begin, end) of the whole sequence.
struct Rows {
  Index begin = 0, end = 0;
  Index count() const { return end - begin; }
  friend bool operator==(const Rows&, const Rows&) = default;
};

/// The rows of `length` that rank `rank` of `ranks` holds, in ascending order; none where there are more ranks than
/// blocks. Throws OptionError for negative lengths, no such rank, a block or turns below 1.
QKV_API std::vector<Rows> rows_of_rank(const ContextParallelOptions& cut, Index length, int rank, int ranks);

/// One rank's end. All ranks make one with the same options and call the same functions in the same order; a rank whose
/// shapes, numbers among the options, version or instruction set differ is a MismatchError with the same text on every
/// rank, before anything is computed (agree.h). Not compared, so it must be the same: numbers inside masks, biases and
/// sinks, the kind of a position bias, callbacks. H and Hkv may not be 0. Errors: MismatchError, TransportError,
/// OptionError (part), and those of attention_forward and attention_backward.
///
/// Tensors are those of attention.h with local rows: rows(T) one after the other. Biases, masks, sinks and
/// AttentionOptions::part are of the whole problem; `part` must be left alone, captures are not supported
/// (UnsupportedError). dbias, dsinks and dposition_bias have the sizes of the whole and are complete on every rank.
class QKV_API ContextParallel {
 public:
  /// Refers to both.
  explicit ContextParallel(
      Transport& transport, ContextParallelOptions options = {}, Context& context = Context::default_context());

  /// The rows of a sequence of `length` that this rank holds, in the order in which its tensors hold them.
  std::vector<Rows> rows(Index length) const;

  /// out and lse of this rank's queries, as attention_forward; lse may be null. It gives no weights.
  template <Operand Q> void forward(
      const Q& q, In<Q, 4> k, In<Q, 4> v, Out<Q, 4> out, SumsOut<Q, 3> lse, const AttentionOptions& options = {}) {
    run_forward(In<Q, 4>(q), k, v, out, lse, options);
  }
  /// Gradients of this rank's rows, as attention_backward; out and lse are those that forward gave. UnsupportedError
  /// for lse_low.
  template <Operand Q> void backward(const Q& q, In<Q, 4> k, In<Q, 4> v, In<Q, 4> out, SumsIn<Q, 3> lse, In<Q, 4> dout,
      const AttentionGradients<ElementOf<Q>>& gradients, const AttentionOptions& options = {}) {
    run_backward(In<Q, 4>(q), k, v, out, lse, dout, qkv::detail::any(gradients), options);
  }

 private:
  void run_forward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out, const AnyView& lse,
      const AttentionOptions& options);
  void run_backward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out, const AnyView& lse,
      const AnyView& dout, const qkv::detail::AnyGradients& gradients, const AttentionOptions& options);

  Transport& transport_;
  ContextParallelOptions options_;
  Context& context_;
};

}  // namespace qkv::inline v0::dist

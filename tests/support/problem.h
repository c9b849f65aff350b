// The tensors of a case: inputs in the case's layout, the options for the library, and the same inputs and options for
// the reference.
#pragma once

#include <array>

#include "qkv/attention.h"
#include "support/cases/cases.h"
#include "support/random.h"

namespace qkv::test {

/// The reference's inputs, in the type C of its arithmetic.
template <class C> struct ReferenceInput {
  Tensor<C> q, k, v, dout, bias;  // [B,H,Tq,D] [B,Hkv,Tk,D] [B,Hkv,Tk,Dv] [B,H,Tq,Dv], bias under its own sizes
  Tensor<C> dlse;                 // [B,H,Tq]
  reference::Options<C> options;
  Tensor<C> sinks{}, position_table{};  // [H], [rows, H]
  ModKind mod = ModKind::kNone;

  reference::Forward<C> forward() const { return reference::attention_forward<C>(q, k, v, options); }
  reference::Backward<C> backward() const { return backward(forward()); }
  reference::Backward<C> backward(const reference::Forward<C>& forward) const {
    return reference::attention_backward<C>(q, k, v, dout, dlse, options, forward);
  }
};

template <class T> struct Problem {
  using Sum = Accumulator<T>;
  AttentionCase c;
  MaskCase mask;
  Triple<T> qkv;
  Stored<T> dout;    // [B, H, Tq, Dv]
  Tensor<Sum> dlse;  // [B, H, Tq]
  Tensor<Sum> bias_memory;
  View<Sum, 4> bias;                  // null: none
  Tensor<Sum> sinks, position_table;  // [H], [rows, H]; without data: none
  AttentionOptions options;

  View<T, 4> q() const { return qkv.views[0]; }
  View<T, 4> k() const { return qkv.views[1]; }
  View<T, 4> v() const { return qkv.views[2]; }

  explicit Problem(const AttentionCase& attention_case);
  ~Problem();

  /// May (b, h, i, j) be attended, bias and all?
  bool kept(Index b, Index h, Index i, Index j) const;

  /// C is Accumulator<T> or Wider<T> (bounds.h).
  template <class C> ReferenceInput<C> reference_input() const;

 private:
  std::array<typename View<T, 4>::Sizes, 3> sizes() const;

  static void fill(const View<T, 4>& view, Random& random, double amplitude);

  /// Brings |scale * q.k| to about 1e4: q.k of two uniform vectors is about 0.75 * sqrt(D).
  double huge_factor() const;

  /// q[i] = a multiple of k[i mod Tk], so that query i meets one key with a score of about +-60.
  void make_one_hot();

  Sum bias_at(Index b, Index h, Index i, Index j) const;

  void make_modifiers();

  void make_bias(Random& random);

  /// NaN and infinities into every key and value that no kept pair of its group reads.
  void poison(Random& random);
};

/// The library's results, each in the case's layout between sentinels.
template <class T> struct Result {
  using Sum = Accumulator<T>;
  Stored<T> out;
  Tensor<Sum> lse, weights;
  Triple<T> gradients;  // dq, dk, dv
  Tensor<Sum> dbias, dsinks, dposition;

  explicit Result(const Problem<T>& problem);
  ~Result();

  bool sentinels_intact() const;

  void run_forward(const Problem<T>& problem, Context& context);
  void run_weights(const Problem<T>& problem, Context& context);
  /// Needs run_forward() before.
  void run_backward(const Problem<T>& problem, Context& context, bool accumulate = false);
  void run(const Problem<T>& problem, Context& context);
};

}  // namespace qkv::test

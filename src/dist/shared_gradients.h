// Gradients that all ranks have a share of: dbias, dsinks, dposition_bias. Not: those of rows (context_parallel.cc).
#pragma once

#include "qkv/attention.h"
#include "qkv/dist/reduce.h"
#include "qkv/tensor.h"

namespace qkv::inline v0::dist {

/// This rank's shares, while they are computed piece by piece.
template <class T>
class RankShares {
 public:
  using Sum = Accumulator<T>;

  /// Of what is wanted; refers to it.
  explicit RankShares(const AttentionGradients<T>& wanted) : wanted_(wanted) {
    bias_ = sum_of(wanted.dbias);
    sinks_ = sum_of(wanted.dsinks);
    position_ = sum_of(wanted.dposition_bias);
  }

  bool any() const { return bias_.count() + sinks_.count() + position_.count() > 0; }

  /// compute(gradients with these outputs) adds a piece's shares.
  template <class Compute>
  void add(AttentionGradients<T> gradients, const Compute& compute) {
    RankShares piece(wanted_);
    if (!wanted_.dbias.is_null()) gradients.dbias = piece.bias_;
    if (!wanted_.dsinks.is_null()) gradients.dsinks = piece.sinks_;
    if (!wanted_.dposition_bias.is_null()) gradients.dposition_bias = piece.position_;
    compute(gradients);
    for (const auto tensor : {&RankShares::bias_, &RankShares::sinks_, &RankShares::position_}) {
      for (Index n = 0; n < (this->*tensor).count(); ++n) (this->*tensor).data()[n] += (piece.*tensor).data()[n];
    }
  }

  /// Collective: sums over ranks, into what is wanted.
  void finish(Transport& transport) {
    for (Tensor<Sum>* tensor : {&bias_, &sinks_, &position_}) {
      if (tensor->count() > 0) reduce_sum(transport, tensor->span());
    }
    const Sum* from = bias_.data();
    const View<Sum, 4>& dbias = wanted_.dbias;
    for (Index b = 0; b < dbias.size(0); ++b) {
      for (Index h = 0; h < dbias.size(1); ++h) {
        for (Index i = 0; i < dbias.size(2); ++i) {
          for (Index j = 0; j < dbias.size(3); ++j) set(dbias(b, h, i, j), *from++);
        }
      }
    }
    for (Index h = 0; h < wanted_.dsinks.size(0); ++h) set(wanted_.dsinks(h), sinks_.data()[h]);
    from = position_.data();
    for (Index row = 0; row < wanted_.dposition_bias.size(0); ++row) {
      for (Index h = 0; h < wanted_.dposition_bias.size(1); ++h) set(wanted_.dposition_bias(row, h), *from++);
    }
  }

 private:
  template <int kRank>
  static Tensor<Sum> sum_of(const View<Sum, kRank>& view) {
    if (view.is_null()) return {};
    return Tensor<Sum>(std::vector<Index>(view.sizes().begin(), view.sizes().end()));
  }
  void set(Sum& to, Sum sum) const { to = wanted_.accumulate ? to + sum : sum; }

  const AttentionGradients<T>& wanted_;
  Tensor<Sum> bias_, sinks_, position_;
};

}  // namespace qkv::inline v0::dist

#include "support/checks/magnitude.h"

#include <cmath>
#include <vector>

namespace qkv::test {

namespace {

template <class C> class MagnitudeMaker {
 public:
  MagnitudeMaker(const ReferenceInput<C>& input, const reference::Forward<C>& exact, bool gradients)
      : input_(input),
        gradients_(gradients),
        q_(input.q),
        k_(input.k),
        v_(input.v),
        dout_(input.dout),
        weights_(exact.weights),
        dlse_(input.dlse),
        lse_(exact.lse),
        scale_(input.options.scale.value_or(1 / std::sqrt(static_cast<double>(input.q.size(3))))),
        a_{Tensor<double>(exact.out.sizes()), Tensor<double>(exact.lse.sizes()), Tensor<double>(exact.weights.sizes()),
            Tensor<double>(input.q.sizes()), Tensor<double>(input.k.sizes()), Tensor<double>(input.v.sizes()),
            Tensor<double>(exact.weights.sizes())} {
    if (input.sinks.data() != nullptr) a_.dsinks = Tensor<double>(input.sinks.sizes());
    if (input.position_table.data() != nullptr) a_.dposition = Tensor<double>(input.position_table.sizes());
  }

  Magnitude make() && {
    for_each_index(q_.sizes(), [&](Index b, Index h, Index i) { row(b, h, i); });
    return std::move(a_);
  }

 private:
  /// How far one score, and the slope of its soft cap, may move, in units of eps.
  struct Score {
    double value;  // slope * chain * |scale| |q||k| + |softcap(x)| + |bias|; with a callback |mod'| times that + |mod|
    double slope;  // 1 + tanh^2 instead of 1 - tanh^2, and what an error of x does to it
    double mod_slope = 1;  // |mod'|, and what an error of what it is taken at does to it
  };

  Score score(Index b, Index h, Index i, Index g, Index j) const {
    const double cap = input_.options.softcap, terms = chain_ * std::abs(scale_) * absolute_dot(q_, b, h, i, k_, g, j);
    const double bias = bias_of(input_.options.bias, b, h, i, j);
    double added = std::abs(bias);
    double position = 0;
    if (!input_.options.position_table.is_null()) {
      position = input_.options.position_factor(i, j) *
                 static_cast<double>(input_.options.position_table(input_.options.position_row(i, j), h));
    }
    added += std::abs(position);
    double x = 0;  // softcap and callback ask for it
    for (Index n = 0; (cap != 0 || input_.mod != ModKind::kNone) && n < q_.size(3); ++n)
      x += scale_ * static_cast<double>(q_(b, h, i, n) * k_(b, g, j, n));
    const double tanh = cap == 0 ? 0 : std::tanh(x / cap), slope = 1 - tanh * tanh;
    Score score{slope * terms + std::abs(cap * tanh) + added, 1};
    if (cap != 0) score.slope = 1 + tanh * tanh + std::abs(tanh) * slope * terms / cap;
    if (input_.mod == ModKind::kNone) return score;
    const double biased = (cap == 0 ? x : cap * tanh) + position + bias;
    const double mod_slope_at = std::abs(mod_slope(input_.mod, biased, h, i, j));
    score.mod_slope = mod_slope_at + mod_curvature(input_.mod, biased) * score.value;
    score.value = mod_slope_at * score.value + std::abs(mod_value(input_.mod, biased, b, h, i, j));
    return score;
  }

  void row(Index b, Index h, Index i) {
    const View<double, 4> out = a_.out, weights = a_.weights, dv = a_.dv;
    const View<double, 3> lse = a_.lse;
    const Index g = h / (q_.size(1) / k_.size(1)), kv_len = k_.size(2);
    const bool empty = lse_(b, h, i) == -static_cast<C>(HUGE_VAL);
    const double row_lse = empty ? 0 : std::abs(static_cast<double>(lse_(b, h, i)));
    std::vector<Score> scores(static_cast<std::size_t>(kv_len), Score{0, 1});
    double mean = 0;  // sum_j w S
    for (Index j = 0; j < kv_len; ++j) {
      const double w = static_cast<double>(weights_(b, h, i, j));
      if (w == 0 || empty) continue;  // not kept, or so small that nothing of it shows
      scores[static_cast<std::size_t>(j)] = score(b, h, i, g, j);
      mean += w * scores[static_cast<std::size_t>(j)].value;
    }
    if (input_.sinks.data() != nullptr && !empty) {
      const double sink = static_cast<double>(input_.options.sinks(h));
      const double w = std::exp(sink - static_cast<double>(lse_(b, h, i)));
      if (w > 0) mean += w * std::abs(sink);
      sink_weight_ = w == 0 ? 0 : w * (1 + (std::abs(sink) + mean) / 4);
    }
    lse(b, h, i) = mean + row_lse;
    for (Index j = 0; j < kv_len; ++j) {
      const double w = static_cast<double>(weights_(b, h, i, j));
      if (w == 0) continue;
      weights(b, h, i, j) = w * (1 + (scores[static_cast<std::size_t>(j)].value + mean) / 4);
      const double applied = factor(b, h, i, j) * weights(b, h, i, j);
      for (Index n = 0; n < v_.size(3); ++n) {
        out(b, h, i, n) += applied * static_cast<double>(std::abs(v_(b, g, j, n)));
        if (gradients_) dv(b, g, j, n) += applied * static_cast<double>(std::abs(dout_(b, h, i, n)));
      }
    }
    if (!empty && gradients_) gradients(b, h, i, scores);
  }

  void gradients(Index b, Index h, Index i, const std::vector<Score>& scores) {
    const View<double, 4> out = a_.out, weights = a_.weights, dq = a_.dq, dk = a_.dk, ds = a_.dbias;
    const Index g = h / (q_.size(1) / k_.size(1));
    double delta = std::abs(static_cast<double>(dlse_(b, h, i)));
    for (Index n = 0; n < v_.size(3); ++n) delta += std::abs(static_cast<double>(dout_(b, h, i, n))) * out(b, h, i, n);
    if (a_.dsinks.data() != nullptr) a_.dsinks.data()[h] += sink_weight_ * delta;
    for (Index j = 0; j < k_.size(2); ++j) {
      if (weights(b, h, i, j) == 0) continue;
      ds(b, h, i, j) = scores[static_cast<std::size_t>(j)].mod_slope * weights(b, h, i, j) *
                       (factor(b, h, i, j) * absolute_dot(dout_, b, h, i, v_, g, j) + delta);
      if (a_.dposition.data() != nullptr) {
        a_.dposition.data()[input_.options.position_row(i, j) * q_.size(1) + h] +=
            std::abs(input_.options.position_factor(i, j)) * ds(b, h, i, j);
      }
      const double dx = std::abs(scale_) * ds(b, h, i, j) * scores[static_cast<std::size_t>(j)].slope;
      for (Index n = 0; n < q_.size(3); ++n) {
        dq(b, h, i, n) += dx * static_cast<double>(std::abs(k_(b, g, j, n)));
        dk(b, g, j, n) += dx * static_cast<double>(std::abs(q_(b, h, i, n)));
      }
    }
  }

  double factor(Index b, Index h, Index i, Index j) const {
    return input_.options.factor ? input_.options.factor(b, h, i, j) : 1;
  }

  const ReferenceInput<C>& input_;
  bool gradients_;
  View<const C, 4> q_, k_, v_, dout_, weights_;
  View<const C, 3> dlse_, lse_;
  double scale_;
  // how roundings of D sums in a row add up, as a random walk
  double chain_ = 1 + std::sqrt(static_cast<double>(q_.size(3))) / 4;
  double sink_weight_ = 0;  // of the current row
  Magnitude a_;
};

}  // namespace

template <class C>
Magnitude magnitude_of(const ReferenceInput<C>& input, const reference::Forward<C>& exact, bool gradients) {
  return MagnitudeMaker<C>(input, exact, gradients).make();
}

template Magnitude magnitude_of(const ReferenceInput<double>&, const reference::Forward<double>&, bool);
template Magnitude magnitude_of(const ReferenceInput<long double>&, const reference::Forward<long double>&, bool);

}  // namespace qkv::test

#include "gradcheck/gradcheck.h"

#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "core/random.h"
#include "qkv/derivatives.h"
#include "support/command.h"

namespace qkv::cli {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
/// Of a central difference. Its error is step^2 / 6 of a third derivative and eps / step of the value: equal near eps^(1/3).
constexpr double kStep = 0x1p-17;
constexpr std::uint32_t kDirections = 100;  // streams of random numbers from here on

/// A sum and the sum of its terms' sizes.
struct Sum {
  double value = 0, size = 0;

  /// += <a, b> over elements that are finite in both: lse of an empty row is -inf, and nothing depends on it.
  void add(const Tensor<double>& a, const Tensor<double>& b) {
    for (Index n = 0; n < a.count(); ++n) {
      const double term = a.data()[n] * b.data()[n];
      if (!std::isfinite(term)) continue;
      value += term;
      size += std::abs(term);
    }
  }
};

/// An element and what it was found to be.
struct Found {
  double exact, found, bound;
};

class Gradcheck {
 public:
  Gradcheck(GradcheckInput& input, std::uint64_t seed, Context& context) : in_(input), context_(context) {
    for (const auto& [name, tensor] : {std::pair("q", &in_.q),
                                       {"k", &in_.k},
                                       {"v", &in_.v},
                                       {"bias", &in_.bias},
                                       {"sinks", &in_.sinks},
                                       {"position", &in_.position}}) {
      if (tensor->rank() == 0) continue;
      moves_.push_back(
          {name, tensor, random_tensor(tensor->sizes(), seed, kDirections + static_cast<std::uint32_t>(moves_.size()))});
    }
    double largest_score = 1;
    const Forward here = forward();
    for (const double lse : here.lse.span()) {
      if (std::isfinite(lse)) largest_score = std::max(largest_score, std::abs(lse));
    }
    chain_ = largest_score * static_cast<double>(in_.k.size(2) + in_.q.size(3) + in_.v.size(3));
  }

  std::vector<GradcheckRow> run() {
    check_backward();
    check_jvp();
    check_duality();
    check_double_backward();
    return std::move(rows_);
  }

 private:
  /// An input, and the direction in which it moves: also the cotangent of its gradient.
  struct Move {
    std::string name;
    Tensor<double>* tensor;
    Tensor<double> direction;
  };
  struct Forward {
    Tensor<double> out, lse;
  };

  Forward forward() const {
    Forward result{Tensor<double>(in_.dout.sizes()), Tensor<double>(in_.dlse.sizes())};
    settle_slopes();
    attention_forward(in_.q, in_.k, in_.v, {.out = result.out, .lse = result.lse}, in_.options, context_);
    if (in_.options.empty_row == EmptyRow::kNaN) {
      for (const double lse : result.lse.span()) {
        if (std::isinf(lse))
          throw UsageError("a row without a key is NaN by --empty-row nan, which has no derivative: give zero or mean");
      }
    }
    return result;
  }

  /// In the order of moves_.
  std::vector<Tensor<double>> backward() const {
    const Forward saved = forward();
    std::vector<Tensor<double>> gradients;
    for (const Move& move : moves_) gradients.emplace_back(move.tensor->sizes());
    AttentionGradients<double> wanted{.dq = gradients[0], .dk = gradients[1], .dv = gradients[2]};
    wanted.dbias = of<4>(gradients, "bias");
    wanted.dsinks = of<1>(gradients, "sinks");
    wanted.dposition_bias = of<2>(gradients, "position");
    wanted.dlse = in_.dlse;
    attention_backward(in_.q, in_.k, in_.v, saved.out, saved.lse, in_.dout, wanted, in_.options, context_);
    return gradients;
  }

  /// The one of `all` (in the order of moves_) that belongs to `name`; null where that is not given.
  template <int Rank>
  View<double, Rank> of(std::vector<Tensor<double>>& all, std::string_view name) const {
    for (std::size_t n = 0; n < all.size(); ++n) {
      if (moves_[n].name == name) return all[n].view<Rank>();
    }
    return {};
  }
  template <int Rank>
  View<const double, Rank> direction(std::string_view name) const {
    for (const Move& move : moves_) {
      if (move.name == name) return move.direction.view<Rank>();
    }
    return {};
  }
  AttentionTangents<double> tangents() const {
    return {.q = direction<4>("q"),
            .k = direction<4>("k"),
            .v = direction<4>("v"),
            .bias = direction<4>("bias"),
            .sinks = direction<1>("sinks"),
            .position_bias = direction<2>("position")};
  }

  /// The options hold a copy of the slopes: what was moved must be copied there.
  void settle_slopes() const {
    if (!in_.options.position_bias.is_alibi()) return;
    const std::span<const double> slopes = std::as_const(in_.position).span();
    in_.options.position_bias = PositionBias::alibi({slopes.begin(), slopes.end()}, in_.options.position_bias.align());
  }

  /// <out, dout> + <lse, dlse>
  Sum loss() const {
    const Forward result = forward();
    Sum sum;
    sum.add(result.out, in_.dout);
    sum.add(result.lse, in_.dlse);
    return sum;
  }
  /// <directions, gradients>
  Sum loss_of_gradients() const {
    const std::vector<Tensor<double>> gradients = backward();
    Sum sum;
    for (std::size_t n = 0; n < moves_.size(); ++n) sum.add(moves_[n].direction, gradients[n]);
    return sum;
  }

  void note(const std::string& check, const std::string& tensor, const std::vector<Found>& elements) {
    GradcheckRow row{check, tensor, static_cast<Index>(elements.size()), 0, 0, true};
    double worst = -1;
    for (const Found& one : elements) {
      const double error = std::abs(one.exact - one.found), ratio = error / one.bound;
      row.holds &= error <= one.bound;  // false for NaN
      if (!(ratio > worst)) continue;
      worst = ratio;
      row.error = error;
      row.bound = one.bound;
    }
    rows_.push_back(row);
  }

  /// The difference over one step, how far that over two is from it (three times what the third derivative adds), and what
  /// rounding of sums of `chain_` terms adds.
  Found found(double exact, double above, double below, double far_above, double far_below, double size) const {
    const double near = (above - below) / (2 * kStep), far = (far_above - far_below) / (4 * kStep);
    return {exact, near, std::abs(far - near) + kEpsilon * chain_ * (size / kStep + std::abs(exact))};
  }

  /// Every element of `tensor` moved; `gradient` is the loss's.
  template <class Loss>
  void check_gradient(const std::string& check, const std::string& name, Tensor<double>& tensor, const Tensor<double>& gradient,
                      const Loss& loss) {
    std::vector<Found> elements;
    for (Index n = 0; n < tensor.count(); ++n) {
      const double kept = tensor.data()[n];
      if (!std::isfinite(kept)) continue;
      const auto at = [&](double step) {
        tensor.data()[n] = kept + step;
        return loss();
      };
      const Sum above = at(kStep), below = at(-kStep), far_above = at(2 * kStep), far_below = at(-2 * kStep);
      tensor.data()[n] = kept;
      elements.push_back(found(gradient.data()[n], above.value, below.value, far_above.value, far_below.value, above.size));
    }
    note(check, name, elements);
  }

  void check_backward() {
    const std::vector<Tensor<double>> gradients = backward();
    for (std::size_t n = 0; n < moves_.size(); ++n) {
      check_gradient("backward", "d" + moves_[n].name, *moves_[n].tensor, gradients[n], [this] { return loss(); });
    }
  }

  /// out and lse at `step` along the directions.
  Forward moved(double step) {
    std::vector<Tensor<double>> kept;
    for (Move& move : moves_) {
      kept.push_back(move.tensor->clone());
      for (Index n = 0; n < move.tensor->count(); ++n) move.tensor->data()[n] += step * move.direction.data()[n];
    }
    Forward result = forward();
    for (std::size_t n = 0; n < moves_.size(); ++n) std::copy_n(kept[n].data(), kept[n].count(), moves_[n].tensor->data());
    return result;
  }

  Forward jvp() const {
    Forward rates{Tensor<double>(in_.dout.sizes()), Tensor<double>(in_.dlse.sizes())};
    attention_jvp(in_.q, in_.k, in_.v, forward().lse, tangents(), rates.out, rates.lse, in_.options, context_);
    return rates;
  }

  void check_jvp() {
    const Forward rates = jvp(), here = forward();
    const Forward above = moved(kStep), below = moved(-kStep), far_above = moved(2 * kStep), far_below = moved(-2 * kStep);
    const auto check = [&](const char* name, auto part) {
      std::vector<Found> elements;
      for (Index n = 0; n < (rates.*part).count(); ++n) {
        if (!std::isfinite((here.*part).data()[n])) continue;
        elements.push_back(found((rates.*part).data()[n], (above.*part).data()[n], (below.*part).data()[n],
                                 (far_above.*part).data()[n], (far_below.*part).data()[n], 1));  // inputs are of size 1
      }
      note("jvp", name, elements);
    };
    check("tout", &Forward::out);
    check("tlse", &Forward::lse);
  }

  /// <directions, backward> = <jvp, (dout, dlse)>
  void check_duality() {
    const Sum left = loss_of_gradients();
    const Forward rates = jvp();
    Sum right;
    right.add(rates.out, in_.dout);
    right.add(rates.lse, in_.dlse);
    note("duality", "<u, dx> = <tout, dout>", {{left.value, right.value, kEpsilon * chain_ * (left.size + right.size)}});
  }

  void check_double_backward() {
    const Forward saved = forward();
    std::vector<Tensor<double>> results;
    for (const Move& move : moves_) results.emplace_back(move.tensor->sizes());
    Tensor<double> gdout(in_.dout.sizes()), gdlse(in_.dlse.sizes());
    AttentionSecondGradients<double> wanted{.gq = results[0], .gk = results[1], .gv = results[2], .gdout = gdout};
    wanted.gbias = of<4>(results, "bias");
    wanted.gsinks = of<1>(results, "sinks");
    wanted.gposition_bias = of<2>(results, "position");
    wanted.gdlse = gdlse;
    wanted.dlse = in_.dlse;
    attention_double_backward(in_.q, in_.k, in_.v, saved.out, saved.lse, in_.dout, tangents(), wanted, in_.options, context_);
    const auto loss = [this] { return loss_of_gradients(); };
    for (std::size_t n = 0; n < moves_.size(); ++n) {
      check_gradient("double backward", "g" + moves_[n].name, *moves_[n].tensor, results[n], loss);
    }
    check_gradient("double backward", "gdout", in_.dout, gdout, loss);
    check_gradient("double backward", "gdlse", in_.dlse, gdlse, loss);
  }

  GradcheckInput& in_;
  Context& context_;
  std::vector<Move> moves_;
  double chain_ = 0;  // terms of the longest sums, times the size of scores, whose rounding weights feel
  std::vector<GradcheckRow> rows_;
};

}  // namespace

Tensor<double> random_tensor(std::vector<Index> sizes, std::uint64_t seed, std::uint32_t stream) {
  Tensor<double> tensor(std::move(sizes));
  Random random(seed, stream);
  for (double& x : tensor.span()) x = 2 * random.uniform() - 1;
  return tensor;
}

GradcheckInput gradcheck_input(const GradcheckSizes& s, std::uint64_t seed) {
  GradcheckInput input;
  input.q = random_tensor({s.batch, s.num_heads, s.q_len, s.head_dim}, seed, 1);
  input.k = random_tensor({s.batch, s.num_kv_heads, s.kv_len, s.head_dim}, seed, 2);
  input.v = random_tensor({s.batch, s.num_kv_heads, s.kv_len, s.v_head_dim}, seed, 3);
  input.dout = random_tensor({s.batch, s.num_heads, s.q_len, s.v_head_dim}, seed, 4);
  input.dlse = random_tensor({s.batch, s.num_heads, s.q_len}, seed, 5);
  return input;
}

std::vector<GradcheckRow> run_gradcheck(GradcheckInput& input, std::uint64_t seed, Context& context) {
  return Gradcheck(input, seed, context).run();
}

}  // namespace qkv::cli

// One mixture: y[b, i, :] = sum_j share[j] x[b, j, :], the same for every i. Sums in f64, j ascending.
#include "qkv/nn/average.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "nn/parameters/parameters.h"
#include "nn/parameters/tensor_use.h"

namespace qkv::inline v0::nn {
namespace {

double sum_of(const Tensor<float>& w) { return std::accumulate(w.span().begin(), w.span().end(), 0.0); }

/// mixture[e] = sum over j of share[j] * x[b, j, e]
void mix(View<const float, 3> x, Index b, const std::vector<double>& share, std::vector<double>& mixture) {
  std::ranges::fill(mixture, 0.0);
  for (Index j = 0; j < x.size(1); ++j) {
    for (Index e = 0; e < x.size(2); ++e) {
      mixture[static_cast<std::size_t>(e)] += share[static_cast<std::size_t>(j)] * static_cast<double>(x(b, j, e));
    }
  }
}

}  // namespace

FixedWeights::FixedWeights(const LayerConfig& config, bool learned)
    : Layer(learned ? "FixedWeights" : "AveragePooling") {
  if (!learned) return;
  check<ShapeError>(config.length > 0, "FixedWeights", "length must be at least 1: got ", config.length);
  w_ = Tensor<float>({config.length});
  gradient_ = Tensor<float>({config.length});
  fill_normal(w_, config.seed, 0);
}

std::vector<double> FixedWeights::shares(Index length) const {
  if (!learned())
    return std::vector<double>(static_cast<std::size_t>(length), 1 / static_cast<double>(std::max<Index>(length, 1)));
  std::vector<double> shares(w_.span().begin(), w_.span().end());
  const double sum = sum_of(w_);
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<Parameter> FixedWeights::parameters() {
  std::vector<Parameter> list;
  if (learned()) list.push_back(parameter("w", w_, gradient_));
  return list;
}

void FixedWeights::forward_into(
    View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const {
  check<ShapeError>(x.sizes() == y.sizes(), type_name(), "y must have the sizes of x: got y ", y, ", x ", x);
  check<OptionError>(options.mask.keeps_everything() && !options.causal.value_or(false), type_name(),
      "this layer takes no mask: got ",
      [&] { return options.mask.keeps_everything() ? "causal" : options.mask.describe(); });
  check<UnsupportedError>(
      options.part == nullptr, type_name(), "this layer averages whole sequences: leave out options.part");
  check<UnsupportedError>(options.cut.empty() && !options.scale, type_name(),
      "this layer has neither heads nor scores: leave out options.cut and options.scale");
  check<ShapeError>(
      !learned() || x.size(1) == w_.count(), type_name(), "x must have as many tokens as w: got x ", x, ", w ", w_);
  if (saved != nullptr) {
    resize(saved->x, {x.size(0), x.size(1), x.size(2)});
    copy<float>(x, saved->x);
  }
  const std::vector<double> share = shares(x.size(1));
  std::vector<double> mixture(static_cast<std::size_t>(x.size(2)));
  for (Index b = 0; b < x.size(0); ++b) {
    mix(x, b, share, mixture);
    for (Index i = 0; i < x.size(1); ++i) {
      for (Index e = 0; e < x.size(2); ++e) y(b, i, e) = static_cast<float>(mixture[static_cast<std::size_t>(e)]);
    }
  }
  for (Tensor<float>* wanted : {options.weights, options.applied}) {
    if (wanted == nullptr) continue;
    resize(*wanted, {x.size(0), 1, x.size(1), x.size(1)});
    for (Index row = 0; row < x.size(0) * x.size(1); ++row) {
      std::ranges::transform(
          share, wanted->data() + row * x.size(1), [](double one) { return static_cast<float>(one); });
    }
  }
}

// dx[j] = share[j] received. With y = sum_l w[l] x[l] / s, s = sum(w):  dw[j] += (x[j] - y) . received / s, b
// ascending.
void FixedWeights::backward_into(View<const float, 3> dy, Saved& saved, View<float, 3> dx, Context&) {
  check<OptionError>(saved.x.rank() == 3 && (!learned() || saved.x.size(1) == w_.count()), type_name(),
      "saved must come from this layer's forward: got x ", saved.x);
  check<ShapeError>(dy.sizes() == saved.x.view<3>().sizes(), type_name(), "dy must be ", saved.x, ": got ", dy);
  check<ShapeError>(dx.is_null() || dx.sizes() == dy.sizes(), type_name(), "dx must be ", saved.x, ": got ", dx);
  const View<const float, 3> x = saved.x;
  const std::vector<double> share = shares(x.size(1));
  const double sum = sum_of(w_);
  const std::vector<double> ones(share.size(), 1.0);
  std::vector<double> received(static_cast<std::size_t>(x.size(2))), mixture(received.size()),
      dw(gradient_.span().size());
  for (Index b = 0; b < x.size(0); ++b) {
    mix(dy, b, ones, received);  // every row of the output is the same mixture
    if (learned()) mix(x, b, share, mixture);
    for (std::size_t j = 0; j < dw.size(); ++j) {
      for (std::size_t e = 0; e < received.size(); ++e) {
        const auto value = static_cast<double>(x(b, static_cast<Index>(j), static_cast<Index>(e)));
        dw[j] += (value - mixture[e]) * received[e] / sum;
      }
    }
    for (Index j = 0; !dx.is_null() && j < dx.size(1); ++j) {
      for (Index e = 0; e < dx.size(2); ++e) {
        dx(b, j, e) = static_cast<float>(share[static_cast<std::size_t>(j)] * received[static_cast<std::size_t>(e)]);
      }
    }
  }
  for (std::size_t j = 0; j < dw.size(); ++j) gradient_.span()[j] += static_cast<float>(dw[j]);
}

}  // namespace qkv::inline v0::nn

#include "judge/tasks/derivative.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void factor(Work& work, const std::string& p) {
  work[p + "factor"] = Array({1}, 1 / std::sqrt(static_cast<double>(work.at(p + "q").size(-1))));
}

void see(Work& work, const std::string& p) {
  const Index queries = work.at(p + "q").size(-2), keys = work.at(p + "k").size(-2);
  Array visible({queries, keys}, 1);
  if (work.at(p + "causal")[0].value != 0) {
    for (Index n = 0; n < visible.count(); ++n) visible[n] = n % keys <= n / keys + keys - queries ? 1 : 0;
  }
  work[p + "visible"] = std::move(visible);
}

void scores(Work& work, const std::string& p) {
  work[p + "scores"] = matmul(work.at(p + "q"), transpose(work.at(p + "k"))) * work.at(p + "factor")[0];
}

void mask(Work& work, const std::string& p) {
  work[p + "scores"] = zip(work.at(p + "scores"), work.at(p + "visible"),
                           [](Number s, Number seen) { return seen.value != 0 ? s : Number(-kInfinity); });
}

void weights(Work& work, const std::string& p) { work[p + "weights"] = softmax(work.at(p + "scores")); }
void mix(Work& work, const std::string& p) { work[p + "values"] = matmul(work.at(p + "weights"), work.at(p + "v")); }
void dv(Work& work, const std::string& p) {
  work[p + "dv"] = matmul(transpose(work.at(p + "weights")), work.at(p + "dvalues"));
}
void dweights(Work& work, const std::string& p) {
  work[p + "dweights"] = matmul(work.at(p + "dvalues"), transpose(work.at(p + "v")));
}

void dscores(Work& work, const std::string& p) {
  const Array rows = sum(work.at(p + "dweights") * work.at(p + "weights"), -1);
  work[p + "dscores"] = work.at(p + "weights") * (work.at(p + "dweights") - rows);
}

void dscale(Work& work, const std::string& p) { work[p + "dscaled"] = work.at(p + "dscores") * work.at(p + "factor")[0]; }
void dq(Work& work, const std::string& p) { work[p + "dq"] = matmul(work.at(p + "dscaled"), work.at(p + "k")); }
void dk(Work& work, const std::string& p) { work[p + "dk"] = matmul(transpose(work.at(p + "dscaled")), work.at(p + "q")); }

}  // namespace

Step prefixed(std::string prefix, PrefixedStep step) {
  return [prefix = std::move(prefix), step = std::move(step)](Work& work) {
    if (work.has(prefix + "q")) step(work, prefix);
  };
}

Textbook derivative_forward(const DerivativeStages& names, const std::string& prefix) {
  return {{names.factor, prefixed(prefix, factor)},   {names.see, prefixed(prefix, see)},
          {names.scores, prefixed(prefix, scores)},   {names.mask, prefixed(prefix, mask)},
          {names.softmax, prefixed(prefix, weights)}, {names.mix, prefixed(prefix, mix)}};
}

Textbook derivative_backward(const DerivativeStages& names, const std::string& prefix) {
  return {{names.dv, prefixed(prefix, dv)},           {names.dweights, prefixed(prefix, dweights)},
          {names.dscores, prefixed(prefix, dscores)}, {names.dscale, prefixed(prefix, dscale)},
          {names.dq, prefixed(prefix, dq)},           {names.dk, prefixed(prefix, dk)}};
}

Array weight_gradient(const Array& x, const Array& dy) {
  const auto flat = [](const Array& a) { return reshape(a, {a.count() / a.size(-1), a.size(-1)}); };
  return matmul(transpose(flat(x)), flat(dy));
}

void append(Textbook& out, Textbook more) {
  out.insert(out.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace qkv::judge

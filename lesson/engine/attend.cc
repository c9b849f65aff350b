// One attention and one matrix product on the caller's numbers, with every number in between.
#include <algorithm>
#include <limits>
#include <optional>

#include "core/check.h"
#include "engine/face.h"
#include "qkv/attention.h"
#include "qkv/nn/linear.h"

namespace qkv::inline v0::lesson {
namespace {

using Row = View<const float, 2>;

/// Of every array of a call, so that all of them fit in a page's memory.
constexpr double kMostNumbers = 1 << 23;
void check_count(const char* function, double count) {
  check<OptionError>(
      count <= kMostNumbers, function, "arrays must have at most ", kMostNumbers, " numbers: got ", count);
}

/// Every number of one call, in the order of engine.js.
struct Attended {
  Tensor<float> scores, scaled, weights, out, lse, dp, ds, dq, dk, dv;
};

/// dP = dout v^T and dS = P (dP - sum_j P dP): what backward computes tile by tile and does not keep.
void middle_gradients(View<const float, 4> v, View<const float, 4> dout, Attended& a) {
  const Index heads = v.size(1), keys = v.size(2), queries = dout.size(2);
  for (Index h = 0; h < heads; ++h) {
    const auto head = [h](const auto& x) { return Row(&x(0, h, 0, 0), {x.size(2), x.size(3)}); };
    const View<float, 2> dp(a.dp.data() + h * queries * keys, {queries, keys});
    nn::linear_forward(head(dout), head(v), {}, dp, context());
    for (Index i = 0; i < queries; ++i) {
      const float* p = a.weights.data() + (h * queries + i) * keys;
      float delta = 0;
      for (Index j = 0; j < keys; ++j) delta += p[j] * dp(i, j);
      float* ds = a.ds.data() + (h * queries + i) * keys;
      for (Index j = 0; j < keys; ++j) ds[j] = p[j] * (dp(i, j) - delta);
    }
  }
}

}  // namespace
}  // namespace qkv::inline v0::lesson

using namespace qkv;

/// q [heads, queries, dim], k [heads, keys, dim], v [heads, keys, vdim]; null: no hidden [queries, keys], bias [heads,
/// queries, keys], dout [heads, queries, vdim]. scores, scaled, weights [heads, queries, keys], out, lse; with dout dp,
/// ds, dq, dk, dv.
QKV_LESSON const float* lesson_attend(int heads, int queries, int keys, int dim, int vdim, const float* q,
    const float* k, const float* v, double scale, int causal, const unsigned char* hidden, const float* bias,
    const float* dout) {
  return lesson::answer([&]() -> const float* {
    lesson::check_count("attend", static_cast<double>(heads) * queries * keys);
    const auto view = [&](const float* at, Index rows, Index width) {
      return View<const float, 4>(at, {1, heads, rows, width});
    };
    const View<const float, 4> qs = view(q, queries, dim), ks = view(k, keys, dim), vs = view(v, keys, vdim);
    AttentionOptions options;
    options.scale = scale;
    if (causal != 0) options.mask = Mask::causal(Align::kBottomRight);
    if (hidden != nullptr)
      options.mask = options.mask & Mask::drop(View<const std::uint8_t, 2>(hidden, {queries, keys}), MaskAxes::kQk);
    if (bias != nullptr) options.bias = view(bias, queries, keys);

    lesson::Attended a;
    Context& context = lesson::context();
    const auto pairs = [&] { return Tensor<float>({1, heads, queries, keys}); };
    const auto rows = [&](Index length, Index width) { return Tensor<float>({1, heads, length, width}); };
    a.scores = pairs();
    attention_forward(qs, ks, {}, {.weights = a.scores, .kind = WeightsKind::kScores}, {.scale = 1.0}, context);
    a.scaled = pairs();
    attention_forward(qs, ks, {}, {.weights = a.scaled, .kind = WeightsKind::kScores}, options, context);
    a.weights = pairs();
    a.out = rows(queries, vdim);
    a.lse = Tensor<float>({1, heads, queries});
    attention_forward(qs, ks, vs, {.out = a.out, .lse = a.lse, .weights = a.weights}, options, context);
    if (dout != nullptr) {
      const View<const float, 4> douts = view(dout, queries, vdim);
      a.dp = pairs();
      a.ds = pairs();
      a.dq = rows(queries, dim);
      a.dk = rows(keys, dim);
      a.dv = rows(keys, vdim);
      lesson::middle_gradients(vs, douts, a);
      attention_backward(qs, ks, vs, a.out, a.lse, douts, {.dq = a.dq, .dk = a.dk, .dv = a.dv}, options, context);
    }
    std::vector<float>& block = lesson::results();
    block.clear();
    for (const Tensor<float>* part :
        {&a.scores, &a.scaled, &a.weights, &a.out, &a.lse, &a.dp, &a.ds, &a.dq, &a.dk, &a.dv})
      block.insert(block.end(), part->data(), part->data() + part->count());
    return block.data();
  });
}

/// y [rows, outputs] = x [rows, inputs] w [outputs, inputs]^T + b [outputs]; null: no b.
QKV_LESSON const float* lesson_linear(
    int rows, int inputs, int outputs, const float* x, const float* w, const float* b) {
  return lesson::answer([&]() -> const float* {
    lesson::check_count("linear", static_cast<double>(rows) * outputs);
    std::vector<float>& block = lesson::results();
    block.assign(static_cast<std::size_t>(rows) * static_cast<std::size_t>(outputs), 0);
    const View<const float, 1> bias = b == nullptr ? View<const float, 1>() : View<const float, 1>(b, {outputs});
    nn::linear_forward(View<const float, 2>(x, {rows, inputs}), View<const float, 2>(w, {outputs, inputs}), bias,
        View<float, 2>(block.data(), {rows, outputs}), lesson::context());
    return block.data();
  });
}

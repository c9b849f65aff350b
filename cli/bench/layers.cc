// Cases of layers: a Linear and multi-head attention in f32 and in bf16, forward and forward + backward, at the articles' and
// BERT's width and as small as latency shows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/bench.h"
#include "core/random.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/multi_head_attention.h"
#include "reference/attention.h"
#include "support/converted.h"

namespace qkv::cli {
namespace {

Tensor<float> random_tensor(std::vector<Index> sizes) {
  Tensor<float> tensor(std::move(sizes));
  Random random(17);
  for (float& value : tensor.span()) value = 2 * random.uniform_f32() - 1;
  return tensor;
}

Tensor<BFloat16> random_bf16(std::vector<Index> sizes) {
  const Tensor<float> numbers = random_tensor(sizes);
  Tensor<BFloat16> tensor(std::move(sizes));
  for (Index n = 0; n < numbers.count(); ++n) tensor.data()[n] = BFloat16(numbers.data()[n]);
  return tensor;
}

/// y[0] = x[0] . weight[0] + bias[0], and the same for the last output.
Judgement judge_row(std::span<const float> x, std::span<const float> y, const nn::Parameter& weight,
                    const nn::Parameter& bias) {
  Judgement judgement;
  for (const std::size_t n : {std::size_t{0}, y.size() - 1}) {
    const std::span<const float> row = weight.value.subspan(n * x.size(), x.size());
    double exact = static_cast<double>(bias.value[n]), terms = std::abs(exact);
    for (std::size_t m = 0; m < x.size(); ++m) {
      exact += static_cast<double>(x[m]) * static_cast<double>(row[m]);
      terms += std::abs(static_cast<double>(x[m]) * static_cast<double>(row[m]));
    }
    judgement = worse(judgement, judge_sum(static_cast<double>(y[n]), exact, terms));
  }
  return judgement;
}

BenchCase linear_case() {
  constexpr Index kRows = 1600, kWidth = 512;  // the articles' (16, 100, 512)
  BenchCase one;
  one.name = "linear-f32-1600x512x512";
  one.shape = "1600 rows, 512 -> 512";
  one.quick = true;
  one.goal = 0.85;
  one.prepare = [](Context& context) {
    struct Problem {
      nn::Linear layer{{.in_features = kWidth, .out_features = kWidth}};
      Tensor<float> x = random_tensor({kRows, kWidth}), y{kRows, kWidth};
    };
    auto p = std::make_shared<Problem>();
    Prepared prepared;
    prepared.flops = 2.0 * kRows * kWidth * kWidth;
    prepared.run = [p, &context] { p->layer.forward(p->x, p->y, context); };
    prepared.judge = [p] {
      const std::vector<nn::Parameter> parameters = p->layer.parameters();  // weight, bias
      const auto row = [](const Tensor<float>& rows) { return rows.span().first(kWidth); };
      return judge_row(row(p->x), row(p->y), parameters[0], parameters[1]);
    };
    return prepared;
  };
  return one;
}

constexpr double kRoundoff = epsilon_of<BFloat16> / 2;
double number(const Tensor<BFloat16>& tensor, Index n) { return static_cast<double>(static_cast<float>(tensor.data()[n])); }

/// A sum of `exact` and count terms.
template <class Term>
Judgement judge_element(double got, double exact, Index count, double roundoff, const Term& term) {
  double terms = std::abs(exact);
  for (Index n = 0; n < count; ++n) {
    exact += term(n);
    terms += std::abs(term(n));
  }
  Judgement judgement = judge_sum(got, exact, terms);
  judgement.bound += roundoff * std::abs(exact);
  return judgement;
}

/// The same map of bf16 numbers. One sum of each output is held against f64: what f32 sums may differ by, and a rounding to
/// bf16 where the output is.
struct Bf16Linear {
  static constexpr Index kRows = 1600, kWidth = 512;
  Tensor<BFloat16> x = random_bf16({kRows, kWidth}), weight = random_bf16({kWidth, kWidth}), y{kRows, kWidth};
  Tensor<BFloat16> dy = random_bf16({kRows, kWidth}), dx{kRows, kWidth};
  Tensor<float> bias = random_tensor({kWidth}), dweight{kWidth, kWidth}, dbias{kWidth};

  void forward(Context& context) { nn::linear_forward(x, weight, bias, y, context); }
  void backward(Context& context) { nn::linear_backward(x, dy, weight, dx, dweight, dbias, context); }

  /// y[0, 0] = bias[0] + sum_k x[0, k] weight[0, k]
  Judgement judge_forward() const {
    return judge_element(number(y, 0), static_cast<double>(bias.data()[0]), kWidth, kRoundoff,
                         [&](Index k) { return number(x, k) * number(weight, k); });
  }
  /// dx[0, 0] = sum_n dy[0, n] weight[n, 0];  dweight[0, 0] = sum_m dy[m, 0] x[m, 0], after one run
  Judgement judge_backward(Context& context) {
    for (float& sum : dweight.span()) sum = 0;
    backward(context);
    const Judgement rows =
        judge_element(number(dx, 0), 0, kWidth, kRoundoff, [&](Index n) { return number(dy, n) * number(weight, n * kWidth); });
    return worse(rows, judge_element(static_cast<double>(dweight.data()[0]), 0, kRows, 0,
                                     [&](Index m) { return number(dy, m * kWidth) * number(x, m * kWidth); }));
  }
};

BenchCase bf16_linear_case(bool backward) {
  using Linear = Bf16Linear;
  BenchCase one;
  one.name = fmt::format("linear-{}bf16-{}x{}x{}", backward ? "bwd-" : "", Linear::kRows, Linear::kWidth, Linear::kWidth);
  one.shape = fmt::format("{} rows, {} -> {}", Linear::kRows, Linear::kWidth, Linear::kWidth);
  one.type = "bf16";
  one.prepare = [backward](Context& context) {
    auto p = std::make_shared<Linear>();
    Prepared prepared;
    prepared.flops = (backward ? 2 : 1) * 2.0 * Linear::kRows * Linear::kWidth * Linear::kWidth;
    if (backward) {
      prepared.run = [p, &context] { p->backward(context); };
      prepared.judge = [p, &context] { return p->judge_backward(context); };
    } else {
      prepared.run = [p, &context] { p->forward(context); };
      prepared.judge = [p] { return p->judge_forward(); };
    }
    return prepared;
  };
  return one;
}

struct MhaShape {
  Index batch = 0, length = 0, width = 0, num_heads = 0;

  Index head_dim() const { return width / num_heads; }
  double product_flops() const { return 4 * 2.0 * static_cast<double>(batch * length * width * width); }
  double attention_flops() const { return 4.0 * static_cast<double>(batch * length * length * width); }
};

template <class T>
struct MhaProblem {
  MhaShape shape;
  nn::MultiHeadAttention layer;
  Tensor<T> x, y, dy, dx;  // [B, T, E]
  nn::SavedOf<T> saved;

  explicit MhaProblem(const MhaShape& s)
      : shape(s),
        layer({.embed_dim = s.width, .num_heads = s.num_heads}),
        x(random({s.batch, s.length, s.width})),
        y(x.sizes()),
        dy(random({s.batch, s.length, s.width})),
        dx(x.sizes()) {}

 private:
  static Tensor<T> random(std::vector<Index> sizes) {
    if constexpr (std::is_same_v<T, float>) {
      return random_tensor(std::move(sizes));
    } else {
      return random_bf16(std::move(sizes));
    }
  }
};

/// One row of the projections, one head of the attention between them, one row of the output.
Judgement judge_mha(MhaProblem<float>& p) {
  const std::vector<nn::Parameter> parameters = p.layer.parameters();  // q, k, v, o: weight, bias each
  const auto parameter = [&](std::string_view name) { return *std::ranges::find(parameters, name, &nn::Parameter::name); };
  const Index width = p.shape.width, head_dim = p.shape.head_dim(), length = p.shape.length;
  const auto row = [&](const Tensor<float>& rows) { return rows.span().first(static_cast<std::size_t>(width)); };
  p.layer.forward_into(p.x, p.y, {}, &p.saved);
  Judgement judgement = judge_row(row(p.x), row(p.saved.projected), parameter("q_proj.weight"), parameter("q_proj.bias"));
  judgement =
      worse(judgement, judge_row(row(p.saved.attended), row(p.y), parameter("o_proj.weight"), parameter("o_proj.bias")));

  const View<const float, 3> projected = p.saved.projected;  // [B, T, 3E]
  const auto first_head = [&](Index begin) {                 // of the first sequence: [1, 1, T, D]
    return split_heads(projected.sliced(0, 0, 1).sliced(2, begin, begin + width), p.shape.num_heads).sliced(1, 0, 1);
  };
  const auto q = first_head(0), k = first_head(width), v = first_head(2 * width);
  double largest = 0;  // no sum of w |v| exceeds it
  for (const float value : p.saved.projected.span()) largest = std::max(largest, std::abs(static_cast<double>(value)));
  const Tensor<float> naive = reference::attention_forward<float>(q, k, v).out;
  const Tensor<double> exact =
      reference::attention_forward<double>(converted<double>(q), converted<double>(k), converted<double>(v)).out;
  const View<const float, 4> got(p.saved.attended.data(), {1, 1, length, head_dim}, {0, 0, width, 1});
  return worse(judgement, judge(converted<double>(got).span(), converted<double>(naive.view<4>()).span(), exact.span(),
                                epsilon_of<float>, largest));
}

/// One number of the projections and one of the output; attention on bf16 has cases of its own.
Judgement judge_mha(MhaProblem<BFloat16>& p) {
  const std::vector<nn::Parameter> parameters = p.layer.parameters();
  const auto parameter = [&](std::string_view name) { return *std::ranges::find(parameters, name, &nn::Parameter::name); };
  p.layer.forward_into(p.x, p.y, {}, &p.saved);
  const auto judge_first = [&](const Tensor<BFloat16>& x, const Tensor<BFloat16>& y, std::string_view name) {
    const nn::Parameter weight = parameter(fmt::format("{}.weight", name)), bias = parameter(fmt::format("{}.bias", name));
    return judge_element(number(y, 0), static_cast<double>(bias.value[0]), p.shape.width, kRoundoff, [&](Index k) {
      return number(x, k) * static_cast<double>(static_cast<float>(BFloat16(weight.value[static_cast<std::size_t>(k)])));
    });
  };
  return worse(judge_first(p.x, p.saved.projected, "q_proj"), judge_first(p.saved.attended, p.y, "o_proj"));
}

template <class T>
BenchCase mha_case(const MhaShape& s, bool backward, double goal, double goal_ms) {
  BenchCase one;
  one.type = std::is_same_v<T, float> ? "f32" : "bf16";
  one.name =
      fmt::format("mha-{}-{}-b{}-t{}-e{}-h{}", backward ? "fwdbwd" : "fwd", one.type, s.batch, s.length, s.width, s.num_heads);
  one.shape = fmt::format("B{} T{} E{} H{}", s.batch, s.length, s.width, s.num_heads);
  one.quick = s.width <= 512;
  one.goal = goal;
  one.goal_ms = goal_ms;
  one.prepare = [s, backward](Context& context) {
    auto p = std::make_shared<MhaProblem<T>>(s);
    Prepared prepared;
    prepared.flops = (backward ? 3 : 1) * s.product_flops() + (backward ? 3.5 : 1) * s.attention_flops();
    prepared.judge = [p] { return judge_mha(*p); };
    if (backward) {
      prepared.run = [p, &context] {
        p->layer.forward_into(p->x, p->y, {.context = &context}, &p->saved);
        p->layer.backward_into(p->dy, p->saved, p->dx, context);
      };
    } else {
      prepared.run = [p, &context] { p->layer.forward_into(p->x, p->y, {.context = &context}, nullptr); };
    }
    return prepared;
  };
  return one;
}

}  // namespace

std::vector<BenchCase> layer_cases() {
  std::vector<BenchCase> cases{linear_case(), bf16_linear_case(false), bf16_linear_case(true)};
  for (const MhaShape& s : {MhaShape{16, 100, 512, 8}, MhaShape{8, 128, 768, 12}}) {
    cases.push_back(mha_case<float>(s, false, 0.85, 0));
    cases.push_back(mha_case<float>(s, true, 0.80, 0));
    cases.push_back(mha_case<BFloat16>(s, false, 0, 0));
    cases.push_back(mha_case<BFloat16>(s, true, 0, 0));
  }
  const MhaShape small{1, 8, 64, 4};
  // An eighth of PyTorch's 33 us and a tenth of its 180 us, as measured on a Zen 5.
  cases.push_back(mha_case<float>(small, false, 0, 33e-3 / 8));
  cases.push_back(mha_case<float>(small, true, 0, 180e-3 / 10));
  for (BenchCase& one : cases) one.group = "layers";
  return cases;
}

}  // namespace qkv::cli

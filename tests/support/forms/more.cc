// Forms with outputs of their own: what captures hold; forward mode and double backward.
#include "support/checks/captured.h"
#include "support/checks/second_problem.h"
#include "support/forms/form.h"

namespace qkv::test {

namespace {

/// Rows, map, columns, largest weights and their keys: of the weights, then of weights times their gradient; then
/// statistics.
const std::vector<const char*> kCaptures = {"rows", "map", "columns", "top weights", "top keys", "dw rows", "dw map",
    "dw columns", "dw top weights", "dw top keys", "entropy", "max", "self", "previous", "first", "distance", "max key",
    "sink"};

AttentionOptions capturing(AttentionOptions options, const Capture& what, CaptureResult& result) {
  options.capture = {what, result};
  return options;
}

template <class T> std::vector<Tensor<double>> captures(const Problem<T>& p, unsigned asked, Context& context) {
  const Capture every = capture_of(p.c);
  const auto asks = [&](unsigned first, unsigned count) { return (asked >> first & ((1U << count) - 1)) != 0; };
  const auto request = [&](unsigned first) {
    Capture made{.heads = every.heads, .column_mass = asks(first + 2, 1)};
    if (asks(first, 1)) made.rows = every.rows;
    if (asks(first + 1, 1)) made.map_rows = every.map_rows, made.map_columns = every.map_columns;
    if (asks(first + 3, 2)) made.top_k = every.top_k;
    return made;
  };
  Capture weights = request(0), gradient = request(5);
  weights.statistics = asks(10, 8);
  gradient.of = CaptureOf::kGradient;
  gradient.positive = p.c.seed % 3 == 1;
  CaptureResult of_weights, of_gradient;
  Result<T> result(p);
  attention_forward(p.q(), p.k(), p.v(), {.out = result.out.view, .lse = result.lse},
      capturing(p.options, weights, of_weights), context);
  if (asks(5, 5)) {
    attention_backward(p.q(), p.k(), p.v(), result.out.view, result.lse, p.dout.view, {.dlse = p.dlse},
        capturing(p.options, gradient, of_gradient), context);
  }
  std::vector<Tensor<double>> made;
  for (const CaptureResult* from : {&of_weights, &of_gradient}) {
    for (const Tensor<double>* x : {&from->rows, &from->map, &from->column_mass, &from->top_weights})
      made.push_back(widened(*x));
    made.push_back(widened(from->top_keys));
  }
  const RowStatistics& s = of_weights.statistics;
  for (const Tensor<double>* x : {&s.entropy, &s.max_weight, &s.self, &s.previous, &s.first, &s.distance})
    made.push_back(widened(*x));
  made.push_back(widened(s.max_key));
  made.push_back(widened(s.sink));
  return made;
}

/// Tangents sin(3 x): NaN where x is not finite.
template <class T> std::vector<Tensor<double>> second(const Problem<T>& p, unsigned asked, Context& context) {
  const SecondProblem<T> problem(p, [](T x) { return std::sin(3 * x); });
  SecondResult<T> result(problem);
  result.run(problem, context, asked);
  EXPECT_TRUE(result.sentinels_intact());
  std::vector<Tensor<double>> made;
  for (const Tensor<T>& x : result.outputs()) made.push_back(widened(x));
  return made;
}

/// Bits of `count` outputs of a form's own.
constexpr unsigned more_bits(std::size_t count) { return ((1U << count) - 1) * kMore; }

}  // namespace

template <class T> Form<T> captured() {
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    CaptureResult result;
    const Capture what = capture_of(p.c);
    attention_forward(p.q(), p.k(), p.v(), outputs, capturing(p.options, what, result), context);
  };
  const auto backward = [](const Problem<T>& p, const Result<T>& r, const AttentionGradients<T>& gradients,
                            Context& context) {
    CaptureResult result;
    Capture what = capture_of(p.c);
    what.statistics = false;
    what.of = CaptureOf::kGradient;
    attention_backward(
        p.q(), p.k(), p.v(), r.out.view, r.lse, p.dout.view, gradients, capturing(p.options, what, result), context);
  };
  const auto of = [](AttentionCase c) { return c.q_len == 0 || c.kv_len == 0 ? std::nullopt : any(c); };
  Form<T> form{
      "captured", kForward | kGradients | more_bits(kCaptures.size()), kForward | kGradients, of, forward, backward};
  form.more_names = kCaptures;
  form.more = captures<T>;
  return form;
}

template <class T> Form<T> derivatives() {
  const auto of = [](AttentionCase c) {
    c.mod = ModKind::kNone;
    return kIsHalf<T> ? std::nullopt : any(c);
  };
  Form<T> form{"derivatives", more_bits(kSecondNames.size()), 0, of, dense_forward<T>};
  form.more_names = {kSecondNames.begin(), kSecondNames.end()};
  if constexpr (!kIsHalf<T>) form.more = second<T>;
  return form;
}

#define QKV_TEST_MORE(T)          \
  template Form<T> captured<T>(); \
  template Form<T> derivatives<T>();
QKV_TEST_TYPES(QKV_TEST_MORE)

}  // namespace qkv::test

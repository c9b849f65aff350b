// Forms with outputs of their own: what captures hold; forward mode and double backward.
#include "qkv/derivatives.h"
#include "support/checks/captured.h"
#include "support/forms/form.h"

namespace qkv::test {

namespace {

/// Rows, map, columns, largest weights and their keys: of the weights, then of weights times their gradient; then
/// statistics.
const std::vector<const char*> kCaptures = {"rows", "map", "columns", "top weights", "top keys", "dw rows", "dw map",
    "dw columns", "dw top weights", "dw top keys", "entropy", "max", "self", "previous", "first", "distance", "max key",
    "sink"};

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
  CaptureResult of_weights, of_gradient;
  Result<T> result(p);
  attention_forward(p.q(), p.k(), p.v(), {.out = result.out.view, .lse = result.lse},
      changed(p.options,
          [&](AttentionOptions& o) {
            o.capture = {weights, of_weights};
          }),
      context);
  if (asks(5, 5)) {
    attention_backward(p.q(), p.k(), p.v(), result.out.view, result.lse, p.dout.view, {.dlse = p.dlse},
        changed(p.options,
            [&](AttentionOptions& o) {
              o.capture = {gradient, of_gradient};
            }),
        context);
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

/// sin(3 x): NaN where x is not finite.
template <class T> void set_tangents(const View<T, 4>& to, const View<const T, 4>& of) {
  for_each_index(to.sizes(), [&](Index b, Index h, Index t, Index n) {
    to(b, h, t, n) = number_as<T>(std::sin(3 * number_as<double>(of(b, h, t, n))));
  });
}
template <class T> Tensor<T> tangents_of(const Tensor<T>& x) {
  if (x.rank() == 0) return {};
  Tensor<T> made(x.sizes());
  for (Index n = 0; n < x.count(); ++n) made.data()[n] = std::sin(3 * x.data()[n]);
  return made;
}

const std::vector<const char*> kDerivatives = {
    "tout", "tlse", "gq", "gk", "gv", "gdout", "gdlse", "gbias", "gsinks", "gposition"};

template <class T> std::vector<Tensor<double>> second(const Problem<T>& p, unsigned asked, Context& context) {
  const std::array sizes = {p.q().sizes(), p.k().sizes(), p.v().sizes()};
  const Triple<T> moved(sizes, p.c.layout), gradients(sizes, p.c.layout);
  const std::array<View<const T, 4>, 3> inputs = {p.q(), p.k(), p.v()};
  for (std::size_t n = 0; n < 3; ++n) set_tangents(moved.views[n], inputs[n]);
  AttentionTangents<T> tangents{.q = moved.views[0], .k = moved.views[1], .v = moved.views[2]};
  const Tensor<T> sinks = tangents_of(p.sinks), position = tangents_of(p.position_table);
  Tensor<T> bias, gbias, gsinks, gposition;
  Result<T> result(p);
  const Placed<T> tout(result.out.view.sizes(), p.c.layout), gdout(result.out.view.sizes(), p.c.layout);
  Tensor<T> tlse(result.lse.sizes()), gdlse(result.lse.sizes());
  const auto asks = [asked](unsigned n) { return (asked >> n & 1U) != 0; };
  AttentionSecondGradients<T> wanted;
  if (asks(2)) wanted.gq = gradients.views[0];
  if (asks(3)) wanted.gk = gradients.views[1];
  if (asks(4)) wanted.gv = gradients.views[2];
  if (asks(5)) wanted.gdout = gdout.view;
  if (asks(6)) wanted.gdlse = gdlse;
  if (!p.bias.is_null()) {
    bias = Tensor<T>(std::vector<Index>(p.bias.sizes().begin(), p.bias.sizes().end()));
    gbias = Tensor<T>(bias.sizes());
    set_tangents<T>(bias.template view<4>(), p.bias);
    tangents.bias = bias;
    if (asks(7)) wanted.gbias = gbias;
  }
  if (sinks.rank() > 0) {
    gsinks = Tensor<T>(sinks.sizes());
    tangents.sinks = sinks;
    if (asks(8)) wanted.gsinks = gsinks;
  }
  if (position.rank() > 0) {
    gposition = Tensor<T>(position.sizes());
    tangents.position_bias = position;
    if (asks(9)) wanted.gposition_bias = gposition;
  }
  wanted.dlse = p.dlse;
  result.run_forward(p, context);
  if (asks(0)) attention_jvp(p.q(), p.k(), p.v(), result.lse, tangents, tout.view, {}, p.options, context);
  if (asks(1)) attention_jvp(p.q(), p.k(), p.v(), result.lse, tangents, {}, tlse, p.options, context);
  if (asked >> 2 != 0) {
    attention_double_backward(
        p.q(), p.k(), p.v(), result.out.view, result.lse, p.dout.view, tangents, wanted, p.options, context);
  }
  EXPECT_TRUE(tout.storage.sentinels_intact() && gdout.storage.sentinels_intact() && gradients.sentinels_intact());
  std::vector<Tensor<double>> made;
  made.push_back(copy_as<double>(tout.view));
  made.push_back(widened(tlse));
  for (const View<T, 4>& view : gradients.views) made.push_back(copy_as<double>(view));
  made.push_back(copy_as<double>(gdout.view));
  for (const Tensor<T>* x : {&gdlse, &gbias, &gsinks, &gposition}) made.push_back(widened(*x));
  return made;
}

/// Bits of `count` outputs of a form's own.
constexpr unsigned more_bits(std::size_t count) { return ((1U << count) - 1) * kMore; }

}  // namespace

template <class T> Form<T> captured() {
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    CaptureResult result;
    const Capture what = capture_of(p.c);
    attention_forward(p.q(), p.k(), p.v(), outputs,
        changed(p.options,
            [&](AttentionOptions& o) {
              o.capture = {what, result};
            }),
        context);
  };
  const auto backward = [](const Problem<T>& p, const Result<T>& r, const AttentionGradients<T>& gradients,
                            Context& context) {
    CaptureResult result;
    Capture what = capture_of(p.c);
    what.statistics = false;
    what.of = CaptureOf::kGradient;
    attention_backward(p.q(), p.k(), p.v(), r.out.view, r.lse, p.dout.view, gradients,
        changed(p.options,
            [&](AttentionOptions& o) {
              o.capture = {what, result};
            }),
        context);
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
  Form<T> form{"derivatives", more_bits(kDerivatives.size()), 0, of, dense_forward<T>};
  form.more_names = kDerivatives;
  if constexpr (!kIsHalf<T>) form.more = second<T>;
  return form;
}

#define QKV_TEST_MORE(T)          \
  template Form<T> captured<T>(); \
  template Form<T> derivatives<T>();
QKV_TEST_MORE(float)
QKV_TEST_MORE(double)
QKV_TEST_MORE(BFloat16)
QKV_TEST_MORE(Float16)
#undef QKV_TEST_MORE

}  // namespace qkv::test

// Linear attention against PyTorch's autograd over a textbook recurrence, f64 and f32, both forms:
// outputs, states, gradients.
#include <gtest/gtest.h>

#include "golden/golden.h"
#include "linear/linear_expected.h"

namespace qkv::test {
namespace {

/// A result's name in the file, and ours.
constexpr std::pair<const char*, const char*> kResults[] = {{"out", "out"}, {"normalizer", "normalizer"},
    {"final_kv", "kv"}, {"final_z", "z"}, {"grad.q", "dq"}, {"grad.k", "dk"}, {"grad.v", "dv"}, {"grad.kv", "dkv"},
    {"grad.z", "dz"}, {"grad.beta", "dbeta"}, {"grad.log_decay", "dlog_decay"}};

class LinearGolden : public testing::TestWithParam<std::string> {
 protected:
  LinearGolden() : file_(GetParam()) {}

  FeatureMap feature_map() const {
    const std::string& name = file_.fact("feature_map");
    if (name == "elu_plus_one") return FeatureMap::kEluPlusOne;
    if (name == "relu") return FeatureMap::kRelu;
    return name == "identity" ? FeatureMap::kIdentity : FeatureMap::kSoftmax;
  }
  std::optional<double> scale() const {
    if (file_.tensors().metadata.count("scale") == 0) return {};
    return file_.number("scale");
  }

  template <class N> Tensor<N> tensor(const std::string& name) const {
    if (!file_.has(name)) return {};
    const Tensor<double> values = file_.f64(name);
    Tensor<N> result(values.sizes());
    std::ranges::transform(values.span(), result.data(), [](double x) { return N(x); });
    return result;
  }

  template <class N> LinearReferenceInput<N> input() const {
    LinearReferenceInput<N> in{tensor<N>("q"), tensor<N>("k"), tensor<N>("v"), tensor<N>("dout"), tensor<N>("features"),
        tensor<N>("log_decay"), {}, tensor<N>("beta"), tensor<N>("kv"), tensor<N>("z"), tensor<N>("dkv"),
        tensor<N>("dz"), {}};
    in.options = {.map = feature_map(),
        .features = view<2>(in.features),
        .causal = file_.number("causal") != 0,
        .normalized = file_.number("normalized") != 0,
        .scale = scale(),
        .log_decay = view<3>(in.log_decay),
        .beta = view<3>(in.beta),
        .kv = view<4>(in.kv),
        .z = view<3>(in.z)};
    return in;
  }

  template <int Rank, class N> static View<const N, Rank> view(const Tensor<N>& tensor) {
    return tensor.data() == nullptr ? View<const N, Rank>() : tensor.template view<Rank>();
  }
  template <int Rank, class N> static View<N, Rank> view(Tensor<N>& tensor) {
    return tensor.data() == nullptr ? View<N, Rank>() : tensor.template view<Rank>();
  }

  /// Tensors of the sizes in the file; empty where it has none.
  template <class T> Tensor<T> like(const char* name) const {
    return file_.has(name) ? Tensor<T>(file_.f64(name).sizes()) : Tensor<T>();
  }

  template <class T> void check(LinearForm form, Worst& worst) const {
    const LinearReferenceInput<T> in = input<T>();
    const auto& given = in.options;
    const LinearAttentionOptions<T> options{.feature_map = given.map,
        .features = given.features,
        .causal = given.causal,
        .normalized = given.normalized,
        .scale = given.scale,
        .log_decay = given.log_decay,
        .beta = given.beta,
        .initial = {.kv = given.kv, .z = given.z},
        .form = form};
    std::map<std::string, Tensor<T>> got;
    for (const auto& [theirs, ours] : kResults) got.emplace(ours, like<T>(theirs));
    linear_attention_forward(in.q, in.k, in.v, got["out"], view<3>(got["normalizer"]), options,
        {.kv = view<4>(got["kv"]), .z = view<3>(got["z"])});
    LinearAttentionGradients<T> gradients{.dq = got["dq"], .dk = got["dk"], .dv = got["dv"]};
    gradients.dlog_decay = view<3>(got["dlog_decay"]), gradients.dbeta = view<3>(got["dbeta"]);
    gradients.dinitial = {.kv = view<4>(got["dkv"]), .z = view<3>(got["dz"])};
    gradients.dfinal = {.kv = view<4>(in.dkv), .z = view<3>(in.dz)};
    linear_attention_backward(in.q, in.k, in.v, std::as_const(got["out"]), view<3>(std::as_const(got["normalizer"])),
        in.dout, gradients, options);

    auto expected = linear_expectations<T>(input<Wider<T>>(), in, input<Measured>());
    int results = 0;
    for (const auto& [theirs, ours] : kResults) {
      if (!file_.has(theirs)) continue;
      Expected<T>& judged = expected.at(ours);
      judged.exact = tensor<Wider<T>>(theirs);
      // PyTorch's f64 is a naive form too: its error may be as large as ours.
      if (sizeof(T) == sizeof(double)) std::ranges::for_each(judged.bounds, [](double& bound) { bound *= 2; });
      EXPECT_TRUE(within(judged, got[ours], ours, file_.name(), worst));
      ++results;
    }
    EXPECT_GE(results, 5);  // at least out, final_kv, grad.q, grad.k, grad.v
  }

  template <class T> void check_forms() const {
    Worst worst;
    check<T>(LinearForm::kChunked, worst);
    if (file_.number("causal") != 0) check<T>(LinearForm::kRecurrent, worst);
    worst.print(sizeof(T) == 4 ? "f32" : "f64");
  }

  golden::File file_;
};

TEST_P(LinearGolden, InF64AndF32) {
  check_forms<double>();
  check_forms<float>();
}

INSTANTIATE_TEST_SUITE_P(Files, LinearGolden, testing::ValuesIn(golden::File::of_kind("linear")),
    [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace qkv::test

// Sinks, position biases, softcap and callbacks against PyTorch's FlexAttention and the formulas of Hugging Face's models, f64
// and f32, on every modifier_*.safetensors. Made by scripts/golden/modifiers.py.
#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <filesystem>

#include "golden/golden.h"
#include "qkv/attention.h"

namespace qkv {
namespace {

std::vector<std::string> modifier_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(QKV_GOLDEN_DIR)) {
    const std::string stem = entry.path().stem().string();
    if (stem.starts_with("modifier_") && stem != "modifier_buckets") names.push_back(stem);
  }
  std::ranges::sort(names);
  return names;
}

std::vector<double> numbers_in(const std::string& text) {
  std::vector<double> numbers;
  for (const char* at = text.data(); at < text.data() + text.size(); ++at) {
    double number = 0;
    at = std::from_chars(at, text.data() + text.size(), number).ptr;
    numbers.push_back(number);
  }
  return numbers;
}

double largest(const Tensor<double>& values) {
  double most = 0;
  for (const double value : values.span()) most = std::max(most, std::abs(value));
  return most;
}

class ModifierGolden : public testing::TestWithParam<std::string> {
 protected:
  ModifierGolden() : file_(GetParam()) {}

  bool says(const std::string& fact) const { return file_.tensors().metadata.count(fact) != 0; }

  template <class T>
  Tensor<T> input(const std::string& name) const {
    if (!file_.has(name)) return {};
    const Tensor<double> exact = file_.f64(name);
    Tensor<T> result(exact.sizes());
    std::ranges::transform(exact.span(), result.data(), [](double x) { return static_cast<T>(x); });
    return result;
  }

  template <class T>
  AttentionOptions options(const Tensor<T>& table, const Tensor<T>& sinks) const {
    AttentionOptions made;
    if (file_.fact("causal") == "square") made.mask = Mask::causal();
    if (says("softcap")) made.softcap = file_.number("softcap");
    if (sinks.data() != nullptr) made.sinks = sinks;
    if (says("callback")) {
      made.score_mod = score_mod(
          [](auto s, Index, Index h, Index i, Index j) {
            using S = decltype(s);
            return 10 * s / std::sqrt(100 + s * s) - static_cast<S>(std::abs(i - j)) / 20 + static_cast<S>(h) / 10;
          },
          [](auto s, Index, Index, Index, Index) { return 1000 / std::pow(100 + s * s, decltype(s)(1.5)); });
    }
    if (!says("position")) return made;
    const std::string &kind = file_.fact("position"), &where = file_.fact("align");
    const Align align = where == "square" ? Align::kSquare : where == "top-left" ? Align::kTopLeft : Align::kBottomRight;
    if (kind == "alibi") made.position_bias = PositionBias::alibi(numbers_in(file_.fact("slopes")), align);
    if (kind == "relative") made.position_bias = PositionBias::relative(table.template view<2>(), align);
    if (kind == "t5") {
      const T5Buckets buckets{.num_buckets = std::stoll(file_.fact("num_buckets")),
                              .max_distance = std::stoll(file_.fact("max_distance")),
                              .bidirectional = file_.fact("bidirectional") == "True"};
      made.position_bias = PositionBias::t5(table.template view<2>(), buckets, align);
    }
    return made;
  }

  /// 16 eps (1 + the largest score) times the largest sum of magnitudes of the result's terms.
  template <class T>
  double bound(const std::string& name) const {
    const Tensor<double> q = file_.f64("q"), k = file_.f64("k"), v = file_.f64("v"), dout = file_.f64("dout");
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    double score = 1 + scale * static_cast<double>(q.size(3)) * largest(q) * largest(k);
    for (const char* added : {"table", "sinks"}) score += file_.has(added) ? largest(file_.f64(added)) : 0;
    if (says("slopes")) score += numbers_in(file_.fact("slopes"))[0] * static_cast<double>(k.size(2));
    double terms = score;  // lse, weights
    if (name == "out") terms = score * largest(v);
    const double rows = static_cast<double>(q.size(1) * q.size(2));
    const double ds = 2 * largest(dout) * largest(v) * static_cast<double>(v.size(3));
    if (name == "dq" || name == "dk") terms = score * ds * scale * (largest(k) + rows * largest(q));
    if (name == "dv") terms = score * rows * largest(dout);
    if (name == "dtable" || name == "dsinks") terms = score * ds * rows * static_cast<double>(q.size(0));
    return 16 * static_cast<double>(std::numeric_limits<T>::epsilon()) * terms;
  }

  template <class T>
  void check_all() const {
    const auto q = input<T>("q"), k = input<T>("k"), v = input<T>("v"), dout = input<T>("dout"), table = input<T>("table"),
               sinks = input<T>("sinks");
    const AttentionOptions given = options(table, sinks);
    const auto check = [&](const std::string& name, const Tensor<T>& got) {
      EXPECT_LE(file_.ratio<T>(name, got.span(), bound<T>(name)), 1) << name;
    };
    Tensor<T> out(file_.f64("out").sizes()), lse(file_.f64("lse").sizes()), weights(file_.f64("weights").sizes());
    attention_forward(q, k, v, {.out = out, .lse = lse}, given);
    attention_forward(q, k, {}, {.weights = weights}, given);
    check("out", out);
    check("weights", weights);
    if (!says("lse")) check("lse", lse);
    Tensor<T> dq(q.sizes()), dk(k.sizes()), dv(v.sizes()), dtable(table.sizes()), dsinks(sinks.sizes());
    AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
    if (table.data() != nullptr) gradients.dposition_bias = dtable;
    if (sinks.data() != nullptr) gradients.dsinks = dsinks;
    attention_backward(q, k, v, std::as_const(out), std::as_const(lse), dout, gradients, given);
    check("dq", dq);
    check("dk", dk);
    check("dv", dv);
    if (table.data() != nullptr) check("dtable", dtable);
    if (sinks.data() != nullptr) check("dsinks", dsinks);
  }

  golden::File file_;
};

TEST_P(ModifierGolden, F64) { check_all<double>(); }
TEST_P(ModifierGolden, F32) { check_all<float>(); }

INSTANTIATE_TEST_SUITE_P(Files, ModifierGolden, testing::ValuesIn(modifier_files()), [](const auto& instance) {
  std::string name = instance.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(ModifierGolden, SlopesAreHuggingFaces) {
  for (const char* heads : {"4", "6"}) {
    const std::vector<double> wanted = numbers_in(golden::File(std::string("modifier_alibi_") + heads).fact("slopes"));
    const std::vector<double> got = alibi_slopes(std::stoll(heads));
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t h = 0; h < got.size(); ++h) {  // theirs are powers of a rounded base, in float
      EXPECT_NEAR(got[h], wanted[h], 1e-6 * got[h]);
    }
  }
}

TEST(ModifierGolden, BucketsAreHuggingFaces) {
  const golden::File file("modifier_buckets");
  for (const bool bidirectional : {true, false}) {
    for (const auto& [num_buckets, max_distance] : {std::pair<Index, Index>{32, 128}, {64, 256}, {8, 20}, {12, 100}}) {
      const std::string name = std::to_string(static_cast<int>(bidirectional)) + "." + std::to_string(num_buckets) + "." +
                               std::to_string(max_distance);
      if (!file.has(name)) continue;
      const Tensor<std::int64_t> wanted = to_i64(file.tensors().at(name));
      for (Index n = 0; n < wanted.count(); ++n) {
        EXPECT_EQ(t5_bucket(n - 600, {num_buckets, max_distance, bidirectional}), wanted.data()[n]) << name << " " << n - 600;
      }
    }
  }
}

}  // namespace
}  // namespace qkv

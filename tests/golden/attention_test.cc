// Attention against PyTorch in f64 and f32: masks, biases, dropout and empty rows; sinks, position biases, soft caps
// and callbacks by FlexAttention and the formulas of Hugging Face's models.
#include "qkv/attention.h"

#include <gtest/gtest.h>

#include <charconv>

#include "golden/golden.h"

namespace qkv {
namespace {

template <class N> std::vector<N> numbers_in(const std::string& text) {
  std::vector<N> numbers;
  for (const char* at = text.data(); at < text.data() + text.size(); ++at) {
    N number = 0;
    at = std::from_chars(at, text.data() + text.size(), number).ptr;
    numbers.push_back(number);
  }
  return numbers;
}

class AttentionGolden : public testing::TestWithParam<std::string> {
 protected:
  AttentionGolden()
      : file_(GetParam()), keep_(file_.has("keep") ? to_bool(file_.tensors().at("keep")) : Tensor<std::uint8_t>()) {}

  /// A fact, or what it is where the file does not say.
  std::string fact(const std::string& key, const std::string& otherwise) const {
    return file_.tensors().metadata.contains(key) ? file_.fact(key) : otherwise;
  }
  double number(const std::string& key) const { return std::stod(fact(key, "0")); }
  Align align(const std::string& word) const {
    return word == "square" ? Align::kSquare : word == "top-left" ? Align::kTopLeft : Align::kBottomRight;
  }

  template <class T> Tensor<T> input(const std::string& name) const {
    if (!file_.has(name)) return {};
    const Tensor<double> exact = file_.f64(name);
    Tensor<T> result(exact.sizes());
    std::ranges::transform(exact.span(), result.data(), [](double x) { return static_cast<T>(x); });
    return result;
  }

  Mask mask() const {
    Mask made;
    if (file_.fact("causal") != "none") made = made & Mask::causal(align(file_.fact("causal")));
    if (fact("window", "none") != "none") {
      const std::vector<Index> sides = numbers_in<Index>(file_.fact("window"));
      made = made & Mask::window(sides.at(0), sides.at(1));
    }
    if (fact("key_lengths", "none") != "none")
      made = made & Mask::key_lengths(numbers_in<Index>(file_.fact("key_lengths")));
    if (keep_.rank() == 4) made = made & Mask::keep(keep_.view<4>());
    return made;
  }

  template <class T>
  AttentionOptions options(const Tensor<T>& bias, const Tensor<T>& table, const Tensor<T>& sinks) const {
    AttentionOptions made;
    made.mask = mask();
    if (bias.rank() == 4) made.bias = bias;
    if (sinks.rank() == 1) made.sinks = sinks;
    if (fact("scale", "default") != "default") made.scale = file_.number("scale");
    made.softcap = number("softcap");
    made.empty_row = fact("empty_row", "zero") == "mean" ? EmptyRow::kMean : EmptyRow::kZero;
    made.dropout = {.p = number("dropout"), .seed = std::stoull(fact("seed", "0")), .training = true};
    if (fact("callback", "none") == "bend") {
      made.score_mod = score_mod(
          [](auto s, Index, Index h, Index i, Index j) {
            using S = decltype(s);
            return 10 * s / std::sqrt(100 + s * s) - static_cast<S>(std::abs(i - j)) / 20 + static_cast<S>(h) / 10;
          },
          [](auto s, Index, Index, Index, Index) { return 1000 / std::pow(100 + s * s, decltype(s)(1.5)); });
    }
    const std::string kind = fact("position", "none");
    if (kind == "none") return made;
    const Align where = align(file_.fact("align"));
    if (kind == "alibi") made.position_bias = PositionBias::alibi(numbers_in<double>(file_.fact("slopes")), where);
    if (kind == "relative") made.position_bias = PositionBias::relative(table.template view<2>(), where);
    if (kind == "t5") {
      const T5Buckets buckets{.num_buckets = std::stoll(file_.fact("num_buckets")),
          .max_distance = std::stoll(file_.fact("max_distance")),
          .bidirectional = file_.fact("bidirectional") == "True"};
      made.position_bias = PositionBias::t5(table.template view<2>(), buckets, where);
    }
    return made;
  }

  /// The largest finite |x|; 0 where there is no such tensor.
  double largest(const std::string& name) const {
    double most = 0;
    if (!file_.has(name)) return most;
    const Tensor<double> values = file_.f64(name);
    for (const double value : values.span()) {
      if (std::isfinite(value)) most = std::max(most, std::abs(value));
    }
    return most;
  }

  /// 16 eps (1 + the largest score) times the largest magnitude of what is multiplied; an error in one score affects
  /// its row.
  template <class T> double bound(const std::string& name) const {
    const Tensor<double> q = file_.f64("q"), k = file_.f64("k"), v = file_.f64("v");
    const auto width = static_cast<double>(q.size(3)), kv_len = static_cast<double>(k.size(2));
    const double scale = fact("scale", "default") == "default" ? 1 / std::sqrt(width) : std::abs(file_.number("scale"));
    double score =
        1 + scale * width * largest("q") * largest("k") + largest("bias") + largest("table") + largest("sinks");
    if (fact("position", "none") == "alibi") score += numbers_in<double>(file_.fact("slopes"))[0] * kv_len;
    const double dropped = 1 / (1 - number("dropout")), dout = largest("dout");
    const double queries = static_cast<double>(q.size(2) * q.size(1) / k.size(1)),
                 batch = static_cast<double>(q.size(0));
    const double ds = 2 * dout * largest("v") * static_cast<double>(v.size(3)) * dropped;
    double terms = 1;  // lse, weights
    if (name == "out") terms = largest("v") * dropped;
    if (name == "dq" || name == "dk") terms = ds * (1 + scale * (largest("k") + queries * largest("q")));
    if (name == "dv") terms = dropped * queries * dout;
    if (name == "dbias") terms = ds * queries * batch;
    if (name == "dtable" || name == "dsinks") terms = ds * static_cast<double>(q.size(1) * q.size(2)) * batch;
    return 16 * static_cast<double>(std::numeric_limits<T>::epsilon()) * score * terms;
  }

  template <class T> void check_all() const {
    const auto q = input<T>("q"), k = input<T>("k"), v = input<T>("v"), dout = input<T>("dout"),
               bias = input<T>("bias"), table = input<T>("table"), sinks = input<T>("sinks");
    const AttentionOptions given = options(bias, table, sinks);
    const auto check = [&](const std::string& name, const Tensor<T>& got) {
      if (got.rank() > 0) {
        EXPECT_LE(file_.ratio<T>(name, got.span(), bound<T>(name)), 1) << name;
      }
    };
    Tensor<T> out(file_.f64("out").sizes()), lse(file_.f64("lse").sizes()), weights(file_.f64("weights").sizes());
    attention_forward(q, k, v, {.out = out, .lse = lse}, given);
    attention_forward(q, k, {}, {.weights = weights}, given);
    Tensor<T> dq(q.sizes()), dk(k.sizes()), dv(v.sizes()), dbias(bias.sizes()), dtable(table.sizes()),
        dsinks(sinks.sizes());
    AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
    if (bias.rank() == 4) gradients.dbias = dbias;
    if (table.rank() == 2) gradients.dposition_bias = dtable;
    if (sinks.rank() == 1) gradients.dsinks = dsinks;
    attention_backward(q, k, v, std::as_const(out), std::as_const(lse), dout, gradients, given);
    for (const auto& [name, got] : {std::pair("out", &out), {"lse", &lse}, {"weights", &weights}, {"dq", &dq},
             {"dk", &dk}, {"dv", &dv}, {"dbias", &dbias}, {"dtable", &dtable}, {"dsinks", &dsinks}}) {
      check(name, *got);
    }
  }

  golden::File file_;
  Tensor<std::uint8_t> keep_;
};

TEST_P(AttentionGolden, InF64AndF32) {
  check_all<double>();
  check_all<float>();
}

std::vector<std::string> attention_cases() {
  std::vector<std::string> names = golden::File::of_kind("sdpa");
  std::ranges::copy(golden::File::of_kind("modifier"), std::back_inserter(names));
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    Files, AttentionGolden, testing::ValuesIn(attention_cases()), [](const auto& instance) { return instance.param; });

TEST(ModifierGolden, SlopesAreHuggingFaces) {
  for (const auto& [heads, name] : {std::pair(4, "modifier_softcap_alibi"), std::pair(6, "modifier_alibi_6")}) {
    const std::vector<double> wanted = numbers_in<double>(golden::File(name).fact("slopes"));
    const std::vector<double> got = alibi_slopes(heads);
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
      const std::string name = std::to_string(static_cast<int>(bidirectional)) + "." + std::to_string(num_buckets) +
                               "." + std::to_string(max_distance);
      if (!file.has(name)) continue;
      const Tensor<std::int64_t> wanted = to_i64(file.tensors().at(name));
      for (Index n = 0; n < wanted.count(); ++n) {
        EXPECT_EQ(t5_bucket(n - 600, {num_buckets, max_distance, bidirectional}), wanted.data()[n])
            << name << " " << n - 600;
      }
    }
  }
}

}  // namespace
}  // namespace qkv

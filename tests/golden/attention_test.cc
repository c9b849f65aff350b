// Attention against PyTorch: the reference in f64, and the tiled kernels in f64 and f32, on every sdpa_*.safetensors.
#include "qkv/attention.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "golden/golden.h"
#include "reference/attention.h"

namespace qkv {
namespace {

std::vector<std::string> attention_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(QKV_GOLDEN_DIR)) {
    const std::string stem = entry.path().stem().string();
    if (stem.starts_with("sdpa_")) names.push_back(stem);
  }
  std::ranges::sort(names);
  return names;
}

std::vector<Index> numbers_in(const std::string& text) {
  std::vector<Index> numbers;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t used = 0;
    numbers.push_back(std::stoll(text.substr(at), &used));
    at += used + 1;
  }
  return numbers;
}

/// The mask that the file's facts describe, borrowed from `keep` where it is dense.
Mask mask_of(const golden::File& file, const Tensor<std::uint8_t>& keep) {
  Mask mask;
  const std::string& causal = file.fact("causal");
  if (causal == "square") mask = mask & Mask::causal();
  if (causal == "top-left") mask = mask & Mask::causal(Align::kTopLeft);
  if (causal == "bottom-right") mask = mask & Mask::causal(Align::kBottomRight);
  if (file.fact("window") != "none") {
    const std::vector<Index> sides = numbers_in(file.fact("window"));
    mask = mask & Mask::window(sides.at(0), sides.at(1));
  }
  if (file.fact("key_lengths") != "none") mask = mask & Mask::key_lengths(numbers_in(file.fact("key_lengths")));
  if (keep.rank() == 4) mask = mask & Mask::keep(keep.view<4>());
  return mask;
}

template <class T>
Tensor<T> rounded(const golden::File& file, const std::string& name) {
  const Tensor<double> exact = file.f64(name);
  Tensor<T> result(exact.sizes());
  for (Index n = 0; n < exact.count(); ++n) result.data()[n] = static_cast<T>(exact.data()[n]);
  return result;
}

double largest(const Tensor<double>& values) {
  double most = 0;
  for (const double value : values.span()) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

class AttentionGolden : public testing::TestWithParam<std::string> {
 protected:
  AttentionGolden()
      : file_(GetParam()), keep_(file_.has("keep") ? to_bool(file_.tensors().at("keep")) : Tensor<std::uint8_t>()) {}

  template <class T>
  AttentionOptions options(const Tensor<T>& bias) const {
    AttentionOptions made;
    made.mask = mask_of(file_, keep_);
    if (bias.rank() == 4) made.bias = bias;
    if (file_.fact("scale") != "default") made.scale = file_.number("scale");
    made.softcap = file_.number("softcap");
    made.empty_row = file_.fact("empty_row") == "mean" ? EmptyRow::kMean : EmptyRow::kZero;
    made.dropout = {.p = file_.number("dropout"), .seed = file_.seed(), .training = true};
    return made;
  }

  /// Checks that `got` is within its bound.
  template <class T>
  void check(const std::string& name, std::span<const T> got) const {
    EXPECT_LE(file_.ratio<T>(name, got, bound<T>(name)), 1) << name;
  }

  /// 16 eps (1 + the largest score) times the largest magnitude of what is multiplied; an error in one score affects its row.
  template <class T>
  double bound(const std::string& name) const {
    const Tensor<double> q = file_.f64("q"), k = file_.f64("k");
    const auto width = static_cast<double>(q.size(3));
    const double scale = file_.fact("scale") == "default" ? 1 / std::sqrt(width) : std::abs(file_.number("scale"));
    const double score = 1 + scale * width * largest(q) * largest(k) + (file_.has("bias") ? largest(file_.f64("bias")) : 0);
    const double dropped = 1 / (1 - file_.number("dropout"));
    double terms = score;  // lse, weights
    if (name == "out") terms = score * largest(file_.f64("v")) * dropped;
    if (name.starts_with("d")) {
      const double ds =
          2 * largest(file_.f64("dout")) * largest(file_.f64("v")) * static_cast<double>(file_.f64("v").size(3)) * dropped;
      const double queries = static_cast<double>(q.size(2) * q.size(1) / k.size(1));
      terms = score *
              std::max(ds * (1 + scale * (largest(k) + queries * largest(q))), dropped * queries * largest(file_.f64("dout")));
      if (name == "dbias") terms = score * ds * queries * static_cast<double>(q.size(0));
    }
    return 16 * static_cast<double>(std::numeric_limits<T>::epsilon()) * terms;
  }

  template <class T>
  void check_tiled() const {
    const Tensor<T> q = rounded<T>(file_, "q"), k = rounded<T>(file_, "k"), v = rounded<T>(file_, "v"),
                    dout = rounded<T>(file_, "dout"), bias = file_.has("bias") ? rounded<T>(file_, "bias") : Tensor<T>();
    const AttentionOptions given = options(bias);
    Tensor<T> out(file_.f64("out").sizes()), lse(file_.f64("lse").sizes()), weights(file_.f64("weights").sizes());
    attention_forward(q.template view<4>(), k.template view<4>(), v.template view<4>(),
                      {.out = out.template view<4>(), .lse = lse.template view<3>()}, given);
    attention_forward(q.template view<4>(), k.template view<4>(), {}, {.weights = weights.template view<4>()}, given);
    Tensor<T> dq(q.sizes()), dk(k.sizes()), dv(v.sizes()), dbias(bias.rank() == 4 ? bias.sizes() : std::vector<Index>{});
    AttentionGradients<T> gradients{.dq = dq.template view<4>(), .dk = dk.template view<4>(), .dv = dv.template view<4>()};
    if (bias.rank() == 4) gradients.dbias = dbias.template view<4>();
    attention_backward(q.template view<4>(), k.template view<4>(), v.template view<4>(), std::as_const(out).template view<4>(),
                       std::as_const(lse).template view<3>(), dout.template view<4>(), gradients, given);
    check<T>("out", out.span());
    check<T>("lse", lse.span());
    check<T>("weights", weights.span());
    check<T>("dq", dq.span());
    check<T>("dk", dk.span());
    check<T>("dv", dv.span());
    if (bias.rank() == 4) check<T>("dbias", dbias.span());
  }

  golden::File file_;
  Tensor<std::uint8_t> keep_;
};

TEST_P(AttentionGolden, TiledF64) { check_tiled<double>(); }
TEST_P(AttentionGolden, TiledF32) { check_tiled<float>(); }

INSTANTIATE_TEST_SUITE_P(Files, AttentionGolden, testing::ValuesIn(attention_files()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace qkv

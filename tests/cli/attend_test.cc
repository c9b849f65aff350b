// `qkv attend`: files in and out, every option against the reference in f64.
#include <cmath>
#include <limits>

#include "cli/tool.h"
#include "qkv/io/safetensors.h"
#include "reference/attention.h"
#include "support/random.h"

namespace qkv::test {
namespace {

constexpr Index kBatch = 2, kHeads = 3, kQueries = 5, kKeys = 7, kDim = 4;

/// One spelling of options, and its meaning.
struct Spelling {
  std::string name;
  Words words;
  Index kv_len = kKeys;
  reference::Options<double> options{};
};

class Attend : public ToolTest {
 protected:
  Attend() {
    keep_bk_ = Tensor<std::uint8_t>({kBatch, kKeys});
    drop_hqk_ = Tensor<float>({kHeads, kQueries, kKeys});
    bias_ = Tensor<double>({1, kHeads, 1, kKeys});
    for (std::uint8_t& one : keep_bk_.span()) one = random_.unit() < 0.6 ? 1 : 0;
    for (float& one : drop_hqk_.span()) one = random_.unit() < 0.3 ? 0.5F : 0.0F;
    for (double& one : bias_.span()) one = random_.symmetric();
    AnyTensor boolean = any_tensor(keep_bk_);
    boolean.dtype = DType::kBool;
    io::save_npy(path("keep.npy"), boolean);
    save("drop.npy", drop_hqk_);
    save("bias.npy", bias_);
  }

  Tensor<double> drawn(std::vector<Index> sizes) {
    Tensor<double> tensor(std::move(sizes));
    for (double& value : tensor.span()) value = random_.symmetric();
    return tensor;
  }

  std::vector<Spelling> spellings() const {
    const auto with = [](auto keep) {
      reference::Options<double> options;
      options.keep = keep;
      return options;
    };
    const View<const std::uint8_t, 2> keep = keep_bk_;
    const View<const float, 3> drop = drop_hqk_;
    reference::Options<double> bias, scale, softcap, mean;
    bias.bias = bias_;
    scale.scale = -0.5;
    softcap.softcap = 0.7;
    mean = with([](Index b, Index, Index, Index j) { return b == 1 && j < 3; });
    mean.empty_row = EmptyRow::kMean;
    constexpr Index shift = kKeys - kQueries;
    return {
        {"plain", {}},
        {"causal", {"--causal"}, kQueries, with([](Index, Index, Index i, Index j) { return j <= i; })},
        {"top-left", {"--causal=top-left"}, kKeys, with([](Index, Index, Index i, Index j) { return j <= i; })},
        {"bottom-right", {"--causal=bottom-right"}, kKeys,
            with([](Index, Index, Index i, Index j) { return j <= i + shift; })},
        {"offsets", {"--causal", "--offsets", "2,1"}, kKeys,
            with([](Index b, Index, Index i, Index j) { return j <= i + 2 - b; })},
        {"window", {"--window", "1,0"}, kQueries,
            with([](Index, Index, Index i, Index j) { return j <= i && j >= i - 1; })},
        {"window aligned", {"--window", "-1,1,bottom-right"}, kKeys,
            with([](Index, Index, Index i, Index j) { return j <= i + shift + 1; })},
        {"words", {"--mask", "causal(top-left) | prefix(3,5)"}, kKeys,
            with([](Index b, Index, Index i, Index j) { return j <= i || j < 3 + 2 * b; })},
        {"lengths", {"--key-lengths", "3,5"}, kKeys,
            with([](Index b, Index, Index, Index j) { return j < 3 + 2 * b; })},
        {"keep", {"--keep", "keep.npy", "--mask-axes", "bk"}, kKeys,
            with([keep](Index b, Index, Index, Index j) { return keep(b, j) != 0; })},
        {"drop", {"--drop", "drop.npy", "--mask-axes", "hqk"}, kKeys,
            with([drop](Index, Index h, Index i, Index j) { return drop(h, i, j) == 0; })},
        {"bias", {"--bias", "bias.npy"}, kKeys, bias},
        {"scale", {"--scale", "-0.5"}, kKeys, scale},
        {"softcap", {"--softcap", "0.7"}, kKeys, softcap},
        {"empty rows", {"--key-lengths", "0,3", "--empty-row", "mean"}, kKeys, mean},
    };
  }

  Random random_{7};
  Tensor<std::uint8_t> keep_bk_;
  Tensor<float> drop_hqk_;
  Tensor<double> bias_;
};

/// The bound for sums of at most `terms` numbers of size at most `largest`, in f64.
double allowed(Index terms, double largest) {
  return 8 * static_cast<double>(terms) * largest * std::numeric_limits<double>::epsilon();
}

double distance(const Tensor<double>& a, const Tensor<double>& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (Index n = 0; n < a.count(); ++n) {
    if (a.data()[n] == b.data()[n]) continue;  // -inf too
    const double gap = std::abs(a.data()[n] - b.data()[n]);
    worst = std::isnan(gap) ? std::numeric_limits<double>::infinity() : std::max(worst, gap);
  }
  return worst;
}

TEST_F(Attend, EverySpellingMeansWhatTheTextbookSays) {
  for (const Spelling& each : spellings()) {
    SCOPED_TRACE(each.name);
    const Tensor<double> q = drawn({kBatch, kHeads, kQueries, kDim}), k = drawn({kBatch, kHeads, each.kv_len, kDim});
    const Tensor<double> v = drawn(k.sizes()), dout = drawn(q.sizes());
    save("q.npy", q);
    save("k.npy", k);
    save("v.npy", v);
    save("g.npy", dout);
    const bool biased = each.name == "bias";
    const Words words =
        "attend --q q.npy --k k.npy --v v.npy --out out.npy --weights w.npy --lse l.npy --dout g.npy --dq dq.npy --dk "
        "dk.npy --dv dv.npy";
    EXPECT_EQ(output(words + each.words + (biased ? "--dbias db.npy" : "")), "");

    const auto forward = reference::attention_forward<double>(q, k, v, each.options);
    const auto backward = reference::attention_backward<double>(q, k, v, dout, {}, each.options);
    const double bound = allowed(each.kv_len * kDim, 4);
    EXPECT_LE(distance(to_f64(load("out.npy")), forward.out), bound);
    EXPECT_LE(distance(to_f64(load("w.npy")), forward.weights), bound);
    EXPECT_LE(distance(to_f64(load("l.npy")), forward.lse), bound);
    EXPECT_LE(distance(to_f64(load("dq.npy")), backward.dq), bound);
    EXPECT_LE(distance(to_f64(load("dk.npy")), backward.dk), bound);
    EXPECT_LE(distance(to_f64(load("dv.npy")), backward.dv), bound);
    if (!biased) continue;
    const Tensor<double> dbias = reference::reduce_to_bias<double>(backward.dbias, {1, kHeads, 1, kKeys});
    EXPECT_LE(distance(to_f64(load("db.npy")), dbias), bound * kBatch * kQueries);
  }
}

TEST_F(Attend, OneFileInAndOutHoldsTheSameBits) {
  StateDict in;
  for (const char* name : {"q", "k", "v", "dout"}) {
    const Tensor<double> tensor = drawn({1, 2, kQueries, kDim});
    Tensor<float> narrow(tensor.sizes());
    std::ranges::copy(tensor.span(), narrow.data());
    in.add(name, any_tensor(narrow));
    save(std::string(name) + ".npy", narrow);
  }
  io::save_safetensors(path("in.safetensors"), in);
  output("attend --in in.safetensors --out o.safetensors --causal --weights --dropout 0.3 --seed 9");
  output(
      "attend --q q.npy --k k.npy --v v.npy --out out.npy --causal --dropout 0.3 --seed 9 --dout dout.npy --dq dq.npy "
      "--dk dk.npy --dv dv.npy --weights weights.npy --lse lse.npy --threads 1");
  const StateDict out = io::load_safetensors(path("o.safetensors"));
  EXPECT_EQ(out.size(), 6U);
  for (const char* name : {"out", "weights", "lse", "dq", "dk", "dv"}) {
    const AnyTensor one = load(std::string(name) + ".npy");
    EXPECT_EQ(one.dtype, DType::kF32) << name;
    EXPECT_EQ(one.sizes, out.at(name).sizes) << name;
    EXPECT_EQ(one.bytes, out.at(name).bytes) << name;
  }
}

TEST_F(Attend, HashesAreThoseOfTheNumbers) {
  Tensor<float> one({1, 1, 1, 1}), v({1, 1, 1, 40});
  for (Index n = 0; n < 40; ++n) v.data()[n] = static_cast<float>(n) / 4;
  save("q.npy", one);
  save("v.npy", v);
  const Words attend = "attend --q q.npy --k q.npy --v v.npy --hash";  // one key: out is v, lse 0
  const std::string lse = "lse [1, 1, 1] F32 df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119\n";
  EXPECT_EQ(
      output(attend), "out [1, 1, 1, 40] F32 33be4fbbd36bd09e12534afd1dbc8f8d064342576e2248dab49f99871ce0bc12\n" + lse);
  // Gradients too, written or not; of a NaN the bits do not count.
  const std::string gradients = output(attend + "--dout v.npy --weights --lse l.npy");
  EXPECT_EQ(std::ranges::count(gradients, '\n'), 6);
  Tensor<double> nan({1, 1, 1, 2});
  std::ranges::fill(nan.span(), -std::numeric_limits<double>::quiet_NaN());
  save("q.npy", Tensor<double>({1, 1, 1, 1}));
  save("v.npy", nan);
  EXPECT_NE(
      output(attend).find("F64 241808cce19b49683d2308412efef71f1f4c7dcf2627039cba044bf44f6e3533\n"), std::string::npos);
  expect_refused("attend --q q.npy --k q.npy --v v.npy", {"--out is required, or --hash"});
}

}  // namespace
}  // namespace qkv::test

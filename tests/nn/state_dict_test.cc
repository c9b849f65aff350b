// Loading in every spelling, keeping the names that were loaded, and the text of every error.
#include <gtest/gtest.h>

#include <map>

#include "nn_support.h"

namespace qkv {
namespace {

using test::expect_parts;
using test::random_tensor;
using test::same_bits;
using test::state_of;

constexpr Index kStateDim = 4;

/// A layer of width kStateDim with one head.
std::unique_ptr<nn::Layer> made(std::string_view name) {
  return nn::make_layer(name, {.embed_dim = kStateDim, .num_heads = 1, .seed = 1});
}

/// Weights and biases of four matrices [E, E].
StateDict separate(const std::array<std::string, 4>& names, bool bias = true) {
  std::vector<std::pair<std::string, std::vector<Index>>> parts;
  for (const std::string& name : names) {
    parts.push_back({name + ".weight", {kStateDim, kStateDim}});
    if (bias) parts.push_back({name + ".bias", {kStateDim}});
  }
  return state_of(parts);
}

std::string names_of(const StateDict& state) {
  std::string names;
  for (const auto& entry : state.entries()) names += entry.name + " ";
  return names;
}

/// The error text of loading `state` into a layer.
template <class ErrorType = OptionError>
std::string refusal(std::string_view layer, const StateDict& state, std::string_view prefix = {}) {
  const auto whole = made(layer);
  const StateDict before = whole->state_dict();
  const std::string text = test::text_of<ErrorType>([&] { whole->load_state_dict(state, prefix); });
  EXPECT_TRUE(same_bits(before, whole->state_dict())) << "a refused file changed the layer";
  return text;
}

using Names = std::array<std::string, 4>;
const std::vector<Names> kSpellings = {{"query_proj", "key_proj", "value_proj", "output_proj"},
    {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_proj", "k_proj", "v_proj", "out_proj"}, {"W_Q", "W_K", "W_V", "W_O"},
    {"W_q", "W_k", "W_v", "W_o"}, {"to_q", "to_k", "to_v", "to_out"}, {"to_q", "to_k", "to_v", "to_out.0"},
    {"wq", "wk", "wv", "wo"}, {"w_q", "w_k", "w_v", "w_o"}, {"w_qs", "w_ks", "w_vs", "fc"},
    {"query", "key", "value", "proj"}, {"query", "key", "value", "c_proj"}, {"q_linear", "k_linear", "v_linear", "out"},
    {"W_q", "key_proj", "W_V", "o_proj"}};  // mixed

TEST(Spellings, AllNameTheSameAndAreKept) {
  const Tensor<float> x = random_tensor({2, 3, kStateDim}, 1);
  for (const std::string_view layer : {"v3", "v4", "single-head", "mha"}) {
    std::optional<Tensor<float>> first;
    for (const Names& names : kSpellings) {
      for (const std::string prefix : {"", "attn."}) {
        StateDict state = separate(names), prefixed;
        for (const auto& entry : state.entries()) prefixed.add(prefix + entry.name, entry.tensor.clone());
        if (!prefix.empty()) prefixed.add("head.weight", any_tensor(Tensor<float>({1})));  // another module's
        const auto loaded = made(layer);
        loaded->load_state_dict(prefixed, prefix);
        EXPECT_TRUE(same_bits(loaded->state_dict(), state)) << layer << " " << names[0];
        EXPECT_EQ(names_of(loaded->gradients(prefix)), names_of(loaded->state_dict(prefix)));
        const Tensor<float> y = loaded->forward(x);
        if (!first) first = y.clone();
        EXPECT_TRUE(same_bits(*first, y)) << layer << " " << names[0];
      }
    }
  }
}

TEST(Spellings, MergedAndSeparateAreTheSameBits) {
  const Tensor<float> x = random_tensor({2, 3, kStateDim}, 1);
  const StateDict parts = separate(kSpellings[0]);
  using Root = std::pair<std::string, std::string>;
  for (const auto& [root, output] :
      {Root("proj.", "out_proj."), Root("in_proj_", "out_proj."), Root("in_proj.", "out_proj."),
          Root("Wqkv.", "out_proj."), Root("qkv_proj.", "o_proj."), Root("c_attn.", "c_proj."), Root("qkv.", "proj."),
          Root("to_qkv.", "to_out.0."), Root("wqkv.", "wo."), Root("qkv.", "fc."), Root("qkv.", "out.")}) {
    SCOPED_TRACE(root + " " + output);
    StateDict merged;
    for (const std::string kind : {"weight", "bias"}) {
      AnyTensor all = parts.at("query_proj." + kind).clone();
      for (const std::string name : {"key_proj.", "value_proj."}) {
        const auto& bytes = parts.at(name + kind).bytes;
        all.bytes.insert(all.bytes.end(), bytes.begin(), bytes.end());
      }
      all.sizes[0] = 3 * kStateDim;
      merged.add(root + kind, std::move(all));
    }
    for (const std::string kind : {"weight", "bias"})
      merged.add(output + kind, parts.at("output_proj." + kind).clone());
    for (const std::string_view layer : {"v2", "v3", "v4", "mha"}) {
      const auto a = nn::load_layer(layer, parts, {.num_heads = 1}),
                 b = nn::load_layer(layer, merged, {.num_heads = 1});
      EXPECT_TRUE(same_bits(a->forward(x), b->forward(x)));
      EXPECT_TRUE(same_bits(b->state_dict(), merged)) << layer;
      EXPECT_TRUE(same_bits(a->state_dict(), parts)) << layer;
    }
  }
}

TEST(Spellings, TheFileDecides) {
  const StateDict bare = separate(kSpellings[3], false);
  const auto v4 = nn::load_layer("v4", bare);
  EXPECT_TRUE(same_bits(v4->state_dict(), bare));
  EXPECT_EQ(v4->parameter_count(), 4 * kStateDim * kStateDim);
  const StateDict merged = state_of({{"proj.weight", {12, 4}}, {"proj.bias", {12}}});
  nn::SelfAttentionV2 v2({.embed_dim = kStateDim, .output_proj = true});
  v2.load_state_dict(merged);
  EXPECT_FALSE(v2.has_output_projection());
  v2.load_state_dict(state_of({{"proj.weight", {12, 4}}, {"output_proj.weight", {4, 4}}}));
  EXPECT_TRUE(v2.has_output_projection());
  EXPECT_FALSE(v2.has_bias());
}

TEST(Spellings, SizesFromTheFile) {
  const auto layer = nn::load_layer(
      "self-attention", state_of({{"W_Q.weight", {3, 5}}, {"W_K.weight", {3, 5}}, {"W_V.weight", {3, 5}}}));
  EXPECT_EQ(layer->embed_dim(), 5);
  EXPECT_EQ(layer->output_dim(), 3);
  EXPECT_EQ(nn::load_layer("fixed-weights", state_of({{"w", {7}}}))->parameter_count(), 7);
  EXPECT_EQ(nn::load_layer("average", StateDict())->parameter_count(), 0);
  EXPECT_EQ(test::text_of<OptionError>([] {
    nn::load_layer("v1", state_of({{"weights", {2, 2}}}));
  }),
      "[load_layer] the state dict must hold the parameters of v1, query_proj.weight, query_proj.bias, "
      "key_proj.weight, key_proj.bias, value_proj.weight, value_proj.bias: got weights; any of these names will do: q: "
      "query_proj q_proj W_Q W_q query to_q wq w_q w_qs q_linear; k: key_proj k_proj W_K W_k key to_k wk w_k w_ks "
      "k_linear; v: value_proj v_proj W_V W_v value to_v wv w_v w_vs v_linear; all three: proj in_proj qkv_proj Wqkv "
      "c_attn qkv to_qkv wqkv (proj beside other names of q, k, v is the output); left out: bias [1, 1, T, T] mask "
      "causal_mask masked_bias tril inv_freq rotary_emb.inv_freq");
  EXPECT_EQ(test::text_of<OptionError>([] { nn::load_layer("fixed-weights", StateDict()); }),
      "[load_layer] the state dict must hold the parameters of fixed-weights, w: got nothing");
}

/// Causal masks and angles that files hold beside parameters are no parameters.
TEST(Spellings, BuffersAreLeftOut) {
  StateDict gpt2 =
      state_of({{"c_attn.weight", {12, 4}}, {"c_attn.bias", {12}}, {"c_proj.weight", {4, 4}}, {"c_proj.bias", {4}}});
  StateDict with_buffers = gpt2.clone();
  with_buffers.add("bias", any_tensor(Tensor<float>({1, 1, 8, 8})));
  with_buffers.add("masked_bias", any_tensor(Tensor<float>({1})));
  for (const char* name : {"mask", "causal_mask", "tril"}) with_buffers.add(name, any_tensor(Tensor<float>({8, 8})));
  for (const char* name : {"inv_freq", "rotary_emb.inv_freq"}) with_buffers.add(name, any_tensor(Tensor<float>({2})));
  EXPECT_TRUE(same_bits(nn::load_layer("mha", with_buffers, {.num_heads = 2})->state_dict(), gpt2));
  gpt2.add("bias", any_tensor(Tensor<float>({4})));  // a bias of what?
  expect_parts(refusal("mha", gpt2), {"unknown parameter bias: expected "});
}

/// `proj` is all of q, k, v by itself, and the output beside other names of those.
TEST(Spellings, ProjByWhatStandsBesideIt) {
  const auto minimal = nn::load_layer("v4", separate({"key", "query", "value", "proj"}));
  EXPECT_EQ(names_of(minimal->state_dict()),
      "query.weight query.bias key.weight key.bias value.weight value.bias proj.weight proj.bias ");
  StateDict both = separate({"query", "key", "value", "proj"});
  both.add("out.weight", any_tensor(Tensor<float>({4, 4})));
  expect_parts(refusal("v4", both), {"each parameter must be named once: got both proj.weight and query.weight"});
  expect_parts(refusal("v1", separate({"query", "key", "value", "proj"})), {"unknown parameter proj.weight"});
}

/// One head or two: the file cannot tell, and the outputs differ.
TEST(Heads, MustBeGivenWhereTheWeightsAllowSeveral) {
  const StateDict parts = separate(kSpellings[1]);
  EXPECT_EQ(test::text_of<OptionError>([&] { nn::load_layer("mha", parts); }),
      "[load_layer] num_heads of mha must be given, since weights of one shape fit several: here 1, 2, 4: got none");
  EXPECT_EQ(nn::possible_heads("mha", parts), (std::vector<Index>{1, 2, 4}));
  EXPECT_EQ(nn::possible_heads("v4", parts), (std::vector<Index>{1}));
  EXPECT_EQ(nn::possible_heads("mha", StateDict()), (std::vector<Index>{}));
  EXPECT_EQ(nn::load_layer("mha", parts, {.num_heads = 2})->num_heads(), 2);
  EXPECT_EQ(nn::load_layer("mha", state_of({{"in_proj_weight", {3, 1}}, {"out_proj.weight", {1, 1}}}))->num_heads(), 1);
  StateDict grouped = state_of(
      {{"q_proj.weight", {12, 4}}, {"k_proj.weight", {6, 4}}, {"v_proj.weight", {6, 4}}, {"o_proj.weight", {4, 12}}});
  EXPECT_EQ(nn::possible_heads("grouped-query", grouped), (std::vector<Index>{2, 4, 6, 12}));
  test::expect_error<OptionError>([&] { nn::load_layer("grouped-query", grouped); }, {"here 2, 4, 6, 12: got none"});
  for (const char* name : {"q_norm.weight", "k_norm.weight"}) grouped.add(name, any_tensor(Tensor<float>({3})));
  EXPECT_EQ(nn::load_layer("grouped-query", grouped)->num_heads(), 4);  // norms of heads say how wide one is
}

TEST(Refusals, Twice) {
  StateDict state = separate(kSpellings[0]);
  state.add("q_proj.weight", any_tensor(Tensor<float>({4, 4})));
  EXPECT_EQ(refusal("v4", state),
      "[SelfAttentionV4::load_state_dict] each parameter must be named once: got both query_proj.weight and "
      "q_proj.weight");
  StateDict both = separate(kSpellings[4], false);
  both.add("in_proj_weight", any_tensor(Tensor<float>({12, 4})));
  EXPECT_EQ(refusal("mha", both),
      "[MultiHeadAttention::load_state_dict] each parameter must be named once: got both in_proj_weight and "
      "W_q.weight");
}

TEST(Refusals, MissingUnderTheFilesOwnSpelling) {
  const std::string weights =
      "W_Q.weight [4, 4], W_Q.bias [4] (optional), W_K.weight [4, 4], W_K.bias [4] (optional), ";
  const auto lacking = [](const Names& names, const std::string& lost, bool bias) {
    StateDict state;
    const StateDict full = separate(names, bias);
    for (const auto& entry : full.entries()) {
      if (entry.name != lost) state.add(entry.name, entry.tensor.clone());
    }
    return state;
  };
  const std::string text = refusal("v4", lacking(kSpellings[3], "W_K.weight", false));
  EXPECT_TRUE(text.starts_with("[SelfAttentionV4::load_state_dict] missing parameter W_K.weight: expected " + weights))
      << text;
  EXPECT_TRUE(text.ends_with("; got W_Q.weight [4, 4], W_V.weight [4, 4], W_O.weight [4, 4]")) << text;
  // All biases or none; an output projection where the form requires one; under each spelling.
  for (const Names& names : kSpellings) {
    for (const std::string& name : names) {
      for (const std::string kind : {".weight", ".bias"}) {
        const std::string said = refusal("v4", lacking(names, name + kind, true));
        const bool own = names != kSpellings.back() || kind == ".bias";
        expect_parts(said, {"missing parameter " + (own ? name + kind + ": expected" : std::string())});
      }
    }
  }
  for (const std::string_view layer : {"v3", "v4", "single-head", "mha"}) {
    expect_parts(refusal(layer, state_of({{"proj.weight", {12, 4}}})), {"missing parameter "});
  }
}

TEST(Refusals, Unknown) {
  StateDict state = separate(kSpellings[0]);
  state.add("norm.weight", any_tensor(Tensor<float>({4})));
  EXPECT_EQ(
      refusal("v4", state).substr(0, 74), "[SelfAttentionV4::load_state_dict] unknown parameter norm.weight: expected");
  expect_parts(refusal("v4", state),
      {"q: query_proj q_proj W_Q W_q query to_q wq w_q w_qs q_linear; k:",
          "output: output_proj o_proj out_proj W_O W_o c_proj proj to_out to_out.0 wo w_o fc out "});
  expect_parts(refusal("v1", separate(kSpellings[0])), {"unknown parameter output_proj.weight"});
  expect_parts(refusal("self-attention", separate(kSpellings[3])), {"unknown parameter W_O.weight"});
  expect_parts(refusal("v1", state_of({{"h.0.x", {4}}}), "h.0."),
      {"unknown parameter h.0.x: expected query_proj.weight [4, 4]"});
}

TEST(Refusals, WrongShape) {
  const StateDict state =
      state_of({{"query_proj.weight", {4, 4}}, {"key_proj.weight", {4, 5}}, {"value_proj.weight", {4, 4}}});
  EXPECT_EQ(refusal<ShapeError>("v1", state),
      "[SelfAttentionV1::load_state_dict] parameter key_proj.weight must be [4, 4]: got [4, 5]; expected "
      "query_proj.weight [4, 4], query_proj.bias [4] (optional), key_proj.weight [4, 4], key_proj.bias [4] (optional), "
      "value_proj.weight [4, 4], value_proj.bias [4] (optional)");
  expect_parts(
      refusal<ShapeError>("v2", state_of({{"proj.weight", {4, 12}}})), {"proj.weight must be [12, 4]: got [4, 12]"});
}

TEST(Refusals, NamesTheOneWrongShapeWhereverItStands) {
  for (const std::string wrong : {"key_proj", "output_proj", "query_proj", "value_proj"}) {
    std::vector<std::pair<std::string, std::vector<Index>>> parts;  // alphabetical; the layer takes its sizes from them
    for (const std::string name : {"key_proj", "output_proj", "query_proj", "value_proj"}) {
      parts.push_back({name + ".weight", {4, name == wrong ? 5 : 4}});
    }
    test::expect_error<ShapeError>(
        [&] { nn::load_layer("v4", state_of(parts)); }, {wrong + ".weight must be [4, 4]: got [4, 5]"});
  }
}

TEST(Refusals, OwnNamesWhereTheFileSaysNothing) {
  expect_parts(refusal("single-head", StateDict()), {"missing parameter W_q.weight: expected W_q.weight [4, 4]"});
  expect_parts(refusal("v3", StateDict()), {"missing parameter proj.weight: expected proj.weight [12, 4]"});
}

TEST(OwnNames, OfEachForm) {
  const std::map<std::string_view, std::string> expected = {{"average", ""}, {"fixed-weights", "w "},
      {"v1", "query_proj.weight query_proj.bias key_proj.weight key_proj.bias value_proj.weight value_proj.bias "},
      {"v2", "proj.weight proj.bias "}, {"v3", "proj.weight proj.bias output_proj.weight output_proj.bias "},
      {"v4",
          "query_proj.weight query_proj.bias key_proj.weight key_proj.bias value_proj.weight value_proj.bias "
          "output_proj.weight output_proj.bias "},
      {"self-attention", "W_Q.weight W_Q.bias W_K.weight W_K.bias W_V.weight W_V.bias "},
      {"single-head", "W_q.weight W_k.weight W_v.weight W_o.weight "},
      {"mha",
          "q_proj.weight q_proj.bias k_proj.weight k_proj.bias v_proj.weight v_proj.bias o_proj.weight o_proj.bias "},
      {"grouped-query", "q_proj.weight k_proj.weight v_proj.weight o_proj.weight "}};
  for (const std::string_view name : nn::layer_names()) {
    const auto layer = nn::make_layer(name, {.embed_dim = kStateDim, .num_heads = 1, .length = 3});
    EXPECT_EQ(names_of(layer->state_dict()), expected.at(name));
    EXPECT_EQ(layer->name(), name);
  }
}

TEST(OwnNames, InSixteenBitsRoundedOnce) {
  const auto layer = made("mha");
  test::randomise(*layer, 3);
  for (const nn::Parameter& one : layer->parameters()) std::ranges::copy(one.value, one.gradient.begin());
  const auto holds = [&](DType dtype, auto element) {
    using T = decltype(element);
    StateDict exact;  // of what T can hold
    for (const nn::Parameter& one : layer->parameters()) {
      Tensor<float> values(one.sizes);
      std::ranges::transform(
          one.value, values.span().begin(), [](float x) { return static_cast<float>(static_cast<T>(x)); });
      exact.add("a." + one.name, any_tensor(values));
    }
    const std::array<StateDict, 2> own = {layer->state_dict("a.", dtype), layer->gradients("a.", dtype)};
    for (const StateDict& state : own) {
      EXPECT_EQ(state.at("a.q_proj.weight").dtype, dtype);
      EXPECT_EQ(state.at("a.q_proj.weight").bytes.size(), dtype_bytes(dtype) * kStateDim * kStateDim);
      const auto reads = made("mha");
      reads->load_state_dict(state, "a.");
      EXPECT_TRUE(same_bits(reads->state_dict("a."), exact));
    }
  };
  holds(DType::kF32, float{});
  holds(DType::kBF16, BFloat16{});
  holds(DType::kF16, Float16{});
  EXPECT_EQ(test::text_of<OptionError>([&] { layer->gradients({}, DType::kI8); }),
      "[Module::gradients] dtype must be F32, BF16 or F16: got I8");
}

TEST(Refusals, ATensorOfTooFewBytesChangesNothing) {
  nn::Mlp mlp({.embed_dim = 4});
  const StateDict other = mlp.state_dict();
  test::randomise(mlp, 3);
  const StateDict before = mlp.state_dict();
  StateDict broken;
  for (const StateDict::Entry& entry : other.entries()) {
    AnyTensor tensor = entry.tensor.clone();
    if (entry.name == other.entries().back().name) tensor.bytes.pop_back();
    broken.add(entry.name, std::move(tensor));
  }
  EXPECT_THROW(mlp.load_state_dict(broken), ShapeError);
  EXPECT_TRUE(same_bits(mlp.state_dict(), before));
}

}  // namespace
}  // namespace qkv

// Refused calls: each error's type, the function it names, and both sides of what does not fit.
#include "support/errors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "qkv/attention.h"
#include "qkv/error.h"
#include "qkv/kv_cache.h"

namespace qkv::test {
namespace {

/// A legal call whose parts a test then breaks.
struct Call {
  Tensor<float> q{2, 4, 3, 8}, k{2, 2, 5, 8}, v{2, 2, 5, 6}, out{2, 4, 3, 6}, lse{2, 4, 3}, dout{2, 4, 3, 6};
  Tensor<float> dq{2, 4, 3, 8}, dk{2, 2, 5, 8}, dv{2, 2, 5, 6};
  AttentionOptions options;

  void forward() { attention_forward(q, k, v, {.out = out, .lse = lse}, options); }
  void backward() {
    AttentionGradients<float> wanted;
    wanted.dq = dq, wanted.dk = dk, wanted.dv = dv;
    attention_backward(q, k, v, out, lse, dout, wanted, options);
  }
};

/// The call throws an E whose text has every part.
template <class E> void refuses(std::initializer_list<std::string_view> parts, auto&& call) {
  expect_parts(text_of<E>(call), parts);
}

// Memory borrowed until a call ends is never a temporary.
template <class T>
concept MaskOf = requires(T&& dense) { Mask::keep(std::forward<T>(dense), MaskAxes::kQk); };
template <class T>
concept DropOf = requires(T&& dense) { Mask::drop(std::forward<T>(dense), MaskAxes::kQk); };
template <class T>
concept MaskOfFour = requires(T&& dense) { Mask::keep(std::forward<T>(dense)); };
template <class T>
concept DropOfFour = requires(T&& dense) { Mask::drop(std::forward<T>(dense)); };
using Dense = Tensor<std::uint8_t>;
static_assert(MaskOf<Dense&> && MaskOf<const Dense&> && MaskOfFour<Dense&> && MaskOfFour<const Dense&>);
static_assert(DropOf<Dense&> && DropOf<const Dense&> && DropOfFour<Dense&> && DropOfFour<const Dense&>);
static_assert(!MaskOf<Dense> && !MaskOf<const Dense> && !MaskOfFour<Dense> && !MaskOfFour<const Dense>);
static_assert(!DropOf<Dense> && !DropOf<const Dense> && !DropOfFour<Dense> && !DropOfFour<const Dense>);
template <class ViewOf, class T> constexpr bool kBorrowsOnlyWhatStays =
    std::is_constructible_v<ViewOf, Tensor<T>&> && std::is_constructible_v<ViewOf, const Tensor<T>&> &&
    !std::is_constructible_v<ViewOf, Tensor<T>> && !std::is_constructible_v<ViewOf, const Tensor<T>>;
static_assert(kBorrowsOnlyWhatStays<BiasView, float> && kBorrowsOnlyWhatStays<BiasView, double>);
static_assert(kBorrowsOnlyWhatStays<SinkView, float> && kBorrowsOnlyWhatStays<SinkView, double>);

TEST(Errors, TheLegalCallIsLegal) {
  Call call;
  EXPECT_NO_THROW(call.forward());
  EXPECT_NO_THROW(call.backward());
}

TEST(Errors, NegativeSizesAreRefused) {
  float x[64] = {};
  const View<const float, 4> rows(x, {1, 1, -2, 4});
  const View<float, 4> out(x, {1, 1, -2, 4});
  refuses<ShapeError>({"[attention_forward]", "-2"}, [&] { attention_forward(rows, rows, rows, {.out = out}); });
}

/// Sizes and strides whose products overflow: an error before anything is read.
TEST(Errors, ViewsThatReachTooFarAreRefused) {
  float x[64] = {}, y[64] = {};
  constexpr Index kHuge = Index{1} << 62;
  const View<const float, 4> small(x, {1, 1, 1, 4});
  const View<float, 4> out(y, {1, 1, 1, 4});
  const auto run = [&](const View<const float, 4>& q, const View<const float, 4>& kv, const View<float, 4>& to) {
    refuses<ShapeError>(
        {"[attention_forward]", "must have at most 2^61 elements"}, [&] { attention_forward(q, kv, kv, {.out = to}); });
  };
  const View<const float, 4> batch(x, {kHuge, 1, 1, 4}, {0, 4, 4, 1}), rows(x, {1, 1, kHuge, 4}, {0, 4, 0, 1});
  run(batch, batch, {y, {kHuge, 1, 1, 4}, {4, 4, 4, 1}});
  run(small, rows, out);
  run(rows, small, {y, {1, 1, kHuge, 4}});
  run(View<const float, 4>(x, {2, 1, 1, 4}, {kHuge, 4, 4, 1}), View<const float, 4>(x, {2, 1, 1, 4}, {0, 4, 4, 1}),
      View<float, 4>(y, {2, 1, 1, 4}));
  run(View<const float, 4>(x, {2, 1, 1, 4}, {std::numeric_limits<Index>::min(), 4, 4, 1}),
      View<const float, 4>(x, {2, 1, 1, 4}, {0, 4, 4, 1}), View<float, 4>(y, {2, 1, 1, 4}));
  EXPECT_EQ(batch.count(), std::numeric_limits<Index>::max());
  EXPECT_EQ((View<const float, 3>(x, {kHuge, 8, 0}).count()), 0);
}

TEST(Errors, AnOutputShowsNoElementTwice) {
  Call call;
  const View<float, 4> whole = call.out;
  const View<float, 4> twisted(whole.data(), whole.sizes(), {whole.stride(0), 1, whole.stride(2), 1});
  refuses<ShapeError>(
      {"[attention_forward] out is written, so no two of its elements may share memory: got [2, 4, 3, 6], strides [72, "
       "1, 6, 1]"},
      [&] { attention_forward(call.q, call.k, call.v, {.out = twisted, .lse = call.lse}); });
}

TEST(Errors, LseLowHasTheSizesOfLse) {
  Call call;
  Tensor<float> low(call.lse.sizes());
  refuses<ShapeError>({"[attention_forward] lse_low must be [B, H, Tq] or null: got [2, 4, 2]"}, [&] {
    attention_forward(
        call.q, call.k, call.v, {.out = call.out, .lse = call.lse, .lse_low = View<float, 3>(low).sliced(2, 0, 2)});
  });
  refuses<OptionError>({"[attention_forward] lse_low is computed with out"}, [&] {
    Tensor<float> weights({2, 4, 3, 5});
    attention_forward(call.q, call.k, call.v, {.weights = weights, .lse_low = low});
  });
  refuses<ShapeError>({"[attention_forward]", "lse", "lse_low"},
      [&] { attention_forward(call.q, call.k, call.v, {.out = call.out, .lse = call.lse, .lse_low = call.lse}); });
  refuses<ShapeError>({"[attention_backward] lse_low must be [B, H, Tq] or null: got [2, 4, 2]"}, [&] {
    attention_backward(call.q, call.k, call.v, call.out, call.lse, call.dout,
        AttentionGradients<float>{.dq = call.dq, .lse_low = View<float, 3>(low).sliced(2, 0, 2)});
  });
}

TEST(Errors, WhatIsNotGivenIsNotCalledEmpty) {
  Call call;
  refuses<ShapeError>(
      {"[attention_backward] lse must be [B, H, Tq], as forward returned it: got not given for out [2, 4, 3, 6]"}, [&] {
        attention_backward(call.q, call.k, call.v, call.out, {}, call.dout, AttentionGradients<float>{.dq = call.dq});
      });
  refuses<ShapeError>({"[View] a tensor of 3 axes was given where the argument has 4: got tensor [2, 4, 3]"},
      [&] { attention_forward(call.lse, call.k, call.v, {.out = call.out, .lse = call.lse}); });
}

TEST(Errors, ShapesThatDoNotFitAreBothNamed) {
  const auto run = [](void (Call::*direction)(), Tensor<float> Call::*which, std::vector<Index> sizes, const char* one,
                       const char* other) {
    Call call;
    call.*which = Tensor<float>(std::move(sizes));
    const char* function = direction == &Call::forward ? "[attention_forward]" : "[attention_backward]";
    refuses<ShapeError>({function, one, other}, [&] { (call.*direction)(); });
  };
  run(&Call::forward, &Call::k, {2, 2, 5, 9}, "[2, 4, 3, 8]", "[2, 2, 5, 9]");
  run(&Call::forward, &Call::k, {3, 2, 5, 8}, "[2, 4, 3, 8]", "[3, 2, 5, 8]");
  run(&Call::forward, &Call::v, {2, 2, 4, 6}, "[2, 2, 5, 8]", "[2, 2, 4, 6]");
  run(&Call::forward, &Call::v, {2, 4, 5, 6}, "[2, 2, 5, 8]", "[2, 4, 5, 6]");
  run(&Call::forward, &Call::out, {2, 4, 3, 5}, "[2, 4, 3, 5]", "[2, 4, 3, 6]");
  run(&Call::forward, &Call::lse, {2, 4, 4}, "[2, 4, 4]", "[2, 4, 3, 8]");
  run(&Call::forward, &Call::q, {2, 3, 3, 8}, "[2, 3, 3, 8]", "[2, 2, 5, 8]");
  run(&Call::backward, &Call::dq, {2, 4, 3, 7}, "[2, 4, 3, 7]", "[2, 4, 3, 8]");
  run(&Call::backward, &Call::dk, {2, 4, 5, 8}, "[2, 4, 5, 8]", "[2, 2, 5, 8]");
  run(&Call::backward, &Call::dv, {2, 2, 5, 8}, "[2, 2, 5, 8]", "[2, 2, 5, 6]");
  run(&Call::backward, &Call::dout, {2, 4, 2, 6}, "[2, 4, 2, 6]", "[2, 4, 3, 6]");
  Call without_width, without_values;
  without_width.q = Tensor<float>{2, 4, 3, 0}, without_width.k = Tensor<float>{2, 2, 5, 0};
  text_of<ShapeError>([&] { without_width.forward(); });
  without_values.v = Tensor<float>{2, 2, 5, 0}, without_values.out = Tensor<float>{2, 4, 3, 0};
  text_of<ShapeError>([&] { without_values.forward(); });
}

TEST(Errors, StridesOfTheLastAxis) {
  Call call;
  const View<float, 4> wide(call.q.data(), {2, 4, 3, 4}, {96, 24, 8, 2});
  const Tensor<float> k({2, 2, 5, 4});
  refuses<ShapeError>({"[attention_forward]", "stride"},
      [&] { attention_forward(wide, k, call.v, {.out = call.out, .lse = call.lse}); });
}

TEST(Errors, OptionsThatCanNeverBeRight) {
  const auto broken = [](AttentionOptions options, std::string_view name, std::string_view number) {
    Call call;
    call.options = options;
    refuses<OptionError>({"[attention_forward]", name, number}, [&] { call.forward(); });
  };
  const double nan = std::nan("");
  for (const auto& [scale, number] : {std::pair(nan, "nan"), {HUGE_VAL, "inf"}, {1e300, "1e+300"}})
    broken({.scale = scale}, "scale", number);  // finite as a double, not as the float that is computed with
  for (const auto& [softcap, number] :
      {std::pair(-1.0, "-1"), {nan, "nan"}, {1e300, "1e+300"}, {2.4e38, "2.4e+38"}, {1e-60, "1e-60"}})
    broken({.softcap = softcap}, "softcap", number);
  for (const auto& [p, number] : {std::pair(1.5, "1.5"), {-0.1, "-0.1"}, {1e-9, "1e-09"}, {nan, "nan"}})
    broken({.dropout = {.p = p, .seed = 1, .training = true}}, "dropout", number);
  text_of<OptionError>([] { Mask::window(-2, 0); });
  text_of<OptionError>([] { Mask::sliding(0); });
}

/// Before anything is written, and whatever the mask leaves.
TEST(Errors, BackwardOfACallbackWithoutASlope) {
  Call call;
  call.options.score_mod = score_mod([](auto s, Index, Index, Index, Index) { return s; });
  std::ranges::fill(call.dv.span(), 7.0F);
  refuses<OptionError>({"[attention_backward]", "score_mod must have a slope"}, [&] { call.backward(); });
  for (const float x : call.dv.span()) ASSERT_EQ(x, 7);
}

TEST(Errors, CausalNeedsAnAlignmentWhenLengthsDiffer) {
  for (const Mask& mask : {Mask::causal(), Mask::window(1, 0), Mask::sliding(2)}) {
    Call call;
    call.options.mask = mask;
    refuses<Error>({"[attention_forward]", "kTopLeft", "kBottomRight", "3", "5"}, [&] { call.forward(); });
  }
}

TEST(Errors, BottomRightWithKeyLengthsNamesOffsets) {
  Call call;
  const std::vector<Index> lengths = {3, 5};
  call.options.mask = Mask::causal(Align::kBottomRight) & Mask::key_lengths(lengths);
  const std::string text = text_of<Error>([&] { call.forward(); });
  expect_parts(text, {"[attention_forward]", "offsets"});
}

TEST(Errors, MasksAndBiasesOfOtherSizes) {
  const std::vector<Index> three = {1, 2, 3}, too_long = {6, 1}, negative = {-1, 1};
  const Tensor<std::uint8_t> keep({2, 1, 3, 4});
  const Tensor<float> bias({2, 4, 3, 4});
  const Tensor<double> wrong_type({2, 4, 3, 5});
  Call call;
  const auto run = [&] { call.forward(); };
  for (const Mask& mask : {Mask::causal(three), Mask::key_lengths(three)}) {
    call.options.mask = mask;
    refuses<ShapeError>({"[attention_forward]", "3", "2"}, run);
  }
  call.options.mask = Mask::key_lengths(too_long);
  refuses<Error>({"6", "5"}, run);
  text_of<Error>([&] {
    call.options.mask = Mask::key_lengths(negative);
    call.forward();
  });
  call.options.mask = Mask::keep(keep);
  refuses<ShapeError>({"[attention_forward]", "[2, 1, 3, 4]", "[2, 4, 3, 5]"}, run);
  call.options.mask = Mask();
  call.options.bias = bias;
  refuses<ShapeError>({"[attention_forward]", "[2, 4, 3, 4]", "[2, 4, 3, 5]"}, run);
  call.options.bias = wrong_type;
  text_of<Error>(run);
}

TEST(Errors, OutputsShareNoElement) {
  Call call;
  const View<float, 4> q = call.q;
  refuses<ShapeError>({"[attention_forward]", "share no element"},
      [&] { attention_forward(q, call.k, call.k, {.out = q, .lse = call.lse}); });
  AttentionGradients<float> wanted;
  wanted.dk = call.dk;
  wanted.dv = View<float, 4>(call.dk.data() + 3, {2, 2, 5, 6}, {70, 30, 6, 1});
  refuses<ShapeError>({"[attention_backward]", "share no element"},
      [&] { attention_backward(q, call.k, call.v, call.out, call.lse, call.dout, wanted); });
  const View<float, 4> repeated(call.out.data(), {2, 4, 3, 6}, {72, 18, 0, 1});
  text_of<ShapeError>([&] { attention_forward(q, call.k, call.v, {.out = repeated, .lse = call.lse}); });
}

TEST(Errors, OutputsThatAreNotAskedFor) {
  Call call;
  Tensor<float> weights({2, 4, 3, 5});
  refuses<OptionError>(
      {"[attention_forward]", "must be requested"}, [&] { attention_forward(call.q, call.k, call.v, {}); });
  refuses<OptionError>(
      {"[attention_forward]", "give .out"}, [&] { attention_forward(call.q, call.k, call.v, {.lse = call.lse}); });
  text_of<OptionError>([&] { attention_forward(call.q, call.k, call.v, {.lse = call.lse, .weights = weights}); });
  text_of<ShapeError>([&] { attention_forward(call.q, call.k, {}, {.out = call.out}); });
  const KeyValue kv = KeyValue::contiguous(call.k, call.v);
  text_of<OptionError>([&] { attention_forward(call.q, kv, {}); });
  EXPECT_NO_THROW(attention_forward(call.q, kv, {.out = call.out, .weights = weights}));
  const Tensor<float> nothing({2, 4, 0, 8});
  Tensor<float> no_out({2, 4, 0, 6});
  EXPECT_NO_THROW(attention_forward(nothing, call.k, call.v, {.out = no_out}));
  const Capture what{.statistics = true};
  CaptureResult found;
  EXPECT_NO_THROW(attention_forward(call.q, call.k, call.v, {}, {.capture = {what, found}}));
}

TEST(Errors, WeightsAndMerge) {
  Call call;
  Tensor<float> weights({2, 4, 3, 4});
  refuses<ShapeError>({"[attention_forward]", "[2, 4, 3, 4]", "[2, 4, 3, 5]"},
      [&] { attention_forward(call.q, call.k, {}, {.weights = weights}); });
  const Tensor<float> other_out({2, 4, 2, 6}), other_lse({2, 4, 2});
  const std::array<View<const float, 4>, 2> outs = {call.dout, other_out};
  const std::array<View<const float, 3>, 2> lses = {call.lse, other_lse};
  Tensor<float> merged({2, 4, 3, 6}), merged_lse({2, 4, 3});
  refuses<ShapeError>({"[merge_attention]", "[2, 4, 2, 6]"}, [&] { merge_attention(outs, lses, merged, merged_lse); });
}

}  // namespace
}  // namespace qkv::test

// Tensors and element types: sizes that overflow, every bit pattern of the 16-bit floats, whole numbers.
#include "qkv/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "qkv/state_dict.h"
#include "support/errors.h"

namespace {

using qkv::AnyTensor;
using qkv::DType;
using qkv::Index;
using qkv::Tensor;

template <class T> AnyTensor any_of(DType dtype, const std::vector<T>& values) {
  AnyTensor tensor;
  tensor.dtype = dtype;
  tensor.sizes = {static_cast<Index>(values.size())};
  tensor.bytes.resize(values.size() * sizeof(T));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

TEST(Tensor, IsZeroedAndAligned) {
  for (const Index size : {0, 1, 17, 100000}) {
    const Tensor<float> tensor({size});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
    for (const float x : tensor.span()) ASSERT_EQ(x, 0);
  }
}

TEST(Tensor, RefusesSizesThatCanNotBe) {
  constexpr Index kHuge = Index{1} << 32;
  EXPECT_THROW(Tensor<float>({2, -1}), qkv::ShapeError);
  EXPECT_THROW(Tensor<float>({kHuge, kHuge}), qkv::ShapeError);
  EXPECT_THROW(Tensor<double>({kHuge, kHuge / 4}), qkv::ShapeError);  // the count fits, its bytes do not
  EXPECT_EQ(Tensor<float>({kHuge, 0, kHuge}).count(), 0);
  EXPECT_THROW((Tensor<float>({2, 3}).view<3>()), qkv::ShapeError);
  Tensor<float> tensor({2, 3});
  EXPECT_THROW(tensor.reshape({5}), qkv::ShapeError);
  tensor.reshape({3, 2});
  EXPECT_EQ(tensor.shape(), "[3, 2]");
}

TEST(Tensor, IsEmptyOnceItIsMovedFrom) {
  Tensor<float> tensor({2, 3}), assigned;
  const Tensor<float> moved = std::move(tensor);
  assigned = moved.clone();
  const Tensor<float> again = std::move(assigned);
  EXPECT_EQ(again.shape(), "[2, 3]");
  for (const Tensor<float>* empty : {&tensor, &assigned}) {  // NOLINT(bugprone-use-after-move): that is the test
    EXPECT_EQ(empty->span().size(), 0U);
    EXPECT_EQ(empty->clone().count(), 0);
  }
  EXPECT_EQ(Tensor<float>({0, 3}).clone().shape(), "[0, 3]");
}

TEST(View, OneSequenceShowsPackedTokens) {
  Tensor<float> packed({3, 2, 4});  // [T, H, D]
  for (Index n = 0; n < packed.count(); ++n) packed.data()[n] = static_cast<float>(n);
  const auto view = qkv::one_sequence(packed.view<3>());
  EXPECT_EQ(view.sizes(), (qkv::View<float, 4>::Sizes{1, 2, 3, 4}));
  for (Index h = 0; h < 2; ++h) {
    for (Index t = 0; t < 3; ++t) {
      for (Index d = 0; d < 4; ++d) EXPECT_EQ(view(0, h, t, d), static_cast<float>((t * 2 + h) * 4 + d));
    }
  }
}

TEST(View, SixteenBitPatternsAreReadAndWrittenWhereTheyLie) {
  std::uint16_t bf16[] = {0x3F80, 0xC000}, f16[] = {0x3C00, 0xC000};
  const qkv::View<qkv::BFloat16, 1> b(reinterpret_cast<qkv::BFloat16*>(bf16), {2});
  const qkv::View<qkv::Float16, 1> h(reinterpret_cast<qkv::Float16*>(f16), {2});
  EXPECT_EQ(static_cast<float>(b(0)), 1.0F);
  EXPECT_EQ(static_cast<float>(h(1)), -2.0F);
  b(1) = qkv::BFloat16(1.5F);
  h(0) = qkv::Float16(1.5F);
  EXPECT_EQ(bf16[1], 0x3FC0);
  EXPECT_EQ(f16[0], 0x3E00);
  EXPECT_EQ(static_cast<float>(b(1)) + static_cast<float>(h(0)), 3.0F);
}

TEST(Check, MakesNoTextUnlessItFails) {
  int made = 0;
  const auto text = [&] {
    ++made;
    return std::string("seven");
  };
  qkv::check<qkv::OptionError>(true, "f", "must be ", text);
  EXPECT_EQ(made, 0);
  EXPECT_EQ(qkv::test::text_of<qkv::OptionError>([&] {
    qkv::check<qkv::OptionError>(
        false, "f", "must be ", text, ": got ", 8, " and ", 0.1, " of ", Tensor<float>({2, 3}));
  }),
      "[f] must be seven: got 8 and 0.1 of [2, 3]");
}

// Each pattern as the types convert it (types_test.cc): a subset of f32, so that nothing is rounded.
TEST(DType, DecodesEveryPatternOf16BitsExactly) {
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  const auto check = [&]<class T>(DType dtype, T) {
    const Tensor<float> f32 = to_f32(any_of(dtype, bits));
    const Tensor<double> f64 = to_f64(any_of(dtype, bits));
    for (std::size_t n = 0; n < bits.size(); ++n) {
      const auto expected = static_cast<float>(std::bit_cast<T>(bits[n]));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(f32.data()[n]), std::bit_cast<std::uint32_t>(expected)) << n;
      ASSERT_TRUE(f64.data()[n] == static_cast<double>(expected) || (std::isnan(f64.data()[n]) && std::isnan(expected)))
          << n;
    }
  };
  check(DType::kF16, qkv::Float16{});
  check(DType::kBF16, qkv::BFloat16{});
}

TEST(DType, ConvertsEveryOtherType) {
  const auto expect = [](const AnyTensor& tensor, std::vector<double> values) {
    const Tensor<double> f64 = to_f64(tensor);
    const Tensor<float> f32 = to_f32(tensor);
    const Tensor<std::uint8_t> truth = to_bool(tensor);
    const Tensor<std::int64_t> whole = to_i64(tensor);
    for (std::size_t n = 0; n < values.size(); ++n) {
      EXPECT_EQ(f64.data()[n], values[n]) << dtype_name(tensor.dtype);
      EXPECT_EQ(f32.data()[n], static_cast<float>(values[n])) << dtype_name(tensor.dtype);
      EXPECT_EQ(truth.data()[n], values[n] != 0 ? 1 : 0) << dtype_name(tensor.dtype);
      EXPECT_EQ(whole.data()[n], static_cast<std::int64_t>(values[n])) << dtype_name(tensor.dtype);
    }
  };
  expect(any_of<std::uint8_t>(DType::kBool, {0, 1}), {0, 1});
  expect(any_of<std::uint8_t>(DType::kU8, {0, 255}), {0, 255});
  expect(any_of<std::int8_t>(DType::kI8, {-128, 0, 127}), {-128, 0, 127});
  expect(any_of<std::int16_t>(DType::kI16, {-32768, 5}), {-32768, 5});
  expect(any_of<std::uint16_t>(DType::kU16, {65535}), {65535});
  expect(any_of<std::int32_t>(DType::kI32, {-2147483647, 9}), {-2147483647, 9});
  expect(any_of<std::uint32_t>(DType::kU32, {4294967295U}), {4294967295.0});
  expect(any_of<std::int64_t>(DType::kI64, {-5, 0}), {-5, 0});
  expect(any_of<std::uint64_t>(DType::kU64, {6, 0}), {6, 0});
  expect(any_of<float>(DType::kF32, {-3, -0.0F}), {-3, 0});
  expect(any_of<double>(DType::kF64, {1e15, 0}), {1e15, 0});
}

TEST(DType, WholeNumbersAreCheckedAtTheirEnds) {
  constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(to_i64(any_of<std::int64_t>(DType::kI64, {kLargest})).data()[0], kLargest);
  EXPECT_EQ(to_i64(any_of<double>(DType::kF64, {-0x1p63})).data()[0], std::numeric_limits<std::int64_t>::min());
  for (const double x : {0.5, 0x1p63, -0x1.8p63, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THROW(to_i64(any_of<double>(DType::kF64, {x})), qkv::OptionError) << x;
  }
  EXPECT_THROW(to_i64(any_of<std::uint64_t>(DType::kU64, {std::uint64_t{1} << 63})), qkv::OptionError);
}

TEST(DType, BytesMustHoldTheSizes) {
  AnyTensor tensor = any_of<float>(DType::kF32, {1, 2, 3});
  tensor.sizes = {4};
  EXPECT_THROW(to_f32(tensor), qkv::ShapeError);
  tensor.sizes = {3};
  tensor.bytes.pop_back();
  EXPECT_THROW(to_f32(tensor), qkv::ShapeError);
}

TEST(AnyTensor, RoundTrips) {
  Tensor<double> tensor({2, 2});
  for (Index n = 0; n < 4; ++n) tensor.data()[n] = 1.0 / static_cast<double>(n + 1);
  const AnyTensor any = qkv::any_tensor(tensor);
  EXPECT_EQ(dtype_name(any.dtype), "F64");
  EXPECT_EQ(any.shape(), "[2, 2]");
  const Tensor<double> back = to_f64(any);
  for (Index n = 0; n < 4; ++n) EXPECT_EQ(back.data()[n], tensor.data()[n]);
}

TEST(FormatError, CarriesItsPlace) {
  const qkv::FormatError error("[load] bad", 17);
  EXPECT_EQ(error.byte_offset(), 17U);
  EXPECT_NE(std::string(error.what()).find("17"), std::string::npos);
}

}  // namespace

// The kernels on models of bf16 products (see CMakeLists.txt), pairs and tiles: every relation of dense tensors,
// memory, a constant v, a single key. That the models agree with the instructions: pairs_test.cc and tiles_test.cc, on
// a CPU that has them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "dispatch/kernels.h"
#include "support/forms/relations.h"
#include "support/isas.h"
#include "support/part.h"
#include "support/random.h"

extern "C" {
extern const qkv::KernelTable qkv_kernels_avx512, qkv_kernels_avx512bf16_stand_in, qkv_kernels_amx_stand_in;
extern const qkv::CacheTable qkv_cache_kernels_avx512;
extern const qkv::CaptureKernelTable qkv_capture_kernels_avx512;
extern const qkv::LinearAttentionTable qkv_linear_attention_kernels_avx512;
extern const qkv::SecondOrderTable qkv_second_order_kernels_avx512;
}

namespace qkv::test {
namespace {

enum class Products { kPairs, kTiles };
Products chosen_products = Products::kPairs;

}  // namespace
}  // namespace qkv::test

namespace qkv::inline v0 {

/// This program's own index of kernels, linked instead of dispatch/kernels.cc: AVX-512's with the stand-in for the
/// products.
const KernelTables& kernel_tables(Isa, bool) {
  static const KernelTable attention[] = {with_bf16_products(qkv_kernels_avx512, qkv_kernels_avx512bf16_stand_in),
      with_bf16_products(qkv_kernels_avx512, qkv_kernels_amx_stand_in)};
  static const auto all = [](test::Products products) {
    return KernelTables{attention[static_cast<int>(products)], qkv_cache_kernels_avx512, qkv_capture_kernels_avx512,
        qkv_linear_attention_kernels_avx512, qkv_second_order_kernels_avx512};
  };
  static const KernelTables pairs = all(test::Products::kPairs), tiles = all(test::Products::kTiles);
  return test::chosen_products == test::Products::kTiles ? tiles : pairs;
}

}  // namespace qkv::inline v0

namespace qkv::test {
namespace {

void PrintTo(Products products, std::ostream* out) { *out << (products == Products::kTiles ? "Tiles" : "Pairs"); }

class Bf16Kernels : public testing::TestWithParam<Products> {
 protected:
  void SetUp() override {
    const auto& isas = supported_isas();
    if (std::ranges::find(isas, Isa::kAvx512) == isas.end()) GTEST_SKIP() << "this CPU has no avx512";
    setenv("QKV_TEST_ISAS", "avx512", 1);  // whose tables are this program's
    chosen_products = GetParam();
  }
};

INSTANTIATE_TEST_SUITE_P(
    On, Bf16Kernels, testing::Values(Products::kPairs, Products::kTiles), testing::PrintToStringParamName());

/// Requirements of dense tensors, on these products: the bounds over every second case of the list (of tiles, whose
/// model computes number by number, every fourth), the other relations over smaller parts of it.
TEST_P(Bf16Kernels, AreHeldToEveryRelation) {
  std::vector<AttentionCase> cases = pairwise_cases(6e5);
  for (const AttentionCase& edge : edge_cases()) cases.push_back(edge);
  const Form<BFloat16>& dense = forms<BFloat16>().front();
  Worst worst;
  for (const Relation<BFloat16>& relation : relations<BFloat16>()) {
    const std::string name = relation.name;
    const std::size_t bounded = all_cases() ? 1 : GetParam() == Products::kTiles ? 4 : 2;
    const std::size_t step = name == "textbook" ? bounded : name == "nan" ? 8 : 24;
    for (std::size_t n = 0; n < cases.size(); n += step) {
      const AttentionCase each = *dense.of(cases[n]);
      SCOPED_TRACE(name + " " + each.name());
      relation.check(dense, each, worst);
    }
  }
  worst.print("bf16 products");
}

TEST_P(Bf16Kernels, KeepToTheirMemory) {
  Context one({.threads = 1, .isa = Isa::kAvx512, .executor = nullptr});
  for (const Index width : {64, 512, 768, 1024}) {
    const Problem<BFloat16> problem({.q_len = 130, .kv_len = 130, .head_dim = width, .v_head_dim = width});
    const AttentionPlan plan = attention_plan(problem.q(), problem.k(), problem.v(), problem.options, one);
    EXPECT_LE(plan.forward_scratch_bytes, std::size_t{2} << 20) << width;
    EXPECT_LE(plan.backward_scratch_bytes, std::size_t{2} << 20) << width;
    Result<BFloat16> result(problem);
    result.run_forward(problem, one);
    one.trim();
    result.run_backward(problem, one);
    EXPECT_EQ(one.scratch_bytes(), plan.backward_scratch_bytes + plan.backward_shared_bytes) << width;
  }
}

/// With one key P is 1 and out is v: dP - delta must be 0, not the difference of two roundings.
TEST_P(Bf16Kernels, GiveNoGradientToTheScoreOfAKeyAlone) {
  Context one({.threads = 1, .isa = Isa::kAvx512, .executor = nullptr});
  Problem<BFloat16> problem({.q_len = 37, .kv_len = 1, .head_dim = 64, .v_head_dim = 65});
  std::ranges::fill(problem.dlse.span(), 0.0F);
  Random random(3);
  for (const View<BFloat16, 4>& view :
      {problem.v(), problem.dout.view}) {  // of many sizes, so that every sum is rounded
    for (Index i = 0; i < view.size(2); ++i) {
      for (Index d = 0; d < 65; ++d) view(0, 0, i, d) = BFloat16(static_cast<float>(std::exp(6 * random.symmetric())));
    }
  }
  Result<BFloat16> result(problem);
  result.run(problem, one);
  for (const View<BFloat16, 4>& view : {result.gradients.views[0], result.gradients.views[1]}) {
    const Tensor<float> gradient = copy_as<float>(view);
    for (const float x : gradient.span()) EXPECT_EQ(x, 0);
  }
}

TEST_P(Bf16Kernels, ReturnAConstantV) {
  Context one({.threads = 1, .isa = Isa::kAvx512, .executor = nullptr});
  for (const Index q_len : {1, 20}) {
    const Problem<BFloat16> problem(
        {.q_len = q_len, .kv_len = 30001, .head_dim = 9, .v_head_dim = 8, .fill = Fill::kConstantV});
    Result<BFloat16> result(problem);
    result.run_forward(problem, one);
    for (Index i = 0; i < q_len; ++i) {
      for (Index n = 0; n < 8; ++n) EXPECT_EQ(number_as<float>(result.out.view(0, 0, i, n)), 1);
    }
  }
}

/// The products of linear maps, C [rows, columns] = A B: forward, to the inputs and, with A transposed and added to
/// sums, to the weights.
struct LinearCase {
  Index rows, columns, depth;
  bool b_transposed, to_sums;
};

void check_product(const LinearCase& c) {
  Random random(7);
  const auto fill = [&](const std::vector<Index>& sizes) {
    Tensor<BFloat16> tensor(sizes);
    for (BFloat16& x : tensor.span()) x = BFloat16(static_cast<float>(random.symmetric()));
    return tensor;
  };
  const Tensor<BFloat16> a = c.to_sums ? fill({c.depth, c.rows}) : fill({c.rows, c.depth});
  const Tensor<BFloat16> b = c.b_transposed ? fill({c.columns, c.depth}) : fill({c.depth, c.columns});
  Tensor<BFloat16> rounded({c.rows, c.columns});
  Tensor<float> sums({c.rows, c.columns}), bias({c.columns}), a_sums({c.rows});
  for (float& x : bias.span()) x = static_cast<float>(random.symmetric());
  const MatrixProduct<BFloat16> product{.a = a.data(),
      .b = b.data(),
      .wide_b = nullptr,
      .bias = c.b_transposed ? bias.data() : nullptr,
      .c = c.to_sums ? nullptr : rounded.data(),
      .sums = c.to_sums ? sums.data() : nullptr,
      .rows = c.rows,
      .columns = c.columns,
      .depth = c.depth,
      .a_row = c.to_sums ? 1 : c.depth,
      .a_depth = c.to_sums ? c.rows : 1,
      .b_row = c.b_transposed ? 1 : c.columns,
      .b_column = c.b_transposed ? c.depth : 1,
      .c_row = c.columns,
      .a_sums = c.to_sums ? a_sums.data() : nullptr,
      .all_rows = c.rows};
  const ProductKernels<BFloat16>& kernels = kernel_tables(Isa::kAvx512).attention.layers.bf16_product;
  std::vector<std::byte> memory(kernels.scratch_bytes(product) + 64);
  void* aligned = memory.data();
  std::size_t room = memory.size();
  kernels.run(product, std::align(64, room - 64, aligned, room));
  const auto wide = [](const Tensor<BFloat16>& t, Index i) {
    return static_cast<double>(static_cast<float>(t.data()[i]));
  };
  // As expect_sum of tests/nn: rounding of `depth` terms in any order, at random signs; and one rounding to bf16.
  const double eps = (2 * std::sqrt(static_cast<double>(c.depth)) + 4) * 0x1p-23;
  for (Index i = 0; i < c.rows; ++i) {
    double row_sum = 0, row_size = 0;
    for (Index k = 0; k < c.depth; ++k) {
      const double x = wide(a, c.to_sums ? k * c.rows + i : i * c.depth + k);
      row_sum += x, row_size += std::abs(x);
    }
    if (c.to_sums) {
      EXPECT_NEAR(static_cast<double>(a_sums.data()[i]), row_sum, eps * row_size);
    }
    for (Index j = 0; j < c.columns; ++j) {
      double sum = c.b_transposed ? static_cast<double>(bias.data()[j]) : 0, size = std::abs(sum);
      for (Index k = 0; k < c.depth; ++k) {
        const double term = wide(a, c.to_sums ? k * c.rows + i : i * c.depth + k) *
                            wide(b, c.b_transposed ? j * c.depth + k : k * c.columns + j);
        sum += term, size += std::abs(term);
      }
      const double got =
          c.to_sums ? static_cast<double>(sums.data()[i * c.columns + j]) : wide(rounded, i * c.columns + j);
      ASSERT_NEAR(got, sum, eps * size + (c.to_sums ? 0 : 0x1p-8 * std::abs(sum))) << i << " " << j;
    }
  }
}

TEST_P(Bf16Kernels, MultiplyAsLinearMaps) {
  for (const Index rows : {1, 3, 8, 9, 40}) {
    for (const auto& [columns, depth] : {std::pair<Index, Index>{1, 1}, {31, 33}, {70, 64}, {300, 515}}) {
      check_product({rows, columns, depth, true, false});
      check_product({rows, columns, depth, false, false});
      check_product({rows, columns, depth, false, true});
    }
  }
}

}  // namespace
}  // namespace qkv::test

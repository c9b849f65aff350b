// Bits::kInvariant of what attention.h has no plain form of: caches in the storage of the queries and in others, merged
// parts, rotary positions, captures, second order, linear attention and scans. On every instruction set of this CPU,
// with one thread and three, the hashes in data/others_*.txt.
#include <gtest/gtest.h>

#include "invariant/hashes.h"
#include "linear/linear_problem.h"
#include "qkv/rotary.h"
#include "qkv/state_space.h"
#include "support/cases/cached_case.h"
#include "support/checks/second_problem.h"
#include "support/forms/form.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

using Results = std::vector<Tensor<double>>;
/// Holds what run(context) gives to its line.
class Others {
 public:
  explicit Others(Hashes& hashes) : hashes_(hashes) {}
  template <class Run> void expect(const std::string& list, std::size_t number, const Run& run) {
    const std::string line = list + " " + std::to_string(number);
    SCOPED_TRACE(line);
    for (const Isa isa : tested_isas()) {
      for (const int threads : {1, 3}) {
        if (isa == Isa::kScalar && threads > 1 && !all_cases()) continue;  // multiply-adds are emulated
        SCOPED_TRACE(std::string(isa_name(isa)) + " threads " + std::to_string(threads));
        Context context({.threads = threads, .isa = isa, .bits = Bits::kInvariant, .executor = nullptr});
        context.impl().region_flops = 0;
        const Results results = run(context);
        std::vector<const Tensor<double>*> each;
        for (const Tensor<double>& result : results) each.push_back(&result);
        hashes_.expect(line, hash_of<double>(each));
      }
    }
  }

 private:
  Hashes& hashes_;
};

/// Few and many queries, two layouts; out, lse and weights. A quarter of the shapes for each storage, or all.
template <class T> void caches(Others& others) {
  for (const CacheStorage storage : {CacheStorage::kF32, CacheStorage::kF64, CacheStorage::kBF16, CacheStorage::kF16,
           CacheStorage::kInt8, CacheStorage::kInt4}) {
    if (std::is_same_v<T, double> != (storage == CacheStorage::kF64)) continue;
    const std::vector<AttentionCase> shapes = cached_shapes();
    for (std::size_t n = 0; n < shapes.size(); ++n) {
      const auto number = static_cast<std::size_t>(storage);
      if (!all_cases() && !Hashes::updates() && n % 4 != (kTypeNumber<T> + number) % 4) continue;
      const AttentionCase& each = shapes[n];
      const Problem<T> problem(each);
      const KVCache cache = cache_of(
          each.kv_len % 2 == 0 ? CacheKind::kPages16 : CacheKind::kContiguous, storage, problem.k(), problem.v());
      others.expect(kStorageNames[number], n, [&](Context& context) {
        Result<T> result(problem);
        attention_forward(problem.q(), cache.key_value(),
            {.out = result.out.view, .lse = result.lse, .weights = result.weights}, problem.options, context);
        return outputs_of(result, kForward | kWeights);
      });
    }
  }
}

/// Five parts, of which one has no key.
template <class T> void merged_parts(Others& others) {
  using Sum = Accumulator<T>;
  std::vector<Tensor<T>> outs;
  std::vector<Tensor<Sum>> lses;
  for (std::uint64_t n = 0; n < 5; ++n) {
    outs.push_back(random_tensor<T>({2, 3, 37, 45}, n + 1));
    lses.push_back(random_tensor<Sum>({2, 3, 37}, n + 6));
    for (Sum& x : lses.back().span()) x = n == 3 ? -std::numeric_limits<Sum>::infinity() : 20 * x;
  }
  const std::vector<View<const T, 4>> out_views(outs.begin(), outs.end());
  const std::vector<View<const Sum, 3>> lse_views(lses.begin(), lses.end());
  others.expect("merged", 0, [&](Context& context) {
    Tensor<T> out(outs[0].sizes());
    Tensor<Sum> lse(lses[0].sizes());
    merge_attention(out_views, lse_views, out, lse, context);
    Results results;
    results.push_back(widened(out)), results.push_back(widened(lse));
    return results;
  });
}

/// Near positions and far ones.
template <class T> void rotations(Others& others) {
  const std::vector<RotaryOptions> all = {{}, {.rotary_dim = 30, .layout = RotaryLayout::kInterleaved},
      {.scaling = RotaryScaling::kYarn, .factor = 4, .original_context = 32},
      {.base = 500000, .scaling = RotaryScaling::kLlama3, .factor = 8, .original_context = 32},
      {.scaling = RotaryScaling::kNtk, .factor = 3}};
  const Tensor<T> x = random_tensor<T>({2, 3, 50, 46}, 1);
  const std::array<Index, 2> offsets = {0, 1000003};
  for (std::size_t n = 0; n < all.size(); ++n) {
    others.expect("rotary", n, [&](Context& context) {
      const Rotary rotary(46, all[n]);
      Tensor<T> y(x.sizes()), dx(x.sizes());
      rotary.forward(x, y, {.offsets = offsets}, context);
      rotary.backward(x, dx, {.offsets = offsets}, context);
      Results results;
      results.push_back(widened(y)), results.push_back(widened(dx));
      return results;
    });
  }
}

/// Captures of weights and of gradients; for full types the tangents of results and the gradients of gradients.
template <class T> void captures_and_second_order(Others& others) {
  const Form<T> form = captured<T>();
  const std::vector<AttentionCase> cases = long_cases();
  for (std::size_t n = 0; n < cases.size(); ++n) {
    if (!form.of(cases[n])) continue;
    const Problem<T> problem(cases[n]);
    others.expect("captured", n, [&](Context& context) { return form.more(problem, ~0U, context); });
    if constexpr (!kIsHalf<T>) {
      const SecondProblem<T> second(problem);
      others.expect("second", n, [&](Context& context) {
        SecondResult<T> result(second);
        result.run(second, context);
        Results results;
        for (const Tensor<T>& x : result.outputs()) results.push_back(widened(x));
        return results;
      });
    }
  }
}

template <class T> void linear_attention(Others& others) {
  const std::vector<LinearCase> cases = linear_pairwise_cases();
  for (std::size_t n = kTypeNumber<T>; n < cases.size(); n += 8) {
    const LinearProblem<T> problem(cases[n]);
    others.expect("linear", n, [&](Context& context) {
      LinearResult<T> result(problem);
      result.run(problem, context);
      Results results;
      for (const auto& [name, tensor] : result.outputs()) results.push_back(widened(tensor));
      return results;
    });
  }
}

template <class T> void scans(Others& others) {
  auto numbers = [seed = std::uint64_t{0}](
                     std::vector<Index> sizes) mutable { return random_tensor<T>(std::move(sizes), ++seed); };
  const Index batch = 2, length = 37, width = 45, states = 5;
  const Tensor<T> u = numbers({batch, length, width}), dt = numbers({batch, length, width}), skip = numbers({width}),
                  a = numbers({width, states}), b = numbers({batch, length, 3, states}),
                  c = numbers({batch, length, 3, states}), dout = numbers({batch, length, width}),
                  weight = numbers({width, 4}), bias = numbers({width});
  others.expect("scan", 0, [&](Context& context) {
    const SelectiveScanInputs<T> in{u, dt, a, b, c, skip};
    Tensor<T> out(u.sizes()), kept({batch, (length + kSelectiveScanChunk - 1) / kSelectiveScanChunk, states, width}),
        du(u.sizes()), ddt(u.sizes()), da(a.sizes()), db(b.sizes()), dc(c.sizes()), dskip(skip.sizes());
    selective_scan_forward(in, {.out = out, .kept = kept}, context);
    selective_scan_backward(
        in, kept, dout, {.du = du, .ddt = ddt, .da = da, .db = db, .dc = dc, .dskip = dskip}, context);
    Results results;
    for (const Tensor<T>* x : {&out, &du, &ddt, &da, &db, &dc, &dskip}) results.push_back(widened(*x));
    return results;
  });
  others.expect("convolution", 0, [&](Context& context) {
    const ShortConvolutionInputs<T> in{.x = u, .weight = weight, .bias = bias, .silu = true};
    Tensor<T> out(u.sizes()), dx(u.sizes()), dweight(weight.sizes()), dbias(bias.sizes());
    short_convolution_forward(in, out, context);
    short_convolution_backward(in, dout, {.dx = dx, .dweight = dweight, .dbias = dbias}, context);
    Results results;
    for (const Tensor<T>* x : {&out, &dx, &dweight, &dbias}) results.push_back(widened(*x));
    return results;
  });
}

template <class T> class InvariantOthers : public testing::Test {};
TYPED_TEST_SUITE(InvariantOthers, StorageTypes);

TYPED_TEST(InvariantOthers, AreTheHashes) {
  using T = TypeParam;
  Hashes hashes("others_" + type_name<T>());
  Others others(hashes);
  caches<T>(others);
  merged_parts<T>(others);
  rotations<T>(others);
  captures_and_second_order<T>(others);
  if constexpr (!kIsHalf<T>) {
    linear_attention<T>(others);
    scans<T>(others);
  }
  hashes.write();
}

}  // namespace
}  // namespace qkv::test

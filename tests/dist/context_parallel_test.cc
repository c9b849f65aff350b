// A sequence cut over ranks gives what one machine gives: bit for bit where promised, within the computed bound
// otherwise.
#include "cut_sequence.h"
#include "support/errors.h"
#include "support/forms/form.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T> class CutSequence : public testing::Test {};
TYPED_TEST_SUITE(CutSequence, StorageTypes);

const std::vector<ContextParallelOptions> kCuts = {{.layout = kContiguous, .method = Method::kAllGather},
    {.layout = kZigZag, .method = Method::kAllGather},
    {.layout = kContiguous, .method = Method::kAllGather, .block = 1},
    {.layout = kZigZag, .method = Method::kAllGather, .turns = 3, .chunk = 1},
    {.layout = kZigZag, .method = Method::kRing, .turns = 2, .chunk = 1},
    {.layout = kContiguous, .method = Method::kRing, .block = 1, .chunk = 1},
    {.layout = kZigZag, .method = Method::kUlysses}, {.layout = kContiguous, .method = Method::kUlysses, .block = 1}};

/// Rows in small pieces that lie far apart.
ContextParallelOptions in_pieces(Method method) {
  return {.layout = kZigZag, .method = method, .block = 8, .turns = 4, .chunk = method != Method::kUlysses};
}

TYPED_TEST(CutSequence, IsTheWholeInEveryCase) {
  Worst worst;
  std::vector<AttentionCase> cases = pairwise_cases(1e6);
  std::erase_if(cases, [](const AttentionCase& each) { return each.cache != CacheKind::kNone; });
  for (const AttentionCase& each : part_for<TypeParam>(cases, 40)) {
    expect_cut_is_whole<TypeParam>(each, kCuts, {2, 3}, tested_isas().back(), worst);
  }
  EXPECT_GT(worst.compared(), 100);
  worst.print("cut over ranks");
}

TYPED_TEST(CutSequence, IsTheWholeForOneToFourRanks) {
  Worst worst;
  std::vector<AttentionCase> cases;
  for (const MaskKind mask : {MaskKind::kCausalBottomRight, MaskKind::kWindow, MaskKind::kDocuments, MaskKind::kNone}) {
    // 205 is divided by none of 2, 3, 4, and Tq is not Tk except for documents
    const Index q_len = mask == MaskKind::kDocuments ? 260 : 205;
    const bool odd = cases.size() % 4 == 2;
    for (const bool three : {odd, !odd}) {  // a type takes one of the two, of each mask another
      cases.push_back({2, three ? 6 : 8, three ? 3 : 4, q_len, 260, 24, 16, mask});
      cases.back().dropout = three ? 0.0 : 0.2;
    }
  }
  for (const AttentionCase& each : part_for<TypeParam>(cases, 4)) {
    expect_cut_is_whole<TypeParam>(each, kCuts, {1, 2, 3, 4}, tested_isas().back(), worst);
    if (each.mask == MaskKind::kDocuments)
      expect_cut_is_whole<TypeParam>(each,
          {in_pieces(Method::kAllGather), in_pieces(Method::kUlysses), in_pieces(Method::kRing)}, {2, 3},
          tested_isas().back(), worst);
  }
  EXPECT_GT(worst.compared(), 100);
}

// Mistakes of other libraries: a packed length of 7 became 6; T had to be divisible; fewer tokens than ranks.
TYPED_TEST(CutSequence, AnyLengthWithAnyNumberOfRanks) {
  Worst worst;
  for (const Index length : {1, 3, 7, 33, 100}) {
    const AttentionCase each{1, 4, 4, length, length, 8, 8, MaskKind::kCausal};
    expect_cut_is_whole<TypeParam>(each, kCuts, {2, 4}, tested_isas().back(), worst);
    for (const int ranks : {1, 2, 3, 4, 9}) {
      for (const dist::Layout layout : {kContiguous, kZigZag}) {
        for (const auto& [block, turns] : {std::pair<Index, Index>{1, 1}, {32, 1}, {1, 3}, {32, 1000000}}) {
          std::vector<int> counts(static_cast<std::size_t>(length));
          for (int rank = 0; rank < ranks; ++rank) {
            for (const Rows& rows :
                dist::rows_of_rank({.layout = layout, .block = block, .turns = turns}, length, rank, ranks)) {
              EXPECT_LT(rows.begin, rows.end);
              for (Index i = rows.begin; i < rows.end; ++i) ++counts[static_cast<std::size_t>(i)];
            }
          }
          EXPECT_EQ(counts, std::vector<int>(static_cast<std::size_t>(length), 1)) << "every row lies on one rank";
        }
      }
    }
  }
}

// exp(lse) is infinite in f32 where lse is above 88: logits of about +-1e4, and sinks.
TYPED_TEST(CutSequence, LogitsWhoseExponentialsOverflow) {
  Worst worst;
  AttentionCase each{1, 4, 2, 130, 130, 40, 40, MaskKind::kCausal};
  each.fill = Fill::kHugeLogits, each.sinks = SinkKind::kSome;
  expect_cut_is_whole<TypeParam>(each, kCuts, {2, 4}, tested_isas().back(), worst);
}

// Ranks may then differ in theirs. What is one machine's is that of any, the rest the same for the same cut; a ring
// adds shares of dk and dv in all-gather's order.
TYPED_TEST(CutSequence, InvariantBitsAreThoseOfEveryInstructionSet) {
  using T = TypeParam;
  std::vector<AttentionCase> cases = {
      {1, 6, 3, 205, 260, 24, 16, MaskKind::kCausalBottomRight, BiasKind::kHeads}, {2, 3, 3, 130, 130, 40, 40}};
  cases[0].sinks = SinkKind::kUniform, cases[0].position = PositionKind::kAlibi;
  cases[1].mask = MaskKind::kDocuments, cases[1].bias = BiasKind::kKeys, cases[1].position = PositionKind::kT5;
  cases[1].dropout = 0.1, cases[1].softcap = 5;
  std::vector<std::vector<Isa>> ranks{tested_isas()};
  for (const Isa isa : tested_isas()) ranks.push_back({isa});
  for (const AttentionCase& each : cases) {
    SCOPED_TRACE(each.name());
    Problem<T> problem(each);
    problem.options.bits = Bits::kInvariant;
    Context context({.threads = 1, .isa = tested_isas().back(), .executor = nullptr});
    Result<T> whole(problem);
    whole.run_forward(problem, context);
    whole.run_backward(problem, context);
    for (const ContextParallelOptions& cut : part_for<T>(kCuts, 2)) {
      SCOPED_TRACE(name_of(3, cut));
      Result<T> gathered(problem), first(problem), result(problem);
      const auto expect_same = [&](const Result<T>& one, const Result<T>& other, unsigned asked) {
        const std::vector<Tensor<double>> a = outputs_of(one, asked), b = outputs_of(other, asked);
        for (std::size_t n = 0; n < a.size(); ++n) EXPECT_TRUE(same_bits(a[n], b[n])) << kOutputNames[n];
      };
      const bool ulysses = cut.method == Method::kUlysses;
      ContextParallelOptions gather = cut;
      if (!ulysses) gather.method = Method::kAllGather;
      run_cut<T>(problem, 3, gather, {tested_isas().back()}, gathered);
      expect_same(gathered, whole, kForward | kDq | (ulysses ? kDk | kDv : 0U));
      run_cut<T>(problem, 3, cut, {tested_isas().back()}, first);
      expect_same(first, gathered, kForward | kDq | kDk | kDv);
      for (const std::vector<Isa>& isas : ranks) {
        run_cut<T>(problem, 3, cut, isas, result);
        expect_same(result, first, kEverything & ~kWeights);
      }
    }
  }
}

// Stale keys of the first step in backward: other keys and values; results must be the new ones.
TEST(CutSequence, BackwardReadsTheKeysThatItIsGiven) {
  const Problem<float> a(
      {.num_heads = 2, .num_kv_heads = 2, .q_len = 64, .kv_len = 64, .head_dim = 8, .v_head_dim = 8, .seed = 3});
  const Problem<float> b(
      {.num_heads = 2, .num_kv_heads = 2, .q_len = 64, .kv_len = 64, .head_dim = 8, .v_head_dim = 8, .seed = 4});
  Context context({.threads = 1, .executor = nullptr});
  Result<float> whole(b);
  whole.run_forward(b, context);
  whole.run_backward(b, context);
  dist::run_in_process(2, [&](Transport& transport) {
    for (const Problem<float>* problem : {&a, &b}) {
      OnRank<float> mine(*problem, transport, {}, context.isa(), whole);
      mine.run();
      if (problem == &b) {
        EXPECT_TRUE(same_bits(mine.dq, local_of(whole.gradients.views[0], mine.q_rows)));
      }
    }
  });
}

TEST(CutSequence, RefusesWhatItDoesNotRead) {
  const Tensor<float> x({1, 2, 8, 4}), lse({1, 2, 8});
  dist::run_in_process(2, [&](Transport& transport) {
    test::expect_error<OptionError>(
        [&] { dist::ContextParallel(transport, {.turns = 2}); }, {"turns are of Layout::kZigZag: must be 1: got 2"});
    dist::ContextParallel parallel(transport);
    const View<const float, 4> mine = x.view<4>().sliced(2, 0, 4);
    const View<const float, 3> sums = lse.view<3>().sliced(2, 0, 4);
    Tensor<float> dq({1, 2, 4, 4});
    test::expect_error<UnsupportedError>(
        [&] { parallel.backward(mine, mine, mine, mine, sums, mine, {.dq = dq, .lse_low = sums}); }, {"lse_low"});
    test::expect_error<ShapeError>(
        [&] { parallel.backward(mine, mine, mine, mine, sums, mine, {.dk = dq, .dv = dq}); }, {"dk", "dv"});
    const View<float, 4> own = dq;
    test::expect_error<ShapeError>([&] { parallel.forward(own, mine, mine, own, {}); }, {"out", "q"});
    AttentionOptions part;
    part.part.first_head = 1;
    test::expect_error<OptionError>(
        [&] { parallel.forward(mine, mine, mine, dq, {}, part); }, {"part must be left alone"});
  });
}

// Backward adds where it is asked to, on every rank and for every method.
TEST(CutSequence, AccumulateAdds) {
  const Problem<float> problem({1, 2, 2, 90, 70, 8, 8, MaskKind::kNone, BiasKind::kHeads});
  Context context({.threads = 1, .executor = nullptr});
  Result<float> whole(problem);
  whole.run_forward(problem, context);
  for (const bool accumulate : {false, true}) {
    attention_backward(problem.q(), problem.k(), problem.v(), whole.out.view, whole.lse, problem.dout.view,
        {.dq = whole.gradients.views[0], .dlse = problem.dlse, .accumulate = accumulate}, problem.options, context);
  }
  for (const Method method : {Method::kAllGather, Method::kUlysses, Method::kRing}) {
    dist::run_in_process(2, [&](Transport& transport) {
      OnRank<float> once(problem, transport, {.method = method}, context.isa(), whole);
      OnRank<float> twice(problem, transport, {.method = method}, context.isa(), whole);
      once.run();
      twice.run();
      twice.run(true);
      // A sum that is added once doubles exactly; rows of dq are added to by every range of keys.
      const auto expect_twice = [](const Tensor<float>& sum, const Tensor<float>& of) {
        Tensor<float> doubled(of.sizes());
        for (Index i = 0; i < of.count(); ++i) doubled.data()[i] = 2 * of.data()[i];
        EXPECT_TRUE(same_bits(sum, doubled));
      };
      expect_twice(twice.dk, once.dk), expect_twice(twice.dv, once.dv), expect_twice(twice.dbias, once.dbias);
      if (method == Method::kUlysses) return expect_twice(twice.dq, once.dq);
      EXPECT_TRUE(same_bits(twice.dq, local_of(whole.gradients.views[0], once.q_rows)));
    });
  }
}

}  // namespace
}  // namespace qkv::test

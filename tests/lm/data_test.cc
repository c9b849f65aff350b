// BatchSource: windows, given batches, the two tasks; reproducible, with a clear error for texts that are too short.
#include <algorithm>
#include <set>

#include "lm/lm_test_support.h"

namespace qkv {
namespace {

using lm::Batch;
using lm::BatchSource;

std::vector<Index> flat(const Tensor<Index>& tensor) { return {tensor.span().begin(), tensor.span().end()}; }

std::vector<Index> counting(Index n) {
  std::vector<Index> ids(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = i;
  return ids;
}

TEST(Data, DefaultText) {
  const std::string pattern = "ababababababab abc abc abc xyzxyzxyz", text = lm::default_text();
  ASSERT_EQ(text.size(), 100 * pattern.size());
  for (std::size_t i = 0; i < text.size(); i += pattern.size()) EXPECT_EQ(text.substr(i, pattern.size()), pattern);
  EXPECT_EQ(test::default_tokenizer().vocab_size(), 7);
}

TEST(Data, WindowsCoverEveryStartAndNoOther) {
  const Index length = 12, context = 4;
  const BatchSource source = BatchSource::windows(counting(length), {8, context}, 3);
  std::set<Index> starts;
  Batch batch;
  for (Index step = 0; step < 40; ++step) {
    source.fill(step, batch);
    for (Index b = 0; b < 8; ++b) {
      const Index start = batch.inputs.data()[b * context];
      starts.insert(start);
      for (Index i = 0; i < context; ++i) {
        EXPECT_EQ(batch.inputs.data()[b * context + i], start + i);
        EXPECT_EQ(batch.targets.data()[b * context + i], start + i + 1);
      }
    }
  }
  std::set<Index> wanted;
  for (Index start = 0; start < length - context - 1; ++start) wanted.insert(start);
  EXPECT_EQ(starts, wanted);
}

TEST(Data, AStepDependsOnSeedAndStepAlone) {
  for (const auto make :
      {+[](std::uint64_t seed) { return BatchSource::windows(test::default_ids(), test::kDefaultShape, seed); },
          +[](std::uint64_t seed) { return BatchSource::previous(7, test::kDefaultShape, seed); },
          +[](std::uint64_t seed) { return BatchSource::masked(test::default_ids(), 7, test::kDefaultShape, seed); }}) {
    Batch a, b, other_step, other_seed;
    make(5).fill(9, a);
    const BatchSource source = make(5);
    for (Index step = 0; step <= 9; ++step) source.fill(step, b);
    make(5).fill(10, other_step);
    make(6).fill(9, other_seed);
    EXPECT_EQ(flat(a.inputs), flat(b.inputs));
    EXPECT_EQ(flat(a.targets), flat(b.targets));
    EXPECT_NE(flat(a.inputs), flat(other_step.inputs));
    EXPECT_NE(flat(a.inputs), flat(other_seed.inputs));
  }
}

TEST(Data, PreviousTargetsTheCharacterBefore) {
  const BatchSource source = BatchSource::previous(7, test::kDefaultShape, 1);
  Batch batch;
  source.fill(0, batch);
  std::vector<Index> counts(7);
  for (Index at = 0; at < batch.inputs.count(); ++at) {
    const Index before = at % 16 == 0 ? at : at - 1;
    EXPECT_EQ(batch.targets.data()[at], batch.inputs.data()[before]);
    ++counts[static_cast<std::size_t>(batch.inputs.data()[at])];
  }
  // 512 draws of 7: 73 each, standard deviation 8.
  for (const Index count : counts) EXPECT_NEAR(static_cast<double>(count), 512.0 / 7, 40);
}

TEST(Data, SameTargetsThePositionOfTheEarlierCharacter) {
  Batch batch;
  BatchSource::same(5, test::kDefaultShape, 1).fill(0, batch);
  Index found = 0;
  for (Index b = 0; b < 32; ++b) {
    for (Index i = 0; i < 16; ++i) {
      const Index* row = batch.inputs.data() + b * 16;
      Index expected = lm::kNoTarget;
      for (Index j = 0; j < i; ++j)
        if (row[j] == row[i]) expected = j % 5;
      EXPECT_EQ(batch.targets.data()[b * 16 + i], expected);
      found += expected != lm::kNoTarget ? 1 : 0;
    }
  }
  EXPECT_GT(found, 300);
}

/// A batch without a repeated character is drawn again: nothing could be learnt from it.
TEST(Data, SameAlwaysHasATarget) {
  Batch batch;
  const BatchSource source = BatchSource::same(26, {1, 2}, 1);
  for (Index step = 0; step < 50; ++step) {
    source.fill(step, batch);
    EXPECT_EQ(batch.inputs.data()[0], batch.inputs.data()[1]);
    EXPECT_EQ(flat(batch.targets), (std::vector<Index>{lm::kNoTarget, 0}));
  }
  BatchSource::same(Index{1} << 31, {1, 5}, 1).fill(0, batch);
  EXPECT_EQ(flat(batch.targets), (std::vector<Index>{lm::kNoTarget, lm::kNoTarget, lm::kNoTarget, lm::kNoTarget, 0}));
  test::expect_error<OptionError>([] { BatchSource::same(26, {1, 1}, 1); }, {"context", "at least 2", "got 1"});
  test::expect_error<OptionError>([] { BatchSource::same(Index{1} << 40, {1, 2}, 1); }, {"alphabet", "2147483648"});
}

/// The string's characters differ, so its second time begins where a character comes again.
TEST(Data, InductionRepeatsAString) {
  for (const auto& [alphabet, context] : {std::pair<Index, Index>{26, 24}, {4, 24}, {26, 4}, {9, 7}}) {
    Batch batch;
    const BatchSource source = BatchSource::induction(alphabet, {64, context}, 1);
    EXPECT_EQ(source.vocab_size(), alphabet);
    source.fill(0, batch);
    std::set<Index> periods;
    for (Index b = 0; b < 64; ++b) {
      const Index *ids = batch.inputs.data() + b * context, *targets = batch.targets.data() + b * context;
      Index period = 1;
      while (ids[period] != ids[0]) ++period;
      EXPECT_EQ(std::set<Index>(ids, ids + period).size(), static_cast<std::size_t>(period));
      for (Index i = 0; i < context; ++i) {
        EXPECT_EQ(ids[i], ids[i % period]);
        EXPECT_TRUE(ids[i] >= 0 && ids[i] < alphabet);
        EXPECT_EQ(targets[i], i < period ? lm::kNoTarget : ids[(i + 1) % period]);
      }
      periods.insert(period);
    }
    EXPECT_GE(*periods.begin(), std::min(context / 4, alphabet - 1) + 1);
    EXPECT_EQ(*periods.rbegin(), std::min(context / 2, alphabet));
    EXPECT_EQ(std::ssize(periods), *periods.rbegin() - *periods.begin() + 1);
  }
}

TEST(Data, TargetsOfATextAreThoseOfADrawnRow) {
  for (const BatchSource& source :
      {BatchSource::windows(test::default_ids(), {4, 12}, 1), BatchSource::previous(7, {4, 12}, 1),
          BatchSource::same(7, {4, 12}, 1), BatchSource::induction(7, {4, 12}, 1)}) {
    Batch batch;
    source.fill(0, batch);
    for (Index b = 0; b < 4; ++b) {
      const std::vector<Index> found = source.targets({batch.inputs.data() + b * 12, 12});
      EXPECT_TRUE(std::equal(found.begin(), found.end() - 1, batch.targets.data() + b * 12));
    }
  }
  EXPECT_EQ(BatchSource::induction(7, {4, 12}, 1).targets(std::vector<Index>{3, 3, 5}),
      (std::vector<Index>{lm::kNoTarget, 5, lm::kNoTarget}));
}

TEST(Data, MaskedHidesAboutFifteenPercent) {
  const std::vector<Index> ids = test::default_ids();
  for (const Index context : {1, 3, 16, 40}) {
    const BatchSource source = BatchSource::masked(ids, 7, {32, context}, 1);
    EXPECT_EQ(source.vocab_size(), 8);
    Batch batch;
    source.fill(2, batch);
    const Index wanted = std::max<Index>(1, static_cast<Index>(0.15 * static_cast<double>(context) + 0.5));
    std::set<Index> positions;
    for (Index b = 0; b < 32; ++b) {
      Index hidden = 0;
      for (Index at = b * context; at < (b + 1) * context; ++at) {
        const bool masked = batch.inputs.data()[at] == 7;
        EXPECT_EQ(masked, batch.targets.data()[at] != lm::kNoTarget);
        EXPECT_LT(batch.targets.data()[at], 7);
        hidden += masked ? 1 : 0;
        if (masked) positions.insert(at - b * context);
      }
      EXPECT_EQ(hidden, wanted);
    }
    EXPECT_GT(static_cast<double>(positions.size()), 0.6 * static_cast<double>(context));
  }
}

TEST(Data, GivenArrays) {
  Tensor<Index> arrays({2, 1, 4});
  for (Index i = 0; i < 8; ++i) arrays.data()[i] = i;
  const BatchSource given = BatchSource::from_arrays(arrays.clone());
  Batch batch;
  given.fill(1, batch);
  EXPECT_EQ(flat(batch.inputs), (std::vector<Index>{4, 5, 6}));
  EXPECT_EQ(flat(batch.targets), (std::vector<Index>{5, 6, 7}));
  test::expect_error<OptionError>([&] { given.fill(2, batch); }, {"step 2", "2 batches"});
}

TEST(Data, Errors) {
  const auto windows = [](Index length, lm::BatchShape shape) {
    return BatchSource::windows(counting(length), shape, 0);
  };
  test::expect_error<OptionError>(
      [&] {
        windows(17, {1, 16});
      },
      {"longer than context + 1", "17 characters", "context 16"});
  EXPECT_NO_THROW(windows(18, {1, 16}));
  test::expect_error<OptionError>([&] { windows(18, {0, 16}); }, {"at least 1"});
  test::expect_error<OptionError>([&] { BatchSource::masked(counting(30), 29, {1, 4}, 0); }, {"mask_id", "got 29"});
  test::expect_error<OptionError>([&] { BatchSource::previous(0, {1, 4}, 0); }, {"alphabet"});
  test::expect_error<OptionError>([&] { BatchSource::induction(26, {1, 3}, 0); }, {"context", "at least 4", "got 3"});
  test::expect_error<OptionError>([&] { BatchSource::induction(3, {1, 8}, 0); }, {"alphabet", "from 4", "got 3"});
  test::expect_error<ShapeError>(
      [&] {
        BatchSource::from_arrays(Tensor<Index>({2, 3}));
      },
      {"[steps, B, T + 1]", "[2, 3]"});
  Tensor<Index> negative({1, 1, 2});
  negative.data()[1] = -4;
  test::expect_error<OptionError>([&] { BatchSource::from_arrays(negative.clone()); }, {"from 0 to 2147483647", "-4"});
  negative.data()[1] = std::numeric_limits<Index>::max();  // plus 1 would overflow
  test::expect_error<OptionError>([&] { BatchSource::from_arrays(negative.clone()); }, {"9223372036854775807"});
}

}  // namespace
}  // namespace qkv

// Batches: what is drawn for row `row` of step `step` depends on (seed, step, row) alone.
#include "qkv/lm/data.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "lm/draw.h"

namespace qkv::inline v0::lm {
namespace {

constexpr Index kLeastOfInduction = 4;
constexpr Index kMostIds = Index{1} << 31;  // beyond any alphabet, and far from overflow
constexpr Index kMostDraws = 1000;
constexpr double kHiddenShare = 0.15;  // BERT, arXiv:1810.04805, section 3.1

void check_shape(BatchShape shape, const char* function) {
  check<OptionError>(shape.batch >= 1 && shape.context >= 1, function,
      "batch and context must be at least 1: got batch ", shape.batch, ", context ", shape.context);
}

/// The largest id plus 1; every id must be in [0, 2^31).
Index vocab_of(std::span<const Index> ids, const char* function) {
  Index vocab = 0;
  for (const Index id : ids) {
    check<OptionError>(id >= 0 && id < kMostIds, function, "ids must be from 0 to ", kMostIds - 1, ": got ", id);
    vocab = std::max(vocab, id + 1);
  }
  return vocab;
}

std::span<Index> row_of(Tensor<Index>& tensor, Index row) {
  return {tensor.data() + row * tensor.size(1), static_cast<std::size_t>(tensor.size(1))};
}

void copy_window(std::span<const Index> ids, Index start, std::span<Index> inputs, std::span<Index> targets) {
  const auto from = ids.begin() + start;
  std::copy_n(from, inputs.size(), inputs.begin());
  std::copy_n(from + 1, targets.size(), targets.begin());
}

/// Moves the inputs of `count` random positions to the targets and writes the mask's id there; no other position has a
/// target.
void hide(Random random, Index mask_id, std::span<Index> inputs, std::span<Index> targets) {
  const auto length = static_cast<Index>(inputs.size());
  const auto count = std::max<Index>(1, std::lround(kHiddenShare * static_cast<double>(length)));
  std::fill(targets.begin(), targets.end(), kNoTarget);
  // Floyd's sampling without replacement: the drawn position, or the end of the range when it is already taken.
  for (Index end = length - count; end < length; ++end) {
    auto slot = static_cast<std::size_t>(draw_below(random, end + 1));
    if (targets[slot] != kNoTarget) slot = static_cast<std::size_t>(end);
    targets[slot] = inputs[slot];
    inputs[slot] = mask_id;
  }
}

/// A string of different characters, again and again, and its next character from the second time on.
void repeat_string(Random random, Index alphabet, std::span<Index> inputs, std::span<Index> targets) {
  const auto length = static_cast<Index>(inputs.size()), least = std::min(length / 4, alphabet - 1),
             most = std::min(length / 2, alphabet);
  const auto period = static_cast<std::size_t>(least + 1 + draw_below(random, most - least));
  const auto string = inputs.first(period);
  for (std::size_t i = 0; i < period; ++i) {
    const auto before = string.first(i);
    do string[i] = draw_below(random, alphabet);
    while (std::ranges::find(before, string[i]) != before.end());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = string[i % period];
    targets[i] = i < period ? kNoTarget : string[(i + 1) % period];
  }
}

}  // namespace

std::string default_text() {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "ababababababab abc abc abc xyzxyzxyz";
  return text;
}

BatchSource BatchSource::over_text(
    Kind kind, std::vector<Index> ids, BatchShape shape, std::uint64_t seed, const char* function) {
  check_shape(shape, function);
  check<OptionError>(static_cast<Index>(ids.size()) - 1 > shape.context, function,
      "the text must be longer than context + 1: got ", ids.size(), " characters for context ", shape.context);
  BatchSource source(kind, shape, seed);
  source.vocab_size_ = vocab_of(ids, function);
  source.ids_ = std::move(ids);
  return source;
}

BatchSource BatchSource::windows(std::vector<Index> ids, BatchShape shape, std::uint64_t seed) {
  return over_text(Kind::kWindows, std::move(ids), shape, seed, "BatchSource::windows");
}

BatchSource BatchSource::masked(std::vector<Index> ids, Index mask_id, BatchShape shape, std::uint64_t seed) {
  constexpr const char* kFunction = "BatchSource::masked";
  BatchSource source = over_text(Kind::kMasked, std::move(ids), shape, seed, kFunction);
  check<OptionError>(mask_id >= source.vocab_size_ && mask_id < kMostIds, kFunction,
      "mask_id must not occur in the text, and be below ", kMostIds, ": got ", mask_id, " for ids below ",
      source.vocab_size_);
  source.mask_id_ = mask_id;
  source.vocab_size_ = mask_id + 1;
  return source;
}

BatchSource BatchSource::from_arrays(Tensor<Index> batches) {
  constexpr const char* kFunction = "BatchSource::from_arrays";
  check<ShapeError>(batches.rank() == 3 && batches.size(1) >= 1 && batches.size(2) >= 2, kFunction,
      "batches must be [steps, B, T + 1]: got ", batches);
  BatchSource source(Kind::kArrays, {batches.size(1), batches.size(2) - 1}, 0);
  source.steps_ = batches.size(0);
  source.vocab_size_ = vocab_of(batches.span(), kFunction);
  source.given_ = std::move(batches);
  return source;
}

BatchSource BatchSource::of_random_ids(
    Kind kind, Index alphabet, Index least, BatchShape shape, std::uint64_t seed, const char* function) {
  check_shape(shape, function);
  check<OptionError>(alphabet >= least && alphabet <= kMostIds, function, "alphabet must be from ", least, " to ",
      kMostIds, ": got ", alphabet);
  BatchSource source(kind, shape, seed);
  source.vocab_size_ = alphabet;
  return source;
}

BatchSource BatchSource::previous(Index alphabet, BatchShape shape, std::uint64_t seed) {
  return of_random_ids(Kind::kPrevious, alphabet, 1, shape, seed, "BatchSource::previous");
}

BatchSource BatchSource::same(Index alphabet, BatchShape shape, std::uint64_t seed) {
  constexpr const char* kFunction = "BatchSource::same";
  check<OptionError>(
      shape.context >= 2, kFunction, "context must be at least 2, a character and one like it: got ", shape.context);
  return of_random_ids(Kind::kSame, alphabet, 1, shape, seed, kFunction);
}

BatchSource BatchSource::induction(Index alphabet, BatchShape shape, std::uint64_t seed) {
  constexpr const char* kFunction = "BatchSource::induction";
  check<OptionError>(shape.context >= kLeastOfInduction, kFunction, "context must be at least ", kLeastOfInduction,
      ", a string and its repetition: got ", shape.context);
  return of_random_ids(Kind::kInduction, alphabet, kLeastOfInduction, shape, seed, kFunction);
}

Index BatchSource::target(std::span<const Index> ids, std::size_t i) const {
  if (kind_ == Kind::kPrevious) return ids[i == 0 ? 0 : i - 1];
  const Index next = i + 1 < ids.size() ? ids[i + 1] : kNoTarget;
  if (kind_ == Kind::kWindows || kind_ == Kind::kArrays) return next;
  std::size_t behind = i;  // the earlier one like it
  while (behind > 0 && ids[behind - 1] != ids[i]) --behind;
  if (kind_ == Kind::kMasked || behind == 0) return kNoTarget;
  return kind_ == Kind::kInduction ? next : static_cast<Index>(behind - 1) % vocab_size_;
}

std::vector<Index> BatchSource::targets(std::span<const Index> ids) const {
  std::vector<Index> found;
  for (std::size_t i = 0; i < ids.size(); ++i) found.push_back(target(ids, i));
  return found;
}

void BatchSource::fill_row(Index step, Index row, std::span<Index> inputs, std::span<Index> targets) const {
  const auto random = [&](Draw purpose) { return Random(derived_seed(seed_, purpose, step, row)); };
  switch (kind_) {
    case Kind::kArrays:
      copy_window(given_.span(), (step * given_.size(1) + row) * (shape_.context + 1), inputs, targets);
      break;
    case Kind::kWindows:
    case Kind::kMasked: {
      const Index starts = static_cast<Index>(ids_.size()) - shape_.context - 1;
      Random draws = random(Draw::kWindow);
      copy_window(ids_, draw_below(draws, starts), inputs, targets);
      if (kind_ == Kind::kMasked) hide(random(Draw::kHidden), mask_id_, inputs, targets);
      break;
    }
    case Kind::kPrevious:
    case Kind::kSame: {
      Random draws = random(Draw::kCharacter);
      for (Index& id : inputs) id = draw_below(draws, vocab_size_);
      for (std::size_t i = 0; i < inputs.size(); ++i) targets[i] = target(inputs, i);
      break;
    }
    case Kind::kInduction: repeat_string(random(Draw::kCharacter), vocab_size_, inputs, targets); break;
  }
}

void BatchSource::fill(Index step, Batch& batch) const {
  check<OptionError>(step >= 0 && (steps_ < 0 || step < steps_), "BatchSource::fill",
      "there must be a batch for every step: got step ", step, " of ", steps_, " batches");
  const std::vector<Index>& sizes = batch.inputs.sizes();
  if (sizes.size() != 2 || sizes[0] != shape_.batch || sizes[1] != shape_.context) {
    batch.inputs = Tensor<Index>({shape_.batch, shape_.context});
    batch.targets = Tensor<Index>({shape_.batch, shape_.context});
  }
  // Of `same`, rows without a repeated character may be all there are: they are drawn again, as further rows; after
  // kMostDraws of a large alphabet the last character is made like the first.
  const auto has_target = [&] { return std::ranges::any_of(batch.targets.span(), [](Index id) { return id >= 0; }); };
  Index drawn = 0;
  do {
    for (Index row = 0; row < shape_.batch; ++row)
      fill_row(step, drawn + row, row_of(batch.inputs, row), row_of(batch.targets, row));
    drawn += shape_.batch;
    if (kind_ != Kind::kSame || drawn / shape_.batch < kMostDraws) continue;
    const std::span<Index> inputs = row_of(batch.inputs, 0), to = row_of(batch.targets, 0);
    inputs.back() = inputs.front();
    to.back() = target(inputs, inputs.size() - 1);
  } while (kind_ == Kind::kSame && !has_target());
}

}  // namespace qkv::inline v0::lm

// Batches of character ids: windows of a text, given arrays, and the tasks made of random numbers. Not: files.
// Everything is a pure function of (seed, step): bit-identical for any thread count, and a run resumes where it
// stopped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "qkv/export.h"
#include "qkv/tensor.h"
#include "qkv/types.h"

namespace qkv::inline v0::lm {

/// The patterned text of the default run: 36 characters, repeated 100 times; the alphabet is " abcxyz".
QKV_API std::string default_text();

/// Marks a position without a target: it adds nothing to the loss.
inline constexpr Index kNoTarget = -1;

struct Batch {
  Tensor<Index> inputs;   ///< [B, T]
  Tensor<Index> targets;  ///< [B, T]; kNoTarget where there is none
};

struct BatchShape {
  Index batch = 32;    ///< B
  Index context = 16;  ///< T
};

class QKV_API BatchSource {
 public:
  /// Windows of a text with random starts below ids.size() - context - 1; the target is the next character.
  /// Throws OptionError, with the numbers, unless the text is longer than context + 1.
  static BatchSource windows(std::vector<Index> ids, BatchShape shape, std::uint64_t seed);
  /// Given batches [steps, B, T + 1]: inputs are the first T, targets the last T.
  static BatchSource from_arrays(Tensor<Index> batches);
  /// --task previous: fresh random ids below `alphabet`; the target at i is the character at i - 1, at i = 0 its own
  /// character.
  static BatchSource previous(Index alphabet, BatchShape shape, std::uint64_t seed);
  /// --task same: fresh random ids below `alphabet`; the target at i is where the character at i last stood before: the
  /// id j % alphabet for position j, kNoTarget where it is new.
  static BatchSource same(Index alphabet, BatchShape shape, std::uint64_t seed);
  /// --task induction: a random string of T / 4 + 1 to T / 2 different characters, or of as many as the alphabet has,
  /// again and again; the target is the next character where the string has been there once, kNoTarget before.
  /// OptionError unless context and alphabet are at least 4.
  static BatchSource induction(Index alphabet, BatchShape shape, std::uint64_t seed);
  /// --task masked: windows in which 15 % of the characters (at least one per row) are replaced by the id mask_id, as
  /// in BERT; the target is the replaced character, kNoTarget elsewhere.
  static BatchSource masked(std::vector<Index> ids, Index mask_id, BatchShape shape, std::uint64_t seed);

  /// Fills the batch of a step; allocates only when the shape changes. Throws OptionError past the last given step.
  void fill(Index step, Batch& batch) const;
  /// What fill asks at each of `ids`, a text of any length; kNoTarget where the text does not say: at its last
  /// character where the next is asked for, and everywhere where characters are hidden.
  std::vector<Index> targets(std::span<const Index> ids) const;
  BatchShape shape() const { return shape_; }
  /// Number of steps of given arrays; -1 for the others, which never end.
  Index steps() const { return steps_; }
  /// The largest id that fill can write, plus 1.
  Index vocab_size() const { return vocab_size_; }

 private:
  enum class Kind { kWindows, kArrays, kPrevious, kSame, kInduction, kMasked };
  BatchSource(Kind kind, BatchShape shape, std::uint64_t seed) : kind_(kind), shape_(shape), seed_(seed) {}
  static BatchSource of_random_ids(
      Kind kind, Index alphabet, Index least, BatchShape shape, std::uint64_t seed, const char* function);
  static BatchSource over_text(
      Kind kind, std::vector<Index> ids, BatchShape shape, std::uint64_t seed, const char* function);
  Index target(std::span<const Index> ids, std::size_t i) const;
  void fill_row(Index step, Index row, std::span<Index> inputs, std::span<Index> targets) const;

  Kind kind_;
  BatchShape shape_;
  std::uint64_t seed_;
  Index steps_ = -1;
  Index vocab_size_ = 0;
  Index mask_id_ = -1;
  std::vector<Index> ids_;
  Tensor<Index> given_;  // [steps, B, T + 1]
};

}  // namespace qkv::inline v0::lm

// An entry of the catalogue: a mistake, or a convention (right, in another legal spelling), as edits of the textbook.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/task.h"

namespace qkv::judge {

/// Where it shows: in what a call computes, or only in gradients, in training mode, in a second call, in returned weights.
enum class Shows { kForward, kGradient, kTraining, kTwice, kWeights };

struct Entry {
  std::string_view id;
  std::string_view says;  ///< one sentence; "{}" stands for a family's number
  std::string_view hint;  ///< points, without giving it away
  std::string_view term;  ///< of the formula: projection, heads, scores, scale, mask, softmax, values, output, ...
  /// Parts of which a task has at least one: where the entry applies.
  std::vector<std::string_view> parts;
  std::function<Edits(double number)> edits;
  bool convention = false;
  bool given = false;           ///< a convention that the probes' metadata demand, never tried
  std::string_view group = {};  ///< conventions that exclude one another; mistakes of one group are never paired
  /// A family's numbers that are tried (scales, fills, windows); empty: no family.
  std::function<std::vector<double>(const Probe&)> numbers = {};
  /// A family whose number is then fitted between its candidates by the answer.
  bool fitted = false;
  Shows shows = Shows::kForward;
  bool fixes_empty_rows = false;  ///< it says itself what a row gives that sees nothing
};

/// Every entry, conventions first.
const std::vector<Entry>& catalogue();
/// The first entry of this id; nullptr when there is none.
const Entry* find_entry(std::string_view id);
/// Whether the task has a part that the entry is about.
bool applies(const Entry& entry, const Task& task);

// catalogue/*.cc
std::vector<Entry> projection_entries();
std::vector<Entry> head_entries();
std::vector<Entry> score_entries();
std::vector<Entry> mask_entries();
std::vector<Entry> softmax_entries();
std::vector<Entry> value_entries();
std::vector<Entry> gradient_entries();
std::vector<Entry> cache_entries();
std::vector<Entry> rope_entries();
std::vector<Entry> flash_entries();
std::vector<Entry> linear_entries();
std::vector<Entry> backward_entries();
std::vector<Entry> dropout_entries();
std::vector<Entry> lm_entries();

}  // namespace qkv::judge

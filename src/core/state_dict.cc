// Named tensors in the order they came.
#include "qkv/state_dict.h"

#include "core/check.h"
#include "core/listed.h"

namespace qkv::inline v0 {

void StateDict::add(std::string name, AnyTensor tensor) {
  check<OptionError>(!contains(name), "StateDict::add", "each name may be added once: got a second \"", name, "\"");
  const auto [slot, added] = slots_.emplace(name, entries_.size());
  try {
    entries_.push_back({std::move(name), std::move(tensor)});
  } catch (...) {
    slots_.erase(slot);
    throw;
  }
}

const AnyTensor* StateDict::find(std::string_view name) const {
  const auto found = slots_.find(name);
  return found == slots_.end() ? nullptr : &entries_[found->second].tensor;
}

const AnyTensor& StateDict::at(std::string_view name) const {
  const AnyTensor* found = find(name);
  const auto names = [&] {
    return entries_.empty() ? std::string("none") : listed(entries_, std::mem_fn(&Entry::name));
  };
  check<OptionError>(found != nullptr, "StateDict::at", "the name must be one of ", names, ": got \"", name, "\"");
  return *found;
}

StateDict StateDict::clone() const {
  StateDict copy;
  copy.metadata = metadata;
  copy.entries_.reserve(entries_.size());
  copy.slots_ = slots_;
  for (const Entry& entry : entries_) copy.entries_.push_back({entry.name, entry.tensor.clone()});
  return copy;
}

}  // namespace qkv::inline v0

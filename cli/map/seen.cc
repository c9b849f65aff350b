#include "map/seen.h"

#include <algorithm>

namespace qkv::cli {
namespace {

/// Nested lists of a tensor's numbers; whole numbers where E is whole.
template <class E>
Json nested(const Tensor<E>& tensor, int axis, const E*& next) {
  if (axis == tensor.rank()) return *next++;
  Json list = Json::array();
  for (Index n = 0; n < tensor.size(axis); ++n) list.push_back(nested(tensor, axis + 1, next));
  return list;
}
template <class E>
void add(Json& document, const char* name, const Tensor<E>& tensor) {
  if (tensor.rank() == 0) return;
  const E* next = tensor.data();
  document[name] = nested(tensor, 0, next);
}

}  // namespace

std::vector<std::pair<const char*, Tensor<double>>> statistics_of(const CaptureResult& seen) {
  const RowStatistics& s = seen.statistics;
  Tensor<double> max_key(s.max_key.sizes());
  std::ranges::copy(s.max_key.span(), max_key.data());
  std::vector<std::pair<const char*, Tensor<double>>> all;
  all.emplace_back("entropy_nats", s.entropy.clone());
  all.emplace_back("max_weight", s.max_weight.clone());
  all.emplace_back("max_key", std::move(max_key));
  all.emplace_back("self", s.self.clone());
  all.emplace_back("previous", s.previous.clone());
  all.emplace_back("first", s.first.clone());
  all.emplace_back("distance", s.distance.clone());
  all.emplace_back("sink", s.sink.clone());
  return all;
}

void add_seen(Json& document, const CaptureResult& seen) {
  for (const auto& [name, tensor] : statistics_of(seen)) {
    if (std::string_view(name) != "max_key") add(document, name, tensor);
  }
  add(document, "max_key", seen.statistics.max_key);
  add(document, "top_weights", seen.top_weights);
  add(document, "top_keys", seen.top_keys);
  add(document, "column_mass", seen.column_mass);
}

}  // namespace qkv::cli

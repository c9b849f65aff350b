#include "map/seen.h"

#include <algorithm>

namespace qkv::cli {
namespace {

template <class E>
void add(Json& document, const char* name, const Tensor<E>& tensor) {
  if (tensor.rank() > 0) document[name] = nested(tensor);
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

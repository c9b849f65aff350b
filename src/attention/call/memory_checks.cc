#include "attention/call/memory_checks.h"

namespace qkv::inline v0 {
namespace {

template <class Visit> void each_result(const CaptureResult& results, const Visit& visit) {
  const auto box = [&]<class E>(const Tensor<E>& x) {
    visit(NamedBox("the result of a capture", View<const E, 1>(x.data(), {static_cast<Index>(x.span().size())})));
  };
  const RowStatistics& s = results.statistics;
  for (const Tensor<double>* x : {&results.rows, &results.top_weights, &results.map, &results.column_mass, &s.entropy,
           &s.max_weight, &s.self, &s.previous, &s.first, &s.distance, &s.sink}) {
    box(*x);
  }
  box(results.top_keys);
  box(s.max_key);
}

}  // namespace

void check_memory(const char* function, const Problem& p, const Mask::Node* mask, std::span<const NamedBox> outputs,
    std::span<const NamedBox> inputs, const CaptureResult* results) {
  const NamedBox tensors[] = {{"q", p.q}, {"k", p.keys.k_memory()}, {"v", p.keys.v_memory()}, {"bias", p.bias},
      {"sinks", p.sinks}, {"position_bias", p.position_table()}, {"lengths", p.keys.lengths_memory()},
      {"the block table", p.keys.table_memory()}};
  check_outputs(function, outputs, tensors);
  for (const NamedBox& input : inputs) {
    check_given(function, input);
    for (const NamedBox& output : outputs) check_apart(function, output, input);
  }
  each_dense(mask, [&](const DenseLeaf& leaf) {
    const NamedBox dense("the mask", leaf.dense().values);
    for (const NamedBox& output : outputs) check_apart(function, output, dense);
    if (results != nullptr) each_result(*results, [&](const NamedBox& x) { check_apart(function, x, dense); });
  });
  if (results == nullptr) return;
  each_result(*results, [&](const NamedBox& result) {
    for (const auto& others : {std::span<const NamedBox>(tensors), inputs, outputs}) {
      for (const NamedBox& other : others) check_apart(function, result, other);
    }
  });
}

}  // namespace qkv::inline v0

#include "attention/call/ragged.h"

#include <algorithm>

#include "core/check.h"

namespace qkv::inline v0 {
namespace {

void check_offsets(const char* function, const char* name, const Offsets& offsets, Index total) {
  check<ShapeError>(!offsets.empty(), function, name, " must have one number more than there are sequences: got none");
  check<OptionError>(offsets.front() == 0, function, name, " must start at 0: got ", offsets.front());
  for (std::size_t b = 1; b < offsets.size(); ++b) {
    check<OptionError>(offsets[b - 1] <= offsets[b], function, name, " must not decrease: got ", offsets[b - 1], ", then ",
                       offsets[b], " at ", b);
  }
  check<ShapeError>(offsets.back() == total, function, name, " must end at the number of tokens: got ", offsets.back(), " for ",
                    total);
}

}  // namespace

template <class T>
RaggedProblem<T>::RaggedProblem(const char* function, const View<const T, 3>& q, const View<const T, 3>& k,
                                const View<const T, 3>& v, const RaggedOffsets& its_offsets,
                                const AttentionOptions& its_options, Context& context, Use use)
    : offsets(its_offsets),
      options(its_options),
      shared(make_problem(function, one_sequence(q), one_sequence(k), one_sequence(v), options, context, use)) {
  check<UnsupportedError>(options.capture.result == nullptr, function,
                          "capture is not supported in a ragged batch: look at one sequence alone");
  check<ShapeError>(offsets.q_offsets.size() == offsets.kv_offsets.size(), function,
                    "q_offsets and kv_offsets must have the same number of sequences: got ", offsets.q_offsets.size(), " and ",
                    offsets.kv_offsets.size(), " numbers");
  check_offsets(function, "q_offsets", offsets.q_offsets, q.size(0));
  check_offsets(function, "kv_offsets", offsets.kv_offsets, k.size(0));
  batch = static_cast<Index>(offsets.q_offsets.size()) - 1;
  longest = shared;
  longest.batch = batch;
  longest.q_len = longest.kv_len = 0;
  for (Index b = 0; b < batch; ++b) {
    longest.q_len = std::max(longest.q_len, q_len(b));
    longest.kv_len = std::max(longest.kv_len, kv_len(b));
    check_mask(options.mask, extent(b), function);
    check_position_bias<Accumulator<T>>(options.position_bias, shared.num_heads, q_len(b), kv_len(b), function);
  }
  longest.queries = longest.q_len;
  summaries = memory.dense.make(options.mask.node(), context);
  memory.position = shared.position.spread(options.position_bias, longest.q_len, longest.kv_len, context);
  check_bias_sizes(function, "[B|1, H|1, longest Tq|1, longest Tk|1]", shared.bias,
                   {batch, shared.num_heads, longest.q_len, longest.kv_len});
}

template <class T>
Problem<T> RaggedProblem<T>::sequence(Index b) const {
  Problem<T> p = shared;
  p.batch = batch;
  p.q_len = p.queries = q_len(b);
  p.kv_len = kv_len(b);
  p.q = queries(shared.q, b);
  p.k = keys(shared.k, b);
  p.v = keys(shared.v, b);
  p.mask = {options.mask.node(), extent(b)};
  return p;
}

template <class T>
void check_tokens(const char* function, const char* name, const View<T, 3>& tokens, Index total, Index heads, Index width) {
  const std::array<Index, 3> wanted{total, heads, width};
  check<ShapeError>(
      tokens.sizes() == wanted, function, name, " must be ", [&] { return shape_text(wanted.data(), 3); }, ": got ", tokens);
  check<ShapeError>(tokens.stride(2) == 1 || width == 1 || tokens.count() == 0, function, "the last axis of ", name,
                    " must have stride 1: got stride ", tokens.stride(2), " for ", tokens);
}

#define QKV_INSTANTIATE(T)                                                                      \
  template struct RaggedProblem<T>;                                                             \
  template void check_tokens(const char*, const char*, const View<T, 3>&, Index, Index, Index); \
  template void check_tokens(const char*, const char*, const View<const T, 3>&, Index, Index, Index);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0

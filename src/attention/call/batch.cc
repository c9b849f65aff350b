#include "attention/call/batch.h"

#include <new>

#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

void check_offsets(const char* function, const char* name, const Offsets& offsets, Index total) {
  check<ShapeError>(!offsets.empty(), function, name, " must have one number more than there are sequences: got none");
  check<OptionError>(offsets.front() == 0, function, name, " must start at 0: got ", offsets.front());
  for (std::size_t b = 1; b < offsets.size(); ++b) {
    check<OptionError>(offsets[b - 1] <= offsets[b], function, name, " must not decrease: got ", offsets[b - 1],
        ", then ", offsets[b], " at ", b);
  }
  check<ShapeError>(offsets.back() == total, function, name, " must end at the number of tokens: got ", offsets.back(),
      " for ", total);
}

}  // namespace

RaggedCall::RaggedCall(const char* function, const AnyView& q, const AnyView& k, const AnyView& v,
    const RaggedOffsets& where, const AttentionOptions& given_options, Context& context, bool reads_v)
    : offsets(where),
      options(given_options),
      all(make_problem(
          function, as_one_sequence(q), {as_one_sequence(k), as_one_sequence(v)}, options, context, reads_v)),
      longest(all) {
  check<UnsupportedError>(options.capture.result == nullptr, function,
      "capture is not supported in a ragged batch: capture one sequence alone");
  check<ShapeError>(offsets.q_offsets.size() == offsets.kv_offsets.size(), function,
      "q_offsets and kv_offsets must have the same number of sequences: got ", offsets.q_offsets.size(), " and ",
      offsets.kv_offsets.size(), " numbers");
  check_offsets(function, "q_offsets", offsets.q_offsets, q.size(0));
  check_offsets(function, "kv_offsets", offsets.kv_offsets, k.size(0));
  longest.batch = batch = static_cast<Index>(offsets.q_offsets.size()) - 1;
  longest.q_len = longest.kv_len = 0;
  const Batch parts(*this);
  for (Index b = 0; b < batch; ++b) {
    longest.q_len = std::max(longest.q_len, parts.q_len(b));
    longest.kv_len = std::max(longest.kv_len, parts.kv_len(b));
    check_mask(options.mask, extent(b), function);
    check_position_bias(function, all, parts.q_len(b), parts.kv_len(b));
  }
  longest.queries = longest.q_len;
  longest.prepare(context, memory);
  all.position = longest.position;
  summaries = memory.dense.make(options.mask.node(), context);
  check_bias_sizes(function, "[B|1, H|1, longest Tq|1, longest Tk|1]", all.bias,
      {batch, all.num_heads, longest.q_len, longest.kv_len});
  static_assert(std::is_trivially_destructible_v<Problem>);
  problems = borrow_scratch(context, parts.shared_bytes());
  for (Index b = 0; b < batch; ++b) {
    Problem& p = *new (problems.as<Problem>() + b) Problem(all);
    p.batch = batch;
    p.q_len = p.queries = parts.q_len(b);
    p.kv_len = parts.kv_len(b);
    p.q = parts.queries(all.q, b);
    p.keys = {parts.keys(all.keys.k, b), parts.keys(all.keys.v, b)};
    p.mask = {options.mask.node(), extent(b)};
  }
}

MaskExtent RaggedCall::extent(Index b) const {
  const Batch parts(*this);
  return {batch, all.num_heads, parts.q_len(b), parts.kv_len(b), b, summaries};
}

std::size_t Batch::shared_bytes() const { return is_ragged() ? line_bytes<Problem>(parts()) : 0; }

AnyView Batch::rows(const AnyView& tokens, const Offsets& offsets, Index n) const {
  if (tokens.data == nullptr) return tokens;
  AnyView part;
  part.data = tokens.at(0, 0, begin(offsets, n));
  part.type = tokens.type;
  part.rank = tokens.rank;
  part.sizes = {ragged_->batch, tokens.sizes[1], length(offsets, n), tokens.sizes[3]};
  part.strides = {0, tokens.strides[1], tokens.strides[2], tokens.strides[3]};
  return part;
}

}  // namespace qkv::inline v0

// A case of the one list as a ragged batch whose sequences happen to be equally long: every option is bit-identical to
// attention_forward and attention_backward. Not: sequences of different lengths (ragged.h).
#pragma once

#include "support/cases/ragged.h"

namespace qkv::test {

/// [B, H, T, D] that lies token by token, as [B * T, H, D].
template <class T>
View<T, 3> tokens_of(const View<T, 4>& view) {
  return {view.data(), {view.size(0) * view.size(2), view.size(1), view.size(3)}, {view.stride(2), view.stride(1), 1}};
}

/// [B, H, T] and back: numbers of tokens [B * T, H].
template <class T>
Tensor<T> transposed_rows(const Tensor<T>& rows, Index batch, Index heads, Index length, bool to_tokens) {
  Tensor<T> made(to_tokens ? std::vector<Index>{batch * length, heads} : std::vector<Index>{batch, heads, length});
  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < heads; ++h) {
      for (Index t = 0; t < length; ++t) {
        const Index by_head = (b * heads + h) * length + t, by_token = (b * length + t) * heads + h;
        made.data()[to_tokens ? by_token : by_head] = rows.data()[to_tokens ? by_head : by_token];
      }
    }
  }
  return made;
}

template <class T>
void check_case_as_sequences(AttentionCase each, Context& context) {
  using Sum = Accumulator<T>;
  each.layout = Layout::kBthd;
  each.cache = CacheKind::kNone;
  SCOPED_TRACE(each.name());
  const Problem<T> problem(each);
  Result<T> batched(problem), ragged(problem);
  batched.run_forward(problem, context);
  batched.run_backward(problem, context);
  std::vector<Index> q_offsets{0}, kv_offsets{0};
  for (Index b = 0; b < each.batch; ++b) {
    q_offsets.push_back(q_offsets.back() + each.q_len);
    kv_offsets.push_back(kv_offsets.back() + each.kv_len);
  }
  const RaggedOffsets offsets{q_offsets, kv_offsets};
  const auto q = tokens_of(problem.q()), k = tokens_of(problem.k()), v = tokens_of(problem.v());
  const auto& [dq, dk, dv] = ragged.gradients.views;
  Tensor<Sum> lse({each.batch * each.q_len, each.num_heads});
  const Tensor<Sum> dlse = transposed_rows(problem.dlse, each.batch, each.num_heads, each.q_len, true);
  attention_varlen_forward(q, k, v, {.out = tokens_of(ragged.out.view), .lse = lse}, offsets, problem.options, context);
  RaggedGradients<T> wanted{.dq = tokens_of(dq), .dk = tokens_of(dk), .dv = tokens_of(dv)};
  if (ragged.dbias.data() != nullptr) wanted.dbias = ragged.dbias;
  if (ragged.dsinks.data() != nullptr) wanted.dsinks = ragged.dsinks;
  if (ragged.dposition.data() != nullptr) wanted.dposition_bias = ragged.dposition;
  wanted.dlse = dlse;
  attention_varlen_backward(q, k, v, tokens_of(ragged.out.view), lse, tokens_of(problem.dout.view), wanted, offsets,
                            problem.options, context);
  EXPECT_TRUE(same_bits(copy_as<Sum>(ragged.out.view), copy_as<Sum>(batched.out.view))) << "out";
  EXPECT_TRUE(same_bits(transposed_rows(lse, each.batch, each.num_heads, each.q_len, false), batched.lse)) << "lse";
  for (std::size_t g = 0; g < 3; ++g) {
    EXPECT_TRUE(same_bits(copy_as<Sum>(ragged.gradients.views[g]), copy_as<Sum>(batched.gradients.views[g]))) << g;
  }
  EXPECT_TRUE(same_bits(ragged.dbias, batched.dbias)) << "dbias";
  EXPECT_TRUE(same_bits(ragged.dposition, batched.dposition)) << "dposition_bias";
  expect_near(ragged.dsinks, batched.dsinks, "dsinks");  // the same terms, but each sequence's sum is rounded
  EXPECT_TRUE(ragged.sentinels_intact());
}

}  // namespace qkv::test

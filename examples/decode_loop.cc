// A prompt read at once (prefill), then one token after the other (decode), on a cache: the rows of one causal call
// over all. Tokens are packed, [T, H, D], as projections leave them; one_sequence() shows them as [1, H, T, D] without
// a copy.
#include "example.h"
#include "qkv/qkv.h"

int main() {
  using qkv::Index, qkv::one_sequence, qkv::Tensor, qkv::View;
  const Index heads = 4, kv_heads = 2, width = 16, prompt = 20, length = 32;
  const Tensor<float> q = random_tensor({length, heads, width}, 1);
  const Tensor<float> k = random_tensor({length, kv_heads, width}, 2), v = random_tensor(k.sizes(), 3);
  Tensor<float> out(q.sizes()), whole(q.sizes());
  const qkv::AttentionOptions causal{.mask = qkv::Mask::causal(qkv::Align::kBottomRight)};

  qkv::KVCache cache({.num_kv_heads = kv_heads, .head_dim = width, .capacity = length});
  const auto step = [&](Index begin,
                        Index end) {  // tokens [begin, end): their keys and values first, then their queries
    const auto part = [&](View<const float, 3> x) { return one_sequence(x.sliced(0, begin, end)); };
    cache.append(part(k), part(v));
    const View<float, 4> rows = one_sequence(out.view<3>().sliced(0, begin, end));
    qkv::attention_forward(part(q), cache.key_value(), {.out = rows}, causal);
  };
  step(0, prompt);
  for (Index t = prompt; t < length; ++t) step(t, t + 1);
  std::printf("%d tokens at once, then %d one by one\n", static_cast<int>(prompt), static_cast<int>(length - prompt));

  const auto all = [](View<const float, 3> x) { return one_sequence(x); };
  qkv::attention_forward(all(q), all(k), all(v), {.out = one_sequence(whole.view<3>())}, {.mask = qkv::Mask::causal()});
  return verdict(largest_difference(out, whole) < 1e-6, "prefill and decode give the rows of one causal call");
}

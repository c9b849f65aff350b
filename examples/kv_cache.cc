// A KV cache: a prompt is read once, two continuations share its pages, and one call serves both.

#include "example.h"
#include "qkv/qkv.h"

int main() {
  using qkv::Index, qkv::Tensor;
  const Index heads = 4, kv_heads = 2, width = 16, prompt = 40;
  qkv::KVCache cache({.num_kv_heads = kv_heads,
      .head_dim = width,
      .storage = qkv::CacheStorage::kInt8,
      .layout = qkv::CacheLayout::kPaged,
      .max_sequences = 2,
      .page_size = 16,
      .pages = 8});
  const Tensor<float> k = random_tensor({1, kv_heads, prompt, width}, 1),
                      v = random_tensor(k.sizes(), 2);  // [B, Hkv, n, D]
  cache.append(k, v);
  const Index fork = cache.fork(0);  // shares all pages
  std::printf("prompt of %d tokens, forked: %d of 8 pages free, %zu bytes\n", static_cast<int>(prompt),
      static_cast<int>(cache.free_pages()), cache.bytes());
  const Tensor<float> k_new = random_tensor({2, kv_heads, 1, width}, 3), v_new = random_tensor(k_new.sizes(), 4);
  cache.append(k_new, v_new);  // one more token for each: the shared last page is copied on write
  std::printf("a token more for both: %d free, lengths %d and %d\n", static_cast<int>(cache.free_pages()),
      static_cast<int>(cache.length(0)), static_cast<int>(cache.length(fork)));

  const Tensor<float> q = random_tensor({2, heads, 1, width}, 5);  // [B, H, Tq, D]
  Tensor<float> out(q.sizes()), lse({2, heads, 1}), exact({1, heads, 1, width});
  const qkv::AttentionOptions last{.mask = qkv::Mask::causal(qkv::Align::kBottomRight)};
  qkv::attention_forward(q, cache.key_value(), {.out = out, .lse = lse}, last);

  Tensor<float> all_k({1, kv_heads, prompt + 1, width}),
      all_v(all_k.sizes());  // keys and values of sequence 0 as floats
  cache.read(0, 0, {all_k.data(), {kv_heads, prompt + 1, width}}, {all_v.data(), {kv_heads, prompt + 1, width}});
  qkv::attention_forward(q.view<4>().sliced(0, 0, 1), all_k, all_v, {.out = exact});
  double worst = 0;
  for (Index n = 0; n < exact.count(); ++n)
    worst = std::max(worst, std::abs(double{exact.data()[n]} - double{out.data()[n]}));
  return verdict(worst < 1e-5 && cache.length(fork) == prompt + 1, "a cache and plain views agree");
}

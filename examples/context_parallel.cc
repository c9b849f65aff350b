// A sequence cut over three ranks, here threads of one process: each has its own rows, and the result has the bits of
// one machine.
#include "qkv/dist/context_parallel.h"

#include <array>

#include "example.h"
#include "qkv/dist/in_process.h"

namespace dist = qkv::dist;

int main() {
  constexpr qkv::Index length = 200, width = 32;
  constexpr int ranks = 3;
  const qkv::Tensor<float> q = random_tensor({1, 4, length, width}, 1), k = random_tensor({1, 2, length, width}, 2),
                           v = random_tensor({1, 2, length, width}, 3);  // [B, H, T, D]: 4 query heads share 2
  const qkv::AttentionOptions options{.mask = qkv::Mask::causal()};
  qkv::Tensor<float> whole(q.sizes());
  qkv::attention_forward(q, k, v, {.out = whole}, options);

  std::array<bool, ranks> same{};
  dist::run_in_process(ranks, [&](dist::Transport& transport) {  // with MPI: every process does this
    dist::ContextParallel cp(transport, {.layout = dist::Layout::kContiguous, .method = dist::Method::kAllGather});
    const std::vector<dist::Rows> rows = cp.rows(length);  // contiguous: one piece or none
    const dist::Rows own = rows.empty() ? dist::Rows{} : rows[0];
    const auto local = [&](const qkv::Tensor<float>& x) { return x.view<4>().sliced(2, own.begin, own.end); };
    qkv::Tensor<float> out({1, 4, own.count(), width});
    cp.forward(local(q), local(k), local(v), out, {}, options);
    bool equal = true;
    for (qkv::Index h = 0; h < 4; ++h) {
      const float* expected = &whole.view<4>()(0, h, own.begin, 0);
      equal = equal && std::equal(expected, expected + own.count() * width, &out.view<4>()(0, h, 0, 0));
    }
    same[static_cast<std::size_t>(transport.rank())] = equal;
  });
  return verdict(std::ranges::all_of(same, [](bool x) { return x; }),
      "the rows of all ranks are those of one machine, bit for bit");
}

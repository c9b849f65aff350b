// The rows of sparse attention: a window, and a map of blocks. Each is held against the textbook with the same pairs.
#include <algorithm>
#include <cstdlib>

#include "core/threads/context_impl.h"
#include "forms/rows.h"
#include "qkv/attention.h"
#include "qkv/block_map.h"

namespace qkv::cli {
namespace {

void add(FormsReport& report, const AloneInput& input, Context& context, std::string name, const Mask& mask,
         const reference::Keep& keep) {
  const Tensor<float> q = input.heads<float>(0), k = input.heads<float>(1), v = input.heads<float>(2);
  const auto forward_in = [&]<class N>(N) {
    reference::Options<N> options;
    options.keep = keep;
    const Tensor<N> nq = input.heads<N>(0), nk = input.heads<N>(1), nv = input.heads<N>(2);
    return reference::attention_forward<N>(nq, nk, nv, options);
  };
  auto exact = forward_in(0.0);
  Tensor<double> positive[3];
  for (int part = 0; part < 3; ++part) {
    positive[part] = input.heads<double>(part);
    for (double& x : positive[part].span()) x = std::abs(x);
  }
  const Tensor<double> a = attention_magnitude(exact.weights, positive[0], positive[1], positive[2]);
  const Truth<double> truth(std::move(exact.out), forward_in(0.0F).out, a);

  const AttentionOptions options{.mask = mask};
  Tensor<float> out(q.sizes());
  const auto forward = [&] { attention_forward(q, k, v, {.out = out}, options, context); };
  forward();
  const AttentionPlan plan = attention_plan(q, k, v, options, context);
  Form row{.name = std::move(name), .family = "sparse", .type = "f32"};
  row.attention_flops = plan.forward_flops;
  row.score_bytes =
      static_cast<double>(plan.forward_scratch_bytes) * static_cast<double>(std::min<Index>(plan.threads, plan.work_items));
  row.longest = longest_length(report.memory, 0, 16 * static_cast<double>(input.sizes.batch) * input.embed(), row.score_bytes);
  measure_row(row, out, truth, &input, forward);
  report.forms.push_back(std::move(row));
}

}  // namespace

void add_sparse_forms(FormsReport& report, const AloneInput& input, Context& context) {
  const Index length = input.sizes.length, reach = std::max<Index>(1, length / 16);
  add(report, input, context, "sparse window", Mask::window(reach, reach),
      [reach](Index, Index, Index i, Index j) { return std::abs(i - j) <= reach; });
  const Index block = std::clamp<Index>(length / 8, 1, 64);
  const BlockMap map = block_map(LongformerBlocks{.length = length, .block = block, .window_blocks = 1, .global_blocks = {0}});
  add(report, input, context, "sparse blocks", Mask::blocks(map),
      [block](Index, Index, Index i, Index j) { return std::abs(i / block - j / block) <= 1 || i < block || j < block; });
}

}  // namespace qkv::cli

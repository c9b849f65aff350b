#include "qkv/nn/embedding.h"

#include <algorithm>

#include "core/check.h"
#include "nn/check_rows.h"
#include "nn/parameters.h"
#include "nn/row_blocks.h"

namespace qkv {
inline namespace v0 {
namespace nn {
namespace {

void check_call(std::string_view function, std::span<const std::int64_t> ids, Index num_embeddings, View<const float, 2> rows,
                Index embed_dim) {
  check<ShapeError>(rows.size(0) == static_cast<Index>(ids.size()) && rows.size(1) == embed_dim, function,
                    "the rows must be [number of ids, embed_dim]: got ", rows, " for ", ids.size(), " ids, embed_dim ",
                    embed_dim);
  check_rows(function, "the rows", rows);
  for (const std::int64_t id : ids) {
    check<OptionError>(id >= 0 && id < num_embeddings, function, "ids must be in 0..", num_embeddings - 1, ": got ", id);
  }
}

}  // namespace

Embedding::Embedding(const EmbeddingOptions& options) {
  check<ShapeError>(options.num_embeddings > 0 && options.embed_dim > 0, "Embedding",
                    "num_embeddings and embed_dim must be at least 1: got ", options.num_embeddings, " and ",
                    options.embed_dim);
  weight_ = Tensor<float>({options.num_embeddings, options.embed_dim});
  gradient_ = Tensor<float>(weight_.sizes());
  fill_normal(weight_, options.seed, 0);
}

void Embedding::forward(std::span<const std::int64_t> ids, View<float, 2> y, bool accumulate, Context& context) const {
  check_call("Embedding::forward", ids, num_embeddings(), y, embed_dim());
  const Index width = embed_dim();
  for_row_blocks(context, {y.size(0), width}, [&](Index begin, Index end, Index) {
    for (Index m = begin; m < end; ++m) {
      const float* from = weight_.data() + ids[static_cast<std::size_t>(m)] * width;
      float* to = y.data() + m * y.stride(0);
      if (accumulate) {
        for (Index e = 0; e < width; ++e) to[e] += from[e];
      } else {
        std::copy_n(from, width, to);
      }
    }
  });
}

void Embedding::backward(std::span<const std::int64_t> ids, View<const float, 2> dy, Context& context) {
  check_call("Embedding::backward", ids, num_embeddings(), dy, embed_dim());
  constexpr Index kColumnsPerItem = 16;  // one cache line: items share none, and each adds its rows in the order of m
  const Index width = embed_dim();
  const double flops = kElementFlops * static_cast<double>(dy.size(0)) * static_cast<double>(width);
  parallel_for_flops(context, (width + kColumnsPerItem - 1) / kColumnsPerItem, flops, [&](Index item, int) {
    const Index begin = item * kColumnsPerItem;
    const Index count = std::min(kColumnsPerItem, width - begin);
    for (Index m = 0; m < dy.size(0); ++m) {
      const float* from = dy.data() + m * dy.stride(0) + begin;
      float* to = gradient_.data() + ids[static_cast<std::size_t>(m)] * width + begin;
      for (Index e = 0; e < count; ++e) to[e] += from[e];
    }
  });
}

std::vector<Parameter> Embedding::parameters() {
  std::vector<Parameter> list;
  list.push_back(parameter("weight", weight_, gradient_));
  return list;
}

std::string_view Embedding::type_name() const { return "Embedding"; }

}  // namespace nn
}  // namespace v0
}  // namespace qkv

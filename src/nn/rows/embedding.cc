#include "qkv/nn/embedding.h"

#include <algorithm>

#include "core/check.h"
#include "dispatch/kernels.h"
#include "nn/parameters/parameters.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/gather_sum.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {
namespace {

void check_call(std::string_view function, std::span<const std::int64_t> ids, View<const float, 2> table,
    View<const float, 2> rows) {
  check<ShapeError>(rows.size(0) == static_cast<Index>(ids.size()) && rows.size(1) == table.size(1), function,
      "the rows must be [number of ids, embed_dim]: got ", rows, " for ", ids.size(), " ids, embed_dim ",
      table.size(1));
  check_rows(function, "the rows", rows, "the table", table);
  for (const std::int64_t id : ids) {
    check<OptionError>(id >= 0 && id < table.size(0), function, "ids must be in 0..", table.size(0) - 1, ": got ", id);
  }
}

/// y = table[ids], plus other[other_ids] where there is another table, plus y with `accumulate`.
void gather(std::string_view function, View<const float, 2> table, std::span<const std::int64_t> ids,
    View<const float, 2> other, std::span<const std::int64_t> other_ids, View<float, 2> y, bool accumulate,
    Context& context) {
  check_call(function, ids, table, y);
  if (!other.is_null()) check_call(function, other_ids, other, y);
  const LayerKernels& kernels = kernel_tables(context).attention.layers;
  for_row_blocks(context, {y.size(0), y.size(1)}, [&](Index begin, Index end, Index) {
    kernels.gather({table.data(), table.stride(0), ids.data() + begin, y.data() + begin * y.stride(0), y.stride(0),
        end - begin, y.size(1), accumulate, other.data(), other.stride(0),
        other.is_null() ? nullptr : other_ids.data() + begin});
  });
}

void scatter(std::string_view function, View<const float, 2> dy, std::span<const std::int64_t> ids,
    View<float, 2> dtable, Context& context) {
  check_call(function, ids, dtable, dy);
  const LayerKernels& kernels = kernel_tables(context).attention.layers;
  const Index width = dy.size(1);
  const double flops = kElementFlops * static_cast<double>(dy.size(0)) * static_cast<double>(width);
  constexpr Index kLine = 64;  // each item's columns are whole cache lines: no two items share one
  const Index columns = flops < context.impl().region_flops || context.threads() == 1 ? width : kLine;
  if (columns == 0) return;
  parallel_for_flops(context, (width + columns - 1) / columns, flops, [&](Index item, int) {
    const Index begin = item * columns;
    kernels.scatter({dy.data() + begin, dy.stride(0), ids.data(), dtable.data() + begin, dtable.stride(0), dy.size(0),
        std::min(columns, width - begin)});
  });
}

}  // namespace

void gather_sum(View<const float, 2> table, std::span<const std::int64_t> ids, View<const float, 2> other,
    std::span<const std::int64_t> other_ids, View<float, 2> y, Context& context) {
  gather("gather_sum", table, ids, other, other_ids, y, false, context);
}

void scatter_rows(View<const float, 2> dy, std::span<const std::int64_t> ids, View<float, 2> dtable, Context& context) {
  scatter("scatter_rows", dy, ids, dtable, context);
}

Embedding::Embedding(const EmbeddingOptions& options) : Module("Embedding") {
  check<ShapeError>(options.num_embeddings > 0 && options.embed_dim > 0, "Embedding",
      "num_embeddings and embed_dim must be at least 1: got ", options.num_embeddings, " and ", options.embed_dim);
  weight_ = Tensor<float>({options.num_embeddings, options.embed_dim});
  gradient_ = Tensor<float>(weight_.sizes());
  fill_normal(weight_, options.seed, 0);
}

void Embedding::forward(std::span<const std::int64_t> ids, View<float, 2> y, bool accumulate, Context& context) const {
  gather("Embedding::forward", weight_, ids, {}, {}, y, accumulate, context);
}

void Embedding::backward(std::span<const std::int64_t> ids, View<const float, 2> dy, Context& context) {
  scatter("Embedding::backward", dy, ids, gradient_, context);
}

std::vector<Parameter> Embedding::parameters() {
  std::vector<Parameter> list;
  list.push_back(parameter("weight", weight_, gradient_));
  return list;
}

}  // namespace qkv::inline v0::nn

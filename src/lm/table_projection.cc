#include "lm/table_projection.h"

#include <algorithm>

#include "nn/attention/projected_halves.h"
#include "nn/rows/gather_sum.h"

namespace qkv::inline v0::lm {
namespace {

/// [rows, E] as one sequence [1, rows, E].
template <class T> View<T, 3> as_sequence(View<T, 2> rows) {
  return {
      rows.data(), {1, rows.size(0), rows.size(1)}, {rows.size(0) * rows.stride(0), rows.stride(0), rows.stride(1)}};
}

View<const float, 2> first_rows(const nn::Embedding& embedding, Index rows) {
  return embedding.weight().view<2>().sliced(0, 0, rows);
}

/// The first rows of an embedding's gradient.
View<float, 2> gradient_rows(nn::Embedding& embedding, std::span<float> gradient, Index rows) {
  return {gradient.data(), {rows, embedding.embed_dim()}};
}

}  // namespace

void TableProjection::forward(const AttentionLM::Impl& model, std::span<const Index> ids,
    std::span<const Index> positions, Index length, Tensor<float>& projected, Context& context) {
  const nn::AttentionLayer& layer = model.blocks.front().attention;
  const Index columns = projected.size(2);
  nn::resize(tok, {model.config.vocab_size, columns});
  nn::resize(pos, {length, columns});
  nn::ProjectedHalves::project(
      layer, as_sequence(first_rows(model.tok, tok.size(0))), as_sequence(tok.view<2>()), context);
  nn::ProjectedHalves::project(layer, as_sequence(first_rows(*model.pos, length)), as_sequence(pos.view<2>()), context);
  nn::gather_sum(tok, ids, pos, positions, nn::as_rows(projected), context);
}

void TableProjection::backward(AttentionLM::Impl& model, std::span<const Index> ids, std::span<const Index> positions,
    View<const float, 3> dprojected, Context& context) {
  nn::AttentionLayer& layer = model.blocks.front().attention;
  const Index columns = dprojected.size(2);
  const View<const float, 2> rows(dprojected.data(), {std::ssize(ids), columns}, {dprojected.stride(1), 1});
  nn::resize(dtok, tok.sizes());
  nn::resize(dpos, pos.sizes());
  for (Tensor<float>* sums : {&dtok, &dpos}) std::ranges::fill(sums->span(), 0.0F);
  nn::scatter_rows(rows, ids, dtok, context);
  nn::scatter_rows(rows, positions, dpos, context);
  const auto back = [&](nn::Embedding& embedding, std::span<float> gradient, const Tensor<float>& dtable) {
    const Index count = dtable.size(0);
    nn::ProjectedHalves::backward_projection(layer, as_sequence(first_rows(embedding, count)),
        as_sequence(dtable.view<2>()), as_sequence(gradient_rows(embedding, gradient, count)), context);
  };
  back(model.tok, model.parameters[0].gradient, dtok);
  back(*model.pos, model.parameters[1].gradient, dpos);
}

}  // namespace qkv::inline v0::lm

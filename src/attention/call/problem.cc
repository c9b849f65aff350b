// The checks at the public boundary, once for all calls; kernels check nothing.
#include "attention/call/problem.h"

#include <cmath>

#include "attention/mask/key_lists.h"
#include "attention/scores/score_mod.h"
#include "core/check.h"
#include "core/philox.h"

namespace qkv::inline v0 {
namespace {

template <class T>
const View<const Accumulator<T>, 4>& bias_of(const char* function, const BiasView& bias) {
  const bool other_type = std::is_same_v<Accumulator<T>, float> ? !bias.f64.is_null() : !bias.f32.is_null();
  check<OptionError>(!other_type, function, "bias must have the element type of q, or float where that has 16 bits");
  if constexpr (std::is_same_v<Accumulator<T>, float>) {
    return bias.f32;
  } else {
    return bias.f64;
  }
}

template <class T>
View<const Accumulator<T>, 1> sinks_of(const char* function, const SinkView& sinks, Index num_heads) {
  const bool other_type = std::is_same_v<Accumulator<T>, float> ? !sinks.f64.is_null() : !sinks.f32.is_null();
  check<OptionError>(!other_type, function, "sinks must have the element type of q, or float where that has 16 bits");
  View<const Accumulator<T>, 1> logits;
  if constexpr (std::is_same_v<Accumulator<T>, float>) {
    logits = sinks.f32;
  } else {
    logits = sinks.f64;
  }
  check<ShapeError>(logits.is_null() || logits.size(0) == num_heads, function, "sinks must be [H]: got ", logits, " for H ",
                    num_heads);
  return logits;
}

/// Where a call of q_len rows and num_heads heads lies in its problem. Throws ShapeError, and UnsupportedError for calls that
/// cannot be placed.
Placement checked_place(const char* function, const Placement& place, Index q_len, Index num_heads, bool mask_later) {
  Placement p = place;
  if (place.queries < 0 && place.first_query == 0) p.queries = q_len;
  if (place.heads < 0 && place.first_head == 0) p.heads = num_heads;
  check<ShapeError>(p.first_query >= 0 && p.first_query <= p.queries - q_len, function,
                    "place must hold the rows of q: first_query + Tq must be at most queries: got first_query ",
                    place.first_query, ", Tq ", q_len, ", queries ", place.queries);
  check<ShapeError>(p.first_head >= 0 && p.first_head <= p.heads - num_heads, function,
                    "place must hold the heads of q: first_head + H must be at most heads: got first_head ", place.first_head,
                    ", H ", num_heads, ", heads ", place.heads);
  check<UnsupportedError>(!mask_later || (p.queries == q_len && p.heads == num_heads), function,
                          "place is not supported for ragged batches and caches: compute each sequence on dense tensors");
  return p;
}

}  // namespace

template <class T>
void check_bias_sizes(const char* function, const char* sizes, const View<const T, 4>& bias,
                      const std::array<Index, 4>& wanted) {
  if (bias.is_null()) return;
  for (int axis = 0; axis < 4; ++axis) {
    check<ShapeError>(bias.size(axis) == wanted[static_cast<std::size_t>(axis)] || bias.size(axis) == 1, function,
                      "bias must have sizes ", sizes, ": got ", bias, " for ", [&] { return shape_text(wanted.data(), 4); });
  }
}

template <class T>
ScoreParams<Accumulator<T>> Problem<T>::scores(Index b, Index h) const {
  const Sum* by_distance = position.zero == nullptr ? nullptr
                                                    : position.zero + (first_head + h) * position.head_stride -
                                                          position_offset(*position_bias, queries, length(b));
  TileBias<Sum> tile_bias{by_distance, -1, 1};
  if (!bias.is_null()) {
    tile_bias = {bias.data() + b * repeat_stride(bias, 0) + (first_head + h) * repeat_stride(bias, 1), repeat_stride(bias, 2),
                 repeat_stride(bias, 3)};
  }
  TileDropout tile_dropout{};
  if (dropout_threshold != 0) {
    const PhiloxKey key = philox_key(dropout.seed);
    tile_dropout = {dropout_threshold, key[0], key[1], sequence_head(b, h)};
  }
  return {.kv_len = length(b),
          .head_dim = head_dim,
          .scale = scale,
          .softcap = softcap,
          .mask = tile_mask(b, h),
          .bias = tile_bias,
          .dropout = tile_dropout,
          .key_tile = key_tile,
          .position = bias.is_null() ? nullptr : by_distance,
          .mod = score_mod == nullptr ? TileScoreMod<Sum>{}
                                      : TileScoreMod<Sum>{score_mod_tile<Sum>, score_mod, b, first_head + h},
          .sink = sinks.is_null() ? nullptr : &sinks(first_head + h),
          .sink_stride = sinks.stride(0),
          .invariant = invariant};
}

template <class T>
HeadKeys Problem<T>::keys(Index b, Index g) const {
  if (cache != nullptr) return cached_head(*cache, b, g);
  const auto matrix = [&](const View<const T, 4>& view) {
    return KeyMatrix{view.data() + b * view.stride(0) + g * view.stride(1), nullptr, 0, view.stride(2), 0};
  };
  return {stored_as<T>(), matrix(k), v.is_null() ? KeyMatrix{} : matrix(v), nullptr, 1, kv_len, {}, {0, kv_len}};
}

template <class T>
void Problem<T>::prepare(Context& context, CallMemory& memory) {
  memory.position = position.spread(*position_bias, queries, kv_len, context);
  mask.extent.summaries = memory.dense.make(mask.node, context);
}

template <class T>
Problem<T> make_problem(const char* function, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                        const AttentionOptions& options, Context& context, Use use, CallMemory* memory) {
  const bool mask_later = use == Use::kMaskLater || use == Use::kWeightsMaskLater;
  const bool unread = v.data() == nullptr && (use == Use::kWeights || use == Use::kWeightsMaskLater);
  check_qkv(function, q, k, v, unread);
  Problem<T> p{};
  p.batch = q.size(0);
  p.num_heads = q.size(1);
  p.num_kv_heads = k.size(1);
  p.q_len = q.size(2);
  p.kv_len = k.size(2);
  const Placement place = checked_place(function, options.place, p.q_len, p.num_heads, mask_later);
  p.first_query = place.first_query;
  p.queries = place.queries;
  p.first_head = place.first_head;
  p.heads = place.heads;
  p.head_dim = q.size(3);
  p.v_head_dim = unread ? 1 : v.size(3);
  p.q = q;
  p.k = k;
  p.v = v;
  p.bias = bias_of<T>(function, options.bias);
  if (!mask_later) {
    p.mask = {options.mask.node(), {p.batch, p.heads, p.queries, p.kv_len}};
    check_mask(options.mask, p.mask.extent, function);
    if (const KeyLists* lists = key_lists_of(p.mask.node); lists != nullptr) {
      const Index block = lists->block_heads(*p.mask.node, p.group_size(), p.heads);
      check<ShapeError>(p.first_head % block == 0, function,
                        "place must not divide heads that share a list of keys and a key/value head: first_head must be a "
                        "multiple of ",
                        block, ": got ", p.first_head);
    }
    check_bias_sizes(function, "[B|1, H|1, Tq|1, Tk|1]", p.bias, {p.batch, p.heads, p.queries, p.kv_len});
  }
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  p.scale = static_cast<Accumulator<T>>(scale);
  p.softcap = static_cast<Accumulator<T>>(options.softcap);
  check<OptionError>(std::isfinite(p.scale), function, "scale must be finite in the type of sums: got ", scale);
  check<OptionError>(std::isfinite(p.softcap) && options.softcap >= 0, function,
                     "softcap must be 0 (off) or positive and finite in the type of sums: got ", options.softcap);
  check<OptionError>(options.softcap == 0 || std::isfinite(p.scale / p.softcap), function,
                     "scale / softcap must be finite in the type of sums: got ", scale, " / ", options.softcap);
  p.dropout = options.dropout;
  const std::uint32_t threshold = dropout_threshold(options.dropout.p, function);
  p.dropout_threshold = options.dropout.training ? threshold : 0;
  p.empty_row = options.empty_row;
  p.invariant = options.bits == Bits::kInvariant || context.bits() == Bits::kInvariant;
  const KernelTables& tables = kernel_tables(p.isa(context));
  p.kernels = &for_element<Accumulator<T>>(tables.attention);
  p.decode = &for_element<Accumulator<T>>(tables.cache);
  p.key_tile = p.kernels->key_tile(p.head_dim, p.v_head_dim);
  p.query_tile = p.kernels->query_tile(stored_as<T>(), p.head_dim, p.v_head_dim);
  p.backward_keys = p.kernels->backward_keys(p.head_dim, p.v_head_dim);
  p.sinks = sinks_of<T>(function, options.sinks, p.heads);
  p.score_mod = options.score_mod.get();
  p.position_bias = &options.position_bias;
  if (memory != nullptr) {
    check_position_bias<Accumulator<T>>(options.position_bias, p.heads, p.queries, p.kv_len, function);
    p.prepare(context, *memory);
  }
  return p;
}

template <class T>
Problem<T> make_cached_problem(const char* function, const View<const T, 4>& q, const KeyValue& kv,
                               const AttentionOptions& options, Context& context, CallMemory& memory) {
  check<OptionError>(std::is_same_v<T, double> == (kv.storage() == CacheStorage::kF64), function,
                     "queries of double need a cache of f64, and no other queries may use one: got a cache of ",
                     storage_name(kv.storage()));
  // What the checks need of k and v.
  const auto sizes = [&](Index width) {
    return View<const T, 4>(nullptr, {kv.batch(), kv.num_kv_heads(), kv.max_length(), width}, {0, 0, 0, 1});
  };
  Problem<T> p =
      make_problem(function, q, sizes(kv.head_dim()), sizes(kv.v_head_dim()), options, context, Use::kMaskLater, &memory);
  p.cache = &kv;
  p.query_tile = p.kernels->copied_query_tile(p.head_dim, p.v_head_dim);
  p.mask = {options.mask.node(), {p.batch, p.num_heads, p.q_len, p.kv_len}, &memory.shown.emplace(kv)};
  check_mask(options.mask, p.mask.extent, function);
  if (const KeyLists* lists = key_lists_of(options.mask.node()); lists != nullptr) {
    for (Index b = 0; b < p.batch; ++b) lists->check_length(b, kv.length(b), function);
  }
  p.mask.extent.summaries = memory.dense.make(p.mask.node, context);
  check_bias_sizes(function, "[B|1, H|1, Tq|1, Tk|1]", p.bias, {p.batch, p.num_heads, p.q_len, p.kv_len});
  check_cached_call(function, kv, p.q_len, options);
  check_ring_mask(function, kv, p.mask);
  return p;
}

ScoreMod::~ScoreMod() = default;  // the one function of it that the user does not write

#define QKV_INSTANTIATE(T)                                                                                                 \
  template struct Problem<T>;                                                                                              \
  template Problem<T> make_problem(const char*, const View<const T, 4>&, const View<const T, 4>&, const View<const T, 4>&, \
                                   const AttentionOptions&, Context&, Use, CallMemory*);                                   \
  template Problem<T> make_cached_problem(const char*, const View<const T, 4>&, const KeyValue&, const AttentionOptions&,  \
                                          Context&, CallMemory&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE
template void check_bias_sizes(const char*, const char*, const View<const float, 4>&, const std::array<Index, 4>&);
template void check_bias_sizes(const char*, const char*, const View<const double, 4>&, const std::array<Index, 4>&);

}  // namespace qkv::inline v0

// The checks at the public boundary, once for all calls; kernels check nothing.
#include "attention/call/problem.h"

#include <cmath>
#include <numbers>

#include "attention/mask/key_lists.h"
#include "attention/scores/score_mod.h"
#include "core/philox.h"

namespace qkv::inline v0 {
namespace {

/// Of the two views that an option has, the one of sums. Throws OptionError where the other is given.
template <class Option>
AnyView of_sums(const char* function, const char* name, const Option& option, StoredType elements) {
  const bool wide = elements == StoredType::kF64;
  check<OptionError>(wide ? option.f32.is_null() : option.f64.is_null(), function, name,
      " must have the element type of q, or float where that has 16 bits");
  return wide ? AnyView(option.f64) : AnyView(option.f32);
}

/// The part of its problem that a call of q_len rows and num_heads heads is. Throws ShapeError, and UnsupportedError
/// for calls that cannot be parts.
void set_part(const char* function, const detail::Part& part, bool dense, Problem& p) {
  p.first_query = part.first_query;
  p.first_head = part.first_head;
  p.queries = part.queries < 0 && part.first_query == 0 ? p.q_len : part.queries;
  p.heads = part.heads < 0 && part.first_head == 0 ? p.num_heads : part.heads;
  check<ShapeError>(p.first_query >= 0 && p.first_query <= p.queries - p.q_len, function,
      "part must hold the rows of q: first_query + Tq must be at most queries: got first_query ", part.first_query,
      ", Tq ", p.q_len, ", queries ", part.queries);
  check<ShapeError>(p.first_head >= 0 && p.first_head <= p.heads - p.num_heads, function,
      "part must hold the heads of q: first_head + H must be at most heads: got first_head ", part.first_head, ", H ",
      p.num_heads, ", heads ", part.heads);
  check<UnsupportedError>(dense || !p.is_part(), function,
      "part is not supported for ragged batches and caches: compute each sequence on dense tensors");
}

void set_scale(const char* function, const AttentionOptions& options, Problem& p) {
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  const bool finite = with_sums(p.q.type, [&](auto sum) {
    using Sum = decltype(sum);
    const auto of_scale = static_cast<Sum>(scale), of_cap = static_cast<Sum>(options.softcap);
    p.scale = static_cast<double>(of_scale);
    p.softcap = static_cast<double>(of_cap);
    // Kernels multiply by the cap times log2(e).
    return options.softcap == 0 ||
           (std::isfinite(of_scale / of_cap) && std::isfinite(of_cap * std::numbers::log2e_v<Sum>));
  });
  check<OptionError>(std::isfinite(p.scale), function, "scale must be finite in the type of sums: got ", scale);
  check<OptionError>(std::isfinite(p.softcap) && options.softcap >= 0, function,
      "softcap must be 0 (off) or positive and finite in the type of sums: got ", options.softcap);
  check<OptionError>(finite, function,
      "scale / softcap and softcap log2(e) must be finite in the type of sums: got scale ", scale, ", softcap ",
      options.softcap);
}

void check_mask_and_bias(const char* function, const AttentionOptions& options, const Problem& p) {
  check_mask(options.mask, p.mask.extent, function);
  check_bias_sizes(function, "[B|1, H|1, Tq|1, Tk|1]", p.bias, {p.batch, p.heads, p.queries, p.kv_len});
}

}  // namespace

/// Bytes of a strip of rows do not overflow.
constexpr Index kMostWidth = Index{1} << 40;

void check_qkv(const char* function, const AnyView& q, const AnyView& k, const AnyView& v, bool v_unused) {
  for (const AnyView* x : {&q, &k, &v}) {
    check<ShapeError>(*std::min_element(x->sizes.begin(), x->sizes.end()) >= 0, function,
        "sizes must not be negative: got q ", q, ", k ", k, ", v ", v);
  }
  check_reach(function, "q", q);
  check_reach(function, "k", k);
  check_reach(function, "v", v);
  check<ShapeError>(q.size(3) >= 1 && q.size(3) < kMostWidth && v.size(3) < kMostWidth, function,
      "head_dim must be at least 1 and below 2^40: got q ", q, ", v ", v);
  check<ShapeError>(k.size(0) == q.size(0), function, "batch of k must equal batch of q: got q ", q, ", k ", k);
  check<ShapeError>(k.size(3) == q.size(3), function, "head_dim of k must equal head_dim of q: got q ", q, ", k ", k);
  check<ShapeError>(q.size(1) == 0 || (k.size(1) > 0 && q.size(1) % k.size(1) == 0), function,
      "heads of k must divide heads of q: got q ", q, ", k ", k);
  check_last_stride(function, "q", q);
  check_last_stride(function, "k", k);
  if (v_unused) return;
  check<ShapeError>(v.size(3) >= 1, function, "v_head_dim must be at least 1: got v ", v);
  check<ShapeError>(v.size(0) == k.size(0) && v.size(1) == k.size(1) && v.size(2) == k.size(2), function,
      "batch, heads and length of v must equal those of k: got k ", k, ", v ", v);
  check_last_stride(function, "v", v);
}

void check_bias_sizes(
    const char* function, const char* sizes, const AnyView& bias, const std::array<Index, 4>& wanted) {
  if (bias.is_null()) return;
  for (int axis = 0; axis < 4; ++axis) {
    check<ShapeError>(bias.size(axis) == wanted[static_cast<std::size_t>(axis)] || bias.size(axis) == 1, function,
        "bias must have sizes ", sizes, ": got ", bias, " for ", [&] { return shape_text(wanted.data(), 4); });
  }
}

void check_position_bias(const char* function, const Problem& p, Index q_len, Index kv_len) {
  const PositionBias& bias = *p.position_bias;
  if (bias.is_none()) return;
  check_given(function, {"position_bias", p.position_table()});
  const bool wide = p.q.type == StoredType::kF64;
  check<OptionError>((wide ? bias.table().f32.is_null() : bias.table().f64.is_null()), function,
      "the table of position_bias must have the element type of q, or float where that has 16 bits");
  check<ShapeError>(bias.heads() == p.heads, function, "position_bias must have as many heads as q: got ", bias.heads(),
      " for ", p.heads);
  check<OptionError>(bias.align() != Align::kSquare || q_len == kv_len, function,
      "position_bias needs Align::kBottomRight (the last query is at the last key) or Align::kTopLeft (the first at "
      "the first) when Tq differs from Tk: got Tq ",
      q_len, ", Tk ", kv_len);
}

std::size_t Problem::backward_scratch_bytes() const {
  return with_sums(q.type,
      [&](auto sum) { return kernels<decltype(sum)>().backward_scratch_bytes(head_dim, v_head_dim, copies()); });
}

std::size_t Problem::forward_scratch_bytes(Index queries_of_tile, bool copied) const {
  return with_sums(q.type, [&](auto sum) {
    return kernels<decltype(sum)>().forward_scratch_bytes(head_dim, v_head_dim, queries_of_tile, copied);
  });
}

template <class Sum> ScoreParams<Sum> Problem::scores(Index b, Index h) const {
  const Sum* by_distance = position.zero == nullptr
                               ? nullptr
                               : static_cast<const Sum*>(position.zero) + (first_head + h) * position.head_stride -
                                     position_offset(*position_bias, queries, length(b));
  TileBias<Sum> tile_bias{by_distance, -1, 1};
  if (!bias.is_null()) {
    const Index first = b * repeat_stride(bias, 0) + (first_head + h) * repeat_stride(bias, 1);
    tile_bias = {bias.as<Sum>(0, 0) + first, repeat_stride(bias, 2), repeat_stride(bias, 3)};
  }
  TileDropout tile_dropout{};
  if (dropout_threshold != 0) {
    const PhiloxKey key = philox_key(dropout.seed);
    tile_dropout = {dropout_threshold, key[0], key[1], sequence_head(b, h)};
  }
  return {.kv_len = length(b),
      .head_dim = head_dim,
      .scale = static_cast<Sum>(scale),
      .softcap = static_cast<Sum>(softcap),
      .mask = tile_mask(b, h),
      .bias = tile_bias,
      .dropout = tile_dropout,
      .key_tile = key_tile,
      .position = bias.is_null() ? nullptr : by_distance,
      .mod = score_mod == nullptr ? TileScoreMod<Sum>{}
                                  : TileScoreMod<Sum>{score_mod_tile<Sum>, score_mod, b, first_head + h},
      .sink = sinks.is_null() ? nullptr : sinks.as<Sum>(first_head + h, 0),
      .sink_stride = sinks.stride(0),
      .invariant = invariant};
}
template ScoreParams<float> Problem::scores(Index, Index) const;
template ScoreParams<double> Problem::scores(Index, Index) const;

AnyView Problem::position_table() const {
  return q.type == StoredType::kF64 ? AnyView(position_bias->table().f64) : AnyView(position_bias->table().f32);
}

void Problem::prepare(Context& context, CallMemory& memory) {
  memory.position = position.spread(*position_bias, q.type, queries, kv_len, context);
  mask.extent.summaries = memory.dense.make(mask.node, context);
}

Problem make_problem(const char* function, const AnyView& q, const KeySource& keys, const AttentionOptions& options,
    const Context& context, bool reads_v, bool dense) {
  const AnyView &k = keys.k, &v = keys.v;
  const bool unread = v.data == nullptr && !reads_v && !keys.is_cache();
  check_qkv(function, q, k, v, unread);
  Problem p{};
  p.batch = q.size(0);
  p.num_heads = q.size(1);
  p.num_kv_heads = k.size(1);
  p.q_len = q.size(2);
  p.kv_len = k.size(2);
  p.head_dim = q.size(3);
  p.v_head_dim = unread ? 1 : v.size(3);
  p.q = q;
  p.keys = keys;
  set_part(function, options.part, dense, p);
  if (!options.bias.is_null()) p.bias = of_sums(function, "bias", options.bias, q.type);
  set_scale(function, options, p);
  p.dropout = options.dropout;
  const std::uint32_t threshold = dropout_threshold(options.dropout.p, function);
  p.dropout_threshold = options.dropout.training ? threshold : 0;
  p.empty_row = options.empty_row;
  p.invariant = is_invariant(context, options.bits);
  p.tables = &kernel_tables(context.isa(), p.invariant);
  with_sums(q.type, [&](auto sum) {
    const Kernels<decltype(sum)>& kernels = p.kernels<decltype(sum)>();
    p.strip = kernels.strip;
    p.key_tile = kernels.key_tile(p.head_dim, p.v_head_dim);
    p.sum_queries = kernels.sum_queries(q.type, p.head_dim, p.v_head_dim);
    const bool captures = options.capture.result != nullptr;
    p.query_tile = keys.is_cache() ? kernels.copied_query_tile(p.head_dim, p.v_head_dim, p.invariant && captures)
                                   : kernels.query_tile(q.type, p.head_dim, p.v_head_dim);
    if (captures && !keys.is_cache()) p.use_sum_tiles();
    p.backward_keys = kernels.backward_keys(p.head_dim, p.v_head_dim);
  });
  if (!options.sinks.is_null()) p.sinks = of_sums(function, "sinks", options.sinks, q.type);
  check<ShapeError>(p.sinks.is_null() || p.sinks.size(0) == p.heads, function, "sinks must be [H]: got ", p.sinks,
      " for H ", p.heads);
  p.score_mod = options.score_mod.get();
  p.position_bias = &options.position_bias;
  return p;
}

Problem make_dense_problem(const char* function, const AnyView& q, const KeySource& keys,
    const AttentionOptions& options, Context& context, CallMemory& memory, bool reads_v) {
  Problem p = make_problem(function, q, keys, options, context, reads_v, true);
  p.mask = {options.mask.node(), {p.batch, p.heads, p.queries, p.kv_len}};
  check_mask_and_bias(function, options, p);
  if (const KeyLists* lists = key_lists_of(p.mask.node); lists != nullptr) {
    const Index block = lists->block_heads(*p.mask.node, p.group_size(), p.heads);
    check<ShapeError>(p.first_head % block == 0, function,
        "part must not divide heads that share a list of keys and a key/value head: first_head must be a multiple of ",
        block, ": got ", p.first_head);
  }
  check_position_bias(function, p, p.queries, p.kv_len);
  p.prepare(context, memory);
  return p;
}

Problem make_cached_problem(const char* function, const AnyView& q, const KeyValue& kv, const AttentionOptions& options,
    Context& context, CallMemory& memory) {
  check<OptionError>((q.type == StoredType::kF64) == (kv.storage() == CacheStorage::kF64), function,
      "queries of double need a cache of f64, and no other queries may use one: got a cache of ",
      storage_name(kv.storage()));
  Problem p = make_problem(function, q, KeySource(kv), options, context);
  check_position_bias(function, p, p.queries, p.kv_len);
  p.mask = {options.mask.node(), {p.batch, p.num_heads, p.q_len, p.kv_len}, &memory.shown.emplace(kv)};
  check_mask_and_bias(function, options, p);
  if (const KeyLists* lists = key_lists_of(options.mask.node()); lists != nullptr) {
    for (Index b = 0; b < p.batch; ++b) lists->check_length(b, kv.length(b), function);
  }
  p.prepare(context, memory);
  check_cached_call(function, kv, p.q_len, options);
  check_ring_mask(function, kv, p.mask);
  return p;
}

ScoreMod::~ScoreMod() = default;  // the one function of it that the user does not write

}  // namespace qkv::inline v0

// Forward mode and double backward: checks, scratch, and two regions of work items (second_order_job.h).
#include <new>

#include "attention/backward/shared_gradients.h"
#include "attention/call/memory_checks.h"
#include "attention/second_order/second_order_job.h"
#include "core/check.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// Throws ShapeError unless the view is null or [B, H, Tq].
template <class T> void check_rows(
    const char* function, const char* name, const View<T, 3>& view, const Index batch, Index heads, Index length) {
  check<ShapeError>(view.is_null() || view.sizes() == typename View<T, 3>::Sizes{batch, heads, length}, function, name,
      " must be [B, H, Tq] or null: got ", view);
}

std::array<Index, 4> position_sizes(const Problem& p) { return {p.position_bias->rows(), p.position_bias->heads()}; }

/// Throws ShapeError unless each tangent is null or has the sizes of its tensor.
template <class T> void check_tangents(const char* function, const Problem& p, const AttentionTangents<T>& t) {
  if (!t.q.is_null()) check_sizes(function, "the tangent of q", t.q, p.batch, p.num_heads, p.q_len, p.head_dim);
  if (!t.k.is_null()) check_sizes(function, "the tangent of k", t.k, p.batch, p.num_kv_heads, p.kv_len, p.head_dim);
  if (!t.v.is_null()) check_sizes(function, "the tangent of v", t.v, p.batch, p.num_kv_heads, p.kv_len, p.v_head_dim);
  check<ShapeError>(t.position_bias.is_null() || AnyView(t.position_bias).sizes == position_sizes(p), function,
      "the tangent of the position bias must be its [rows, H]: got ", t.position_bias);
  check<ShapeError>(t.sinks.is_null() || AnyView(t.sinks).sizes == p.sinks.sizes, function,
      "the tangent of the sinks must have the sizes of the sinks: got ", t.sinks, ", sinks ", p.sinks);
  check<ShapeError>(t.bias.is_null() || AnyView(t.bias).sizes == p.bias.sizes, function,
      "the tangent of the bias must have the sizes of the bias: got ", t.bias, ", bias ", p.bias);
}

/// The problem of both functions, checked but for what they write.
template <class T> Problem second_order_problem(const char* function, const AnyView& q, const AnyView& k,
    const AnyView& v, const View<const T, 3>& lse, const AttentionTangents<T>& tangents,
    const AttentionOptions& options, Context& context, CallMemory& memory) {
  check<UnsupportedError>(
      options.score_mod == nullptr, function, "score_mod is not supported here: its slope has no derivative");
  check<UnsupportedError>(options.capture.result == nullptr, function,
      "capture is not supported here: give it to attention_forward or attention_backward");
  Problem p = make_dense_problem(function, q, {k, v}, options, context, memory);
  p.use_sum_tiles();
  check<UnsupportedError>(
      !p.is_part(), function, "AttentionOptions::part is not supported here: pass all rows and heads");
  check_tangents(function, p, tangents);
  check<ShapeError>(
      !lse.is_null() || p.batch * p.num_heads * p.q_len == 0, function, "lse is needed, as forward returned it");
  check_rows(function, "lse", lse, p.batch, p.num_heads, p.q_len);
  return p;
}

/// The tangent of a position bias as PositionVectors spreads out the bias itself: [H, distances]. Returns distance 0 of
/// head 0.
template <class T> const T* spread_rates(const Problem& p, const View<const T, 2>& rates, T* memory) {
  const bool from_end = p.position_bias->align() == Align::kBottomRight;
  const Index before = from_end ? p.kv_len - 1 : p.q_len - 1, count = p.position.head_stride;
  for (Index h = 0; h < p.num_heads; ++h) {
    for (Index n = 0; n < count; ++n) {
      memory[h * count + n] =
          static_cast<T>(p.position_bias->factor(n - before)) * rates(p.position.rows[n - before], h);
    }
  }
  return memory + before;
}

/// Borrows scratch for a checked job and runs it.
template <class T> void run(SecondOrderJob<T> job, Context& context) {
  const Problem& p = job.p;
  const auto width = [&p](Index rows) { return static_cast<double>(rows * (p.head_dim + p.v_head_dim)); };
  const Index rows = p.batch * p.num_heads * p.q_len, num_turns = p.query_tiles() + 2;
  const View<const T, 2>& rates = job.tangents.position_bias;
  const bool moves = rates.data() != nullptr && p.position.zero != nullptr;
  const Index rate_numbers = moves ? p.position.head_stride * p.num_heads : 0;
  job.own_bytes = {.kernel = round_to_line(std::max({job.kernels.scratch_bytes(p.head_dim, p.v_head_dim),
                       p.backward_scratch_bytes(), p.forward_scratch_bytes()})),
      .bias = line_bytes<T>(job.bias.over_queries ? p.kv_len : 0),
      .position = job.position.worker_bytes(p.kv_len)};
  T* rate_memory = nullptr;
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    for (T** each : {&job.rows.lse2_high, &job.rows.lse2_low, &job.rows.delta, &job.mean, &job.moment}) {
      *each = carver.array<T>(rows);
    }
    job.turns = carver.array<Turn>(num_turns);
    rate_memory = carver.array<T>(rate_numbers);
    return carver.used();
  };
  const ScratchLease scratch = borrow_scratch(context, carve(nullptr));
  carve(scratch.data());
  for (Index t = 0; t < num_turns; ++t) new (&job.turns[t]) Turn(0);
  if (moves) job.position_rates = spread_rates(p, rates, rate_memory);

  const auto flops = [&](Index items, double products) {  // a product is 2 D flops per pair
    return static_cast<double>(items) * kItemFlops + kElementFlops * width(rows) + products * p.pairs() * width(1);
  };
  const bool forward_mode = job.rows.dout.data == nullptr;
  const auto run_all = [&](Index items, double products, auto run_item) {
    run_items(context, {items, flops(items, products), job.own_bytes.all()}, [&](Index item, std::byte* own) {
      (job.*run_item)(item, {job.own_bytes, own});
    });
  };
  run_all(job.row_items(), forward_mode ? 8 : 17, &SecondOrderJob<T>::run_rows);
  run_all(job.key_items(), 8, &SecondOrderJob<T>::run_keys);
  if (job.gradients.gsinks.data() != nullptr) job.add_gsinks();
}

template <class T> void jvp(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
    const View<const T, 3>& lse, const AttentionTangents<T>& tangents, const View<T, 4>& tout, const View<T, 3>& tlse,
    const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_jvp";
  CallMemory memory;
  const Problem p = second_order_problem(function, q, k, v, lse, tangents, options, context, memory);
  check_rows(function, "tlse", tlse, p.batch, p.num_heads, p.q_len);
  if (!tout.is_null()) check_sizes(function, "tout", tout, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  const NamedBox outputs[] = {{"tout", tout}, {"tlse", tlse}};
  const NamedBox inputs[] = {{"lse", lse}, {"the tangent of q", tangents.q}, {"the tangent of k", tangents.k},
      {"the tangent of v", tangents.v}, {"the tangent of the bias", tangents.bias},
      {"the tangent of the sinks", tangents.sinks}, {"the tangent of the position bias", tangents.position_bias}};
  check_memory(function, p, p.mask.node, outputs, inputs);
  const AttentionSecondGradients<T> none{};
  run<T>({p, for_element<T>(p.tables->second_order), tangents, {p, {}, lse, {}, {}}, tout, tlse, none,
             BiasGradient<T>({}, p), {}},
      context);
}

template <class T> void double_backward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
    const View<const T, 4>& out, const View<const T, 3>& lse, const View<const T, 4>& dout,
    const AttentionTangents<T>& cotangents, const AttentionSecondGradients<T>& g, const AttentionOptions& options,
    Context& context) {
  constexpr const char* function = "attention_double_backward";
  CallMemory memory;
  const Problem p = second_order_problem(function, q, k, v, lse, cotangents, options, context, memory);
  check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check_sizes(function, "dout", dout, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check_rows(function, "dlse", g.dlse, p.batch, p.num_heads, p.q_len);
  check_rows(function, "gdlse", g.gdlse, p.batch, p.num_heads, p.q_len);
  if (!g.gq.is_null()) check_sizes(function, "gq", g.gq, p.batch, p.num_heads, p.q_len, p.head_dim);
  if (!g.gk.is_null()) check_sizes(function, "gk", g.gk, p.batch, p.num_kv_heads, p.kv_len, p.head_dim);
  if (!g.gv.is_null()) check_sizes(function, "gv", g.gv, p.batch, p.num_kv_heads, p.kv_len, p.v_head_dim);
  if (!g.gdout.is_null()) check_sizes(function, "gdout", g.gdout, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check<ShapeError>(g.gbias.is_null() || AnyView(g.gbias).sizes == p.bias.sizes, function,
      "gbias must have the sizes of the bias: got gbias ", g.gbias, ", bias ", p.bias);
  check<ShapeError>(g.gsinks.is_null() || AnyView(g.gsinks).sizes == p.sinks.sizes, function,
      "gsinks must have the sizes of the sinks: got gsinks ", g.gsinks, ", sinks ", p.sinks);
  check<ShapeError>(g.gposition_bias.is_null() || AnyView(g.gposition_bias).sizes == position_sizes(p), function,
      "gposition_bias must be the position bias's [rows, H]: got ", g.gposition_bias);
  const NamedBox outputs[] = {{"gposition_bias", g.gposition_bias}, {"gq", g.gq}, {"gk", g.gk}, {"gv", g.gv},
      {"gdout", g.gdout}, {"gbias", g.gbias}, {"gdlse", g.gdlse}, {"gsinks", g.gsinks}};
  const NamedBox inputs[] = {{"out", out}, {"lse", lse}, {"dout", dout}, {"dlse", g.dlse}, {"ddq", cotangents.q},
      {"ddk", cotangents.k}, {"ddv", cotangents.v}, {"ddbias", cotangents.bias}, {"ddsinks", cotangents.sinks},
      {"ddposition_bias", cotangents.position_bias}};
  check_memory(function, p, p.mask.node, outputs, inputs);
  zero_all(g.gposition_bias);
  zero_all(g.gsinks);
  const BiasGradient<T> bias(g.gbias, p);
  if (bias.wanted()) zero_all(g.gbias);
  const bool moves_position = p.position.zero != nullptr;
  run<T>({p, for_element<T>(p.tables->second_order), cotangents, {p, out, lse, dout, g.dlse}, g.gdout, g.gdlse, g, bias,
             {moves_position ? AnyView(g.gposition_bias) : AnyView(), &p}},
      context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                              \
  void attention_jvp(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 3> lse,             \
      const AttentionTangents<T>& tangents, View<T, 4> tout, View<T, 3> tlse, const AttentionOptions& options,     \
      Context& context) {                                                                                          \
    jvp<T>(q, k, v, lse, tangents, tout, tlse, options, context);                                                  \
  }                                                                                                                \
  void attention_double_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 4> out, \
      View<const T, 3> lse, View<const T, 4> dout, const AttentionTangents<T>& cotangents,                         \
      const AttentionSecondGradients<T>& gradients, const AttentionOptions& options, Context& context) {           \
    double_backward<T>(q, k, v, out, lse, dout, cotangents, gradients, options, context);                          \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
#undef QKV_DEFINE

}  // namespace qkv::inline v0

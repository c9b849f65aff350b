// A work item is (sequence, heads that share a list, query), or a part of its keys where there are fewer items than threads.
// Few heads take decode's kernel on a cache, many the tiled one, with a head in each lane.
#include "attention/forward/listed_forward.h"

#include "attention/call/empty_rows.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

template <class T>
struct ListedForward {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  const Listed<T>& listed;
  View<T, 4> out;
  View<Sum, 3> lse;
  const CacheKernels<T>& kernels;
  StoredType stored;
  bool tiled;  // many heads
  Index rows;  // heads of an item
  Index part_keys, parts;
  std::size_t kernel_bytes, state_bytes;

  ListedForward(const Problem<T>& problem, const Listed<T>& its_lists, const View<T, 4>& its_out, const View<Sum, 3>& its_lse,
                Context& context)
      : p(problem),
        listed(its_lists),
        out(its_out),
        lse(its_lse),
        kernels(for_element<T>(kernel_tables(problem.isa(context)).cache)),
        stored(stored_type(p.cache == nullptr ? storage_of<T>() : p.cache->storage())) {
    tiled = listed.block_heads() > kDecodeRowLimit && p.sinks.is_null();
    rows = std::min({listed.block_heads(), tiled ? p.kernels->copied_query_tile(p.head_dim, p.v_head_dim) : kDecodeRowLimit,
                     kMaxQueryTile});
    part_keys = kernels.decode_part_keys(stored, p.head_dim, p.v_head_dim);
    parts = tiled ? 1 : std::max<Index>(1, (listed.longest() + part_keys - 1) / part_keys);
    kernel_bytes = round_to_line(tiled ? p.kernels->forward_scratch_bytes(p.head_dim, p.v_head_dim, rows, true)
                                       : kernels.decode_scratch_bytes(stored, rows, p.head_dim, p.v_head_dim));
    state_bytes = tiled ? 0 : round_to_line(p.kernels->decode.state_bytes(rows, p.v_head_dim));
  }

  /// A block's heads are cut into pieces of `rows`.
  Index pieces() const { return (listed.block_heads() + rows - 1) / rows; }
  Index items() const { return p.batch * listed.blocks() * pieces() * p.q_len; }
  std::size_t worker_bytes() const { return kernel_bytes + 2 * state_bytes + line_bytes<Index>(listed.longest()); }

  struct Item {
    Index b, h0, i, count;  // heads [h0, h0 + count) and query i of those that are here
  };
  Item item_of(Index number) const {
    const Index i = number % p.q_len, piece = number / p.q_len % pieces(), block = number / p.q_len / pieces();
    const Index first = piece * rows;
    return {block / listed.blocks(), block % listed.blocks() * listed.block_heads() + first, i,
            std::min(rows, listed.block_heads() - first)};
  }
  /// Scores of the item's heads against `keys` listed rows, of which the mask hides none.
  TileScores<T> scores(const Item& at, Index keys) const {
    TileScores<T> s = p.scores(at.b, at.h0);
    s.q += (p.first_query + at.i) * p.q.stride(2);
    s.kv_len = keys;
    s.mask = {};
    return s;
  }
  DecodeGroup<T> group(const Item& at, Index keys, Sum* row_lse) const {
    DecodeGroup<T> t{};
    t.scores = scores(at, keys);
    t.out = out_row(at);
    t.lse = row_lse;
    t.q_head_stride = p.q.stride(1);
    t.v_head_dim = p.v_head_dim;
    t.out_head_stride = out.stride(1);
    t.q_len = 1;
    t.group_size = at.count;
    return t;
  }
  T* out_row(const Item& at) const { return out.data() + at.b * out.stride(0) + at.h0 * out.stride(1) + at.i * out.stride(2); }

  void run_tiled(const Item& at, const HeadKeys& head, Sum* row_lse, std::byte* scratch) const {
    ForwardTile<Sum> tile{};
    tile.scores = scores(at, head.held.end);
    tile.q = heads_of(p.q, at);
    tile.keys = head;
    tile.out = heads_of(out, at);
    tile.v_head_dim = p.v_head_dim;
    tile.q_count = at.count;
    tile.lse = row_lse;
    run_forward(*p.kernels, tile, scratch);
  }
  /// Query i of heads [h0, h0 + count), a row each.
  template <class E>
  static Rows heads_of(const View<E, 4>& view, const Item& at) {
    Rows rows = rows_at(view, at.b, at.h0, at.i);
    rows.stride = view.stride(1);
    return rows;
  }
  /// Part `part` of an item's keys into `state`. False: it has none.
  bool run_part(const Item& at, const HeadKeys& head, Index part, std::byte* scratch, std::byte* state) const {
    const Index begin = part * part_keys, end = std::min(begin + part_keys, head.held.end);
    if (part > 0 && begin >= end) return false;
    kernels.decode_part(group(at, head.held.end, nullptr), head, begin, end, scratch, state);
    return true;
  }
  void finish(const Item& at, std::byte* state) const {
    Sum row_lse[kDecodeRowLimit];
    p.kernels->decode.finish(group(at, 0, row_lse), state);
    finish_rows(at, row_lse);
  }
  void finish_rows(const Item& at, const Sum* row_lse) const {
    for (Index n = 0; n < at.count; ++n) {
      fill_empty_out(p, at.b, at.h0 + n, p.first_query + at.i, 1, row_lse + n, &out(at.b, at.h0 + n, at.i, 0), out.stride(2));
      if (lse.data() != nullptr) lse(at.b, at.h0 + n, at.i) = row_lse[n];
    }
  }

  /// A whole item.
  void run(Index number, std::byte* own) const {
    const Item at = item_of(number);
    std::byte *state = own + kernel_bytes, *later = state + state_bytes;
    auto* pages = reinterpret_cast<Index*>(later + state_bytes);
    const HeadKeys head = listed.rows(at.b, at.h0, at.i, 0, p.length(at.b), pages, nullptr);
    if (tiled) {
      Sum row_lse[kMaxQueryTile];
      run_tiled(at, head, row_lse, own);
      finish_rows(at, row_lse);
      return;
    }
    run_part(at, head, 0, own, state);
    for (Index part = 1; part < parts; ++part) {
      if (run_part(at, head, part, own, later)) p.kernels->decode.merge(group(at, 0, nullptr), state, later);
    }
    finish(at, state);
  }
};

}  // namespace

template <class T>
void forward_listed(const Problem<T>& p, const Listed<T>& listed, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse,
                    Context& context) {
  const ListedForward<T> job(p, listed, out, lse, context);
  const Index items = job.items();
  if (items == 0) return;
  const bool split = job.parts > 1 && items < 2 * context.threads();
  const std::size_t own = job.worker_bytes(),
                    states = split ? static_cast<std::size_t>(items * job.parts) * job.state_bytes : 0;
  const ScratchLease scratch = borrow_scratch(context, own * static_cast<std::size_t>(context.threads()) + states);
  std::byte* workers = scratch.data() + states;
  const double products = static_cast<double>(listed.longest() * p.batch * p.num_heads * p.q_len) * 2.0 *
                          static_cast<double>(p.head_dim + p.v_head_dim);
  const double flops = static_cast<double>(items) * kItemFlops / 16 + products;
  if (!split) {
    parallel_for_flops(context, items, flops,
                       [&](Index item, int worker) { job.run(item, workers + static_cast<std::size_t>(worker) * own); });
    return;
  }
  const auto state_of = [&](Index item, Index part) {
    return scratch.data() + static_cast<std::size_t>(item * job.parts + part) * job.state_bytes;
  };
  const auto rows_of = [&](const auto& at, std::byte* base) {
    auto* pages = reinterpret_cast<Index*>(base + job.kernel_bytes + 2 * job.state_bytes);
    return listed.rows(at.b, at.h0, at.i, 0, p.length(at.b), pages, nullptr);
  };
  parallel_for_flops(context, items * job.parts, flops, [&](Index number, int worker) {
    std::byte* base = workers + static_cast<std::size_t>(worker) * own;
    const auto at = job.item_of(number / job.parts);
    job.run_part(at, rows_of(at, base), number % job.parts, base, state_of(number / job.parts, number % job.parts));
  });
  for (Index item = 0; item < items; ++item) {
    const auto at = job.item_of(item);
    const Index keys = rows_of(at, workers).held.end;
    for (Index part = 1; part * job.part_keys < keys; ++part) {
      p.kernels->decode.merge(job.group(at, 0, nullptr), state_of(item, 0), state_of(item, part));
    }
    job.finish(at, state_of(item, 0));
  }
}

#define QKV_INSTANTIATE(T)                                                                                             \
  template void forward_listed(const Problem<T>&, const Listed<T>&, const View<T, 4>&, const View<Accumulator<T>, 3>&, \
                               Context&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0

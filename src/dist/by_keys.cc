// Methods that bring keys to queries, all-gather and the ring: a rank computes its own queries on all keys, which
// arrive as in chunk_route.h, one step ahead of what is computed. A step is a chunk of keys of a head, by ascending
// keys, so that a rank carries its rows from one chunk to the next and has the bits of all keys at once. Liu, Zaharia,
// Abbeel 2023 (arXiv:2310.01889) pass each rank another chunk instead: nobody waits for the first one, but the order of
// keys, and so the bits, differ by rank. One chunk is all keys by all-gather, unless ContextParallelOptions::chunk is
// given, and where a call is not computed chunk by chunk (compute.h).
#include <memory>
#include <optional>
#include <utility>

#include "dist/chunk_route.h"
#include "dist/compute.h"
#include "dist/under_way.h"

namespace qkv::inline v0::dist {
namespace {

using Way = Routed::Way;

/// A chunk of keys of some key/value heads.
struct ChunkStep {
  Index head;  // the first one
  std::size_t chunk;
  bool maxima = false;  // keys alone: an lse that was rounded is computed again
};

/// Keys and, unless maxima alone are wanted, values of some heads of a chunk, on their way.
std::unique_ptr<Routed> keys_of_chunk(
    const ParallelCall& call, const RoutedChunk& chunk, const ChunkStep& step, Index heads) {
  const Array k = call.x.k.sliced(1, step.head, step.head + heads);
  const Array v = step.maxima ? Array() : call.x.v.sliced(1, step.head, step.head + heads);
  auto keys = std::make_unique<Routed>(call, chunk, Way::kFromOwners, call.type(), k, v, nullptr);
  for (const auto& [own, here] : {std::pair(k, keys->k()), {v, keys->v()}}) {
    if (own.is_null()) continue;
    each_local_piece(own, call.my_keys(), {chunk.rows}, [&](const Array& piece, const Rows& rows) {
      write(here.sliced(2, rows.begin - chunk.rows.begin, rows.end - chunk.rows.begin), piece);
    });
  }
  keys->start();
  keys->poll();
  return keys;
}

/// This rank's shares of dk and dv of a chunk, in the type of sums; the owner rounds once.
std::unique_ptr<Routed> shares_of_chunk(
    const ParallelCall& call, const RoutedChunk& chunk, Index head, Index heads, const Gradients& g) {
  const auto of_heads = [=](const Array& x) { return x.sliced(1, head, head + heads); };
  const Array dk = of_heads(g.dk.is_null() ? g.dk_sums : g.dk), dv = of_heads(g.dv.is_null() ? g.dv_sums : g.dv);
  const auto arrived = [&call, &chunk, &g, dk, dv](const Routed& shares, const RoutedRows& part) {
    if (part.owner != call.transport.rank()) return;
    for (const auto& [to, sums] : {std::pair(dk, shares.k()), {dv, shares.v()}}) {
      if (to.is_null()) continue;
      each_local_piece(to, call.my_keys(), {part.rows}, [&](const Array& mine, const Rows& rows) {
        write(mine, sums.sliced(2, rows.begin - chunk.rows.begin, rows.end - chunk.rows.begin), g.accumulate);
      });
    }
  };
  return std::make_unique<Routed>(call, chunk, Way::kToOwners, sum_type(call.type()), dk, dv, arrived);
}

/// Whether keys arrive in chunks that are computed one by one.
bool in_chunks(const ParallelCall& call, bool backward) {
  const bool asked = call.cut.method == Method::kRing || call.cut.chunk > 0;
  return asked && call.transport.size() > 1 &&
         takes_chunks(backward, call.x.q, {call.x.k.sizes[1], call.keys.length, call.x.v.sizes[3]}, call.queries.length,
             call.options, call.context);
}

/// The chunks of a call, of a size that kernels take, or one.
std::vector<RoutedChunk> chunks_of(const ParallelCall& call, bool many) {
  if (!many) return routed_chunks(call, std::max<Index>(1, call.keys.length), false);
  const Index step = chunk_step(call.type(), call.x.q.sizes[3], call.x.v.sizes[3], call.options, call.context);
  const Index chunk = call.cut.chunk == 0 ? 4096 : call.cut.chunk;
  return routed_chunks(call, std::max<Index>(1, chunk / step) * step, call.cut.method == Method::kRing);
}

/// work(step, keys) for every step, while the keys of the next one arrive, and the shares of dk and dv that the step
/// before gave leave. `work` returns its shares, or null.
template <class Work> void visit_chunks(const ParallelCall& call, bool many, const std::vector<RoutedChunk>& chunks,
    const std::vector<ChunkStep>& steps, Index heads, const Work& work) {
  // Destroyed in the opposite order: where this rank's work has thrown, the keys that are under way are passed on. The
  // others then wait for this rank until the transport says that it is gone (guarded.h).
  std::unique_ptr<Routed> made, going, now, next;
  const auto start = [&](std::size_t n) {
    return n == steps.size() ? nullptr : keys_of_chunk(call, chunks[steps[n].chunk], steps[n], heads);
  };
  next = start(0);
  for (std::size_t n = 0; n < steps.size(); ++n) {
    next->wait();
    if (going) going->finish();
    now = std::move(next);
    next = start(n + 1);
    going = std::move(made);
    if (going) going->start();
    const auto poll = [&] {
      const bool gone = now->poll(), come = next == nullptr || next->poll();
      const bool in_turn = next == nullptr || next->all_sent();  // chunk_route.h
      const bool returned = going == nullptr || (in_turn && going->poll());
      return gone && come && returned;
    };
    std::optional<UnderWay> others;
    if (call.transport.size() > 1) others.emplace(poll);
    ArrivedKeys keys{now->k(), now->v(), chunks[steps[n].chunk].rows.begin};
    std::array<Buffer, 2> in_order;
    if (!many && keys.k.sizes[0] * heads > 1) {  // all keys at once, as kernels read them best
      for (const auto& [x, buffer] : {std::pair(&keys.k, &in_order[0]), {&keys.v, &in_order[1]}}) {
        *buffer = Buffer(x->type, x->sizes);
        write(buffer->view, *x);
        *x = buffer->view;
      }
    }
    made = work(steps[n], keys);
    if (others) others->finish();
    now->finish();
  }
  if (going) going->finish();
  if (!made) return;
  made->start();
  made->finish();
}

/// Collective: the heads that any rank has marked.
std::vector<Index> marked_on_any_rank(const ParallelCall& call, const std::vector<Index>& marks) {
  std::vector<Index> heads;
  const std::vector<std::vector<Index>> all = from_all(call.transport, marks);
  for (std::size_t head = 0; head < marks.size(); ++head) {
    if (std::ranges::any_of(all, [&](const std::vector<Index>& of_rank) { return of_rank[head] != 0; }))
      heads.push_back(static_cast<Index>(head));
  }
  return heads;
}

}  // namespace

void forward_by_keys(const ParallelCall& call, const Array& out, const Array& lse) {
  const bool many = in_chunks(call, false);
  const std::vector<RoutedChunk> chunks = chunks_of(call, many);
  const Index kv_heads = call.x.k.sizes[1], heads = call.transport.size() == 1 ? kv_heads : 1;
  std::vector<std::vector<ForwardPiece>> pieces(
      static_cast<std::size_t>(kv_heads));  // by first head: those that are not finished
  const auto start = [&](Index head) {
    each_piece(call.my_queries(), [&](const Rows& rows, Index begin, Index end) {
      const auto mine = [&](const Array& x) { return query_heads(call, x, head, heads).sliced(2, begin, end); };
      pieces[static_cast<std::size_t>(head)].push_back(
          forward_piece(many, mine(call.x.q), {heads, call.keys.length, call.x.v.sizes[3]}, mine(out), mine(lse),
              call.options_at(rows, head * call.group()), call.context));
    });
  };
  const auto visit = [&](const std::vector<Index>& first_heads, bool first) {
    std::vector<ChunkStep> steps;
    for (const Index head : first_heads) {
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) steps.push_back({head, chunk});
    }
    visit_chunks(call, many, chunks, steps, heads, [&](const ChunkStep& step, const ArrivedKeys& keys) {
      std::vector<ForwardPiece>& here = pieces[static_cast<std::size_t>(step.head)];
      if (first && step.chunk == 0) start(step.head);
      for (const ForwardPiece& piece : here) {
        if (!many || chunks[step.chunk].needed) piece.add(keys);
      }
      if (step.chunk + 1 == chunks.size())
        std::erase_if(here, [](const ForwardPiece& piece) { return !piece.finish(); });
      return std::unique_ptr<Routed>();
    });
  };
  std::vector<Index> all, overflown;
  for (Index head = 0; head < kv_heads; head += heads) all.push_back(head);
  visit(all, true);
  if (!many) return;
  for (const std::vector<ForwardPiece>& of_head : pieces) overflown.push_back(of_head.empty() ? 0 : 1);
  visit(marked_on_any_rank(call, overflown), false);
}

void backward_by_keys(const ParallelCall& call, const Gradients& gradients) {
  RankShares shared(gradients);
  const bool many = in_chunks(call, true);
  const std::vector<RoutedChunk> chunks = chunks_of(call, many);
  const Index kv_heads = call.x.k.sizes[1], heads = shared.any() || call.transport.size() == 1 ? kv_heads : 1;
  std::vector<BackwardPiece> pieces;  // of the heads that are under way
  const auto start = [&](Index head) {
    pieces.clear();
    each_piece(call.my_queries(), [&](const Rows& rows, Index begin, Index end) {
      const auto mine = [&](const Array& x) { return query_heads(call, x, head, heads).sliced(2, begin, end); };
      Gradients wanted;
      wanted.dq = mine(gradients.dq), wanted.dlse = mine(gradients.dlse), wanted.accumulate = gradients.accumulate;
      pieces.push_back(
          backward_piece(many, mine(call.x.q), {heads, call.keys.length, call.x.v.sizes[3]}, mine(call.x.out),
              mine(call.x.lse), mine(call.x.dout), wanted, call.options_at(rows, head * call.group()), call.context));
    });
  };
  std::vector<Index> coarse(static_cast<std::size_t>(kv_heads));
  for (Index head = 0; many && head < kv_heads; head += heads) {
    coarse[static_cast<std::size_t>(head)] = needs_maxima(query_heads(call, call.x.lse, head, heads)) ? 1 : 0;
  }
  const std::vector<Index> twice = many ? marked_on_any_rank(call, coarse) : std::vector<Index>();
  std::vector<ChunkStep> steps;
  for (Index head = 0; head < kv_heads; head += heads) {
    const bool again = std::ranges::find(twice, head) != twice.end();
    for (std::size_t chunk = 0; again && chunk < chunks.size(); ++chunk) steps.push_back({head, chunk, true});
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) steps.push_back({head, chunk, false});
  }
  Index begun = -1;
  visit_chunks(call, many, chunks, steps, heads, [&](const ChunkStep& step, const ArrivedKeys& keys) {
    const RoutedChunk& chunk = chunks[step.chunk];
    if (std::exchange(begun, step.head) != step.head) start(step.head);
    std::unique_ptr<Routed> shares;
    if (!step.maxima) shares = shares_of_chunk(call, chunk, step.head, heads, gradients);
    for (const BackwardPiece& piece : pieces) {
      if (step.maxima) {
        if (chunk.needed) piece.add_maxima(keys);
        if (step.chunk + 1 == chunks.size()) piece.end_maxima();
        continue;
      }
      shared.add({}, [&](const Gradients& of_piece) { piece.add(keys, shares->k(), shares->v(), of_piece); });
    }
    return shares;
  });
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist

// Methods that bring keys to queries, all-gather and the ring: a rank computes its own queries on all keys, which
// arrive as in chunk_route.h, one step ahead of what is computed. A step is a chunk of keys of a head, by ascending
// keys, so that a rank carries its rows from one chunk to the next and has the bits of all keys at once. Liu, Zaharia,
// Abbeel 2023 (arXiv:2310.01889) pass each rank another chunk instead: nobody waits for the first one, but the order of
// keys, and so the bits, differ by rank. One chunk is all keys by all-gather, unless ContextParallelOptions::chunk is
// given, and where a call is not computed chunk by chunk: in
// forward few queries over many keys, which decode computes, and the mean over all values that EmptyRow::kMean writes,
// need all at once; in forward and backward so do keys that are read by lists (Mask::keys).
#include <memory>
#include <optional>
#include <utility>

#include "attention/backward/carried_backward.h"
#include "attention/forward/carried_forward.h"
#include "dist/chunk_route.h"
#include "dist/waiting.h"

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
  const AnyView k = sliced(call.x.k, 1, step.head, step.head + heads);
  const AnyView v = step.maxima ? AnyView() : sliced(call.x.v, 1, step.head, step.head + heads);
  auto keys = std::make_unique<Routed>(call, chunk, Way::kFromOwners, k.type, k, v, nullptr);
  for (const auto& [own, here] : {std::pair(k, keys->k()), {v, keys->v()}}) {
    if (own.is_null()) continue;
    each_local_piece(own, call.my_keys(), {chunk.rows}, [&](const AnyView& piece, const Rows& rows) {
      write(sliced(here, 2, rows.begin - chunk.rows.begin, rows.end - chunk.rows.begin), piece);
    });
  }
  keys->start();
  keys->poll();
  return keys;
}

/// This rank's shares of dk and dv of a chunk, in the type of sums; the owner rounds once.
std::unique_ptr<Routed> shares_of_chunk(
    const ParallelCall& call, const RoutedChunk& chunk, Index head, Index heads, const Gradients& g) {
  const auto of_heads = [=](const AnyView& x) { return sliced(x, 1, head, head + heads); };
  const AnyView dk = of_heads(g.dk.is_null() ? g.dk_sums : g.dk), dv = of_heads(g.dv.is_null() ? g.dv_sums : g.dv);
  const auto arrived = [&call, &chunk, &g, dk, dv](const Routed& shares, const RoutedRows& part) {
    if (part.owner != call.transport.rank()) return;
    for (const auto& [to, sums] : {std::pair(dk, shares.k()), {dv, shares.v()}}) {
      if (to.is_null()) continue;
      each_local_piece(to, call.my_keys(), {part.rows}, [&](const AnyView& mine, const Rows& rows) {
        write(mine, sliced(sums, 2, rows.begin - chunk.rows.begin, rows.end - chunk.rows.begin), g.accumulate);
      });
    }
  };
  return std::make_unique<Routed>(call, chunk, Way::kToOwners, sum_type(call.x.q.type), dk, dv, arrived);
}

/// Whether keys arrive in chunks that are computed one by one.
bool in_chunks(const ParallelCall& call, bool backward) {
  const bool asked = call.cut.method == Method::kRing || call.cut.chunk > 0;
  const auto carries = backward ? carries_backward : carries_forward;
  return asked && call.transport.size() > 1 &&
         carries(call.x.q, call.sizes_of_keys(call.x.k.size(1)), call.queries.length, call.options, call.context);
}

/// The chunks of a call, of a size that kernels take, or one; `ring`: passed on from neighbour to neighbour.
std::vector<RoutedChunk> chunks_of(const ParallelCall& call, bool many, bool ring) {
  if (!many) return routed_chunks(call, std::max<Index>(1, call.keys.length), false);
  const Index step = carried_step(call.x.q.type, call.x.q.size(3), call.x.v.size(3), call.options, call.context);
  const Index chunk = call.cut.chunk == 0 ? 4096 : call.cut.chunk;
  return routed_chunks(call, std::max<Index>(1, chunk / step) * step, ring);
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
    KeyChunk keys{now->k(), now->v(), chunks[steps[n].chunk].rows.begin};
    std::array<Buffer, 2> in_order;
    if (!many && keys.k.size(0) * heads > 1) {  // all keys at once, as kernels read them best
      for (const auto& [x, buffer] : {std::pair(&keys.k, &in_order[0]), {&keys.v, &in_order[1]}}) {
        *buffer = Buffer(*x, x->type);
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

/// A piece of this rank's queries, of the heads that read some key/value heads.
struct OwnQueries {
  const ParallelCall& call;
  Index first_head, heads;  // key/value heads
  Rows rows;                // of the whole
  Index begin, end;         // of its own

  AnyView of(const AnyView& x) const { return sliced(query_heads(call, x, first_head, heads), 2, begin, end); }
  AttentionOptions options() const { return call.options_at(rows, first_head * call.group()); }
};
/// body(piece). Once without rows where this rank holds none, so that every rank checks its options.
template <class Body> void each_piece(const ParallelCall& call, Index first_head, Index heads, const Body& body) {
  Index begin = 0;
  for (const Rows& rows : call.my_queries()) {
    body(OwnQueries{call, first_head, heads, rows, begin, begin + rows.count()});
    begin += rows.count();
  }
  if (call.my_queries().empty()) body(OwnQueries{call, first_head, heads, {}, 0, 0});
}

}  // namespace

void forward_by_keys(const ParallelCall& call) {
  using Piece = std::unique_ptr<CarriedForward>;
  const bool many = in_chunks(call, false);
  const std::vector<RoutedChunk> chunks = chunks_of(call, many, call.cut.method == Method::kRing);
  const Index kv_heads = call.x.k.size(1), heads = call.transport.size() == 1 ? kv_heads : 1;
  std::vector<std::vector<Piece>> pieces(static_cast<std::size_t>(kv_heads));  // by first head: those not finished
  const auto compute = [&](const ChunkStep& step, const KeyChunk& keys) {
    each_piece(call, step.head, heads, [&](const OwnQueries& own) {
      const Outputs outputs{.out = own.of(call.x.out), .lse = own.of(call.x.lse)};
      detail::forward(own.of(call.x.q), keys.k, keys.v, outputs, own.options(), call.context);
    });
  };
  const auto add = [&](const ChunkStep& step, const KeyChunk& keys, bool first) {
    std::vector<Piece>& here = pieces[static_cast<std::size_t>(step.head)];
    if (first && step.chunk == 0) {
      each_piece(call, step.head, heads, [&](const OwnQueries& own) {
        here.push_back(std::make_unique<CarriedForward>(own.of(call.x.q), call.sizes_of_keys(heads), own.of(call.x.out),
            own.of(call.x.lse), own.options(), call.context));
      });
    }
    for (const Piece& piece : here) {
      if (chunks[step.chunk].needed) piece->add(keys);
    }
    if (step.chunk + 1 == chunks.size()) std::erase_if(here, [](const Piece& piece) { return !piece->finish(); });
  };
  const auto visit = [&](const std::vector<Index>& first_heads, bool first) {
    std::vector<ChunkStep> steps;
    for (const Index head : first_heads) {
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) steps.push_back({head, chunk});
    }
    visit_chunks(call, many, chunks, steps, heads, [&](const ChunkStep& step, const KeyChunk& keys) {
      many ? add(step, keys, first) : compute(step, keys);
      return std::unique_ptr<Routed>();
    });
  };
  std::vector<Index> all, overflown;
  for (Index head = 0; head < kv_heads; head += heads) all.push_back(head);
  visit(all, true);
  if (!many) return;
  for (const std::vector<Piece>& of_head : pieces) overflown.push_back(of_head.empty() ? 0 : 1);
  visit(marked_on_any_rank(call, overflown), false);
}

void backward_by_keys(const ParallelCall& call, const Gradients& gradients) {
  RankShares shared(gradients);
  const bool many = in_chunks(call, true), ring = call.cut.method == Method::kRing;
  const std::vector<RoutedChunk> chunks = chunks_of(call, many, ring);
  // With invariant bits a ring's owner adds all shares, in order of ranks.
  const std::vector<RoutedChunk> returned = chunks_of(call, many, ring && !call.invariant());
  const Index kv_heads = call.x.k.size(1), heads = shared.any() || call.transport.size() == 1 ? kv_heads : 1;
  const auto of_piece = [&](const OwnQueries& own, Gradients g) {
    g.dq = own.of(gradients.dq), g.dlse = own.of(gradients.dlse), g.accumulate = gradients.accumulate;
    return g;
  };
  const auto compute = [&](const ChunkStep& step, const KeyChunk& keys, const Routed& shares) {
    bool sets = keys.k.size(0) * heads == 1;  // the shares of one head themselves, by the first piece
    each_piece(call, step.head, heads, [&](const OwnQueries& own) {
      std::array<Buffer, 2> added;
      std::array<AnyView, 2> sums{shares.k(), shares.v()};
      for (std::size_t n = 0; !sets && n < 2; ++n) {
        added[n] = Buffer(sums[n], sums[n].type);
        sums[n] = added[n].view;
      }
      shared.add({.dk_sums = sums[0], .dv_sums = sums[1]}, [&](const Gradients& g) {
        detail::backward(own.of(call.x.q), keys.k, keys.v, own.of(call.x.out), own.of(call.x.lse), own.of(call.x.dout),
            of_piece(own, g), own.options(), call.context);
      });
      if (!std::exchange(sets, false)) {
        write(shares.k(), sums[0], true);
        write(shares.v(), sums[1], true);
      }
    });
  };
  std::vector<std::unique_ptr<CarriedBackward>> pieces;  // of the heads that are under way
  Index begun = -1;
  const auto add = [&](const ChunkStep& step, const KeyChunk& keys, const Routed* shares) {
    if (std::exchange(begun, step.head) != step.head) {
      pieces.clear();
      each_piece(call, step.head, heads, [&](const OwnQueries& own) {
        const BackwardInputs inputs{own.of(call.x.out), own.of(call.x.lse), own.of(call.x.dout)};
        pieces.push_back(std::make_unique<CarriedBackward>(
            own.of(call.x.q), call.sizes_of_keys(heads), inputs, of_piece(own, {}), own.options(), call.context));
      });
    }
    for (const auto& piece : pieces) {
      if (!step.maxima) {
        shared.add({}, [&](const Gradients& g) { piece->add(keys, shares->k(), shares->v(), g); });
        continue;
      }
      if (chunks[step.chunk].needed) piece->add_maxima(keys);
      if (step.chunk + 1 == chunks.size()) piece->end_maxima();
    }
  };
  std::vector<Index> coarse(static_cast<std::size_t>(kv_heads));
  for (Index head = 0; many && head < kv_heads; head += heads) {
    coarse[static_cast<std::size_t>(head)] = lse_is_coarse(query_heads(call, call.x.lse, head, heads)) ? 1 : 0;
  }
  const std::vector<Index> twice = many ? marked_on_any_rank(call, coarse) : std::vector<Index>();
  std::vector<ChunkStep> steps;
  for (Index head = 0; head < kv_heads; head += heads) {
    const bool again = std::ranges::find(twice, head) != twice.end();
    for (std::size_t chunk = 0; again && chunk < chunks.size(); ++chunk) steps.push_back({head, chunk, true});
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) steps.push_back({head, chunk, false});
  }
  visit_chunks(call, many, chunks, steps, heads, [&](const ChunkStep& step, const KeyChunk& keys) {
    std::unique_ptr<Routed> shares;
    if (!step.maxima) shares = shares_of_chunk(call, returned[step.chunk], step.head, heads, gradients);
    many ? add(step, keys, shares.get()) : compute(step, keys, *shares);
    return shares;
  });
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist

// Keys that arrive in chunks (the ring, and all-gather where ContextParallelOptions::chunk is given): a rank computes its own queries on
// all keys, a chunk at a time, by ascending keys, so that it carries its rows from one chunk to the next and has the bits of all keys
// at once. Chunks travel as in chunk_route.h, one ahead of what is computed. Liu, Zaharia, Abbeel 2023 (arXiv:2310.01889) pass each
// rank another chunk instead: nobody waits for the first one, but the order of keys, and so the bits, differ by rank.
#pragma once

#include "attention/backward/carried_backward.h"
#include "attention/forward/carried_forward.h"
#include "dist/by_rows.h"
#include "dist/chunk_route.h"
#include "dist/waiting.h"

namespace qkv::inline v0::dist {

/// A chunk of keys of some key/value heads.
struct ChunkStep {
  Index head;  // the first one
  std::size_t chunk;
  bool maxima = false;  // keys alone: an lse that was rounded is computed again
};

/// Keys and values of a chunk on their way to and past this rank.
template <class T>
class KeysOfChunk {
 public:
  KeysOfChunk(const ParallelCall<T>& call, const RoutedChunk& chunk, Index head, Index heads, bool values)
      : chunk_(chunk), k_(chunk.rows, call.k.size(0), heads, call.k.size(3)), messages_(call.transport, chunk) {
    if (values) v_ = ChunkRows<T>(chunk.rows, call.k.size(0), heads, call.v.size(3));
    for (const RoutedRows& part : chunk.parts) {
      if (part.owner != call.transport.rank()) continue;
      copy_own(call, call.k.sliced(1, head, head + heads), part.rows, k_);
      if (values) copy_own(call, call.v.sliced(1, head, head + heads), part.rows, v_);
    }
    messages_.start(false, [&](std::size_t n, std::size_t) {
      const Rows& rows = chunk_.parts[n].rows;
      return std::array{std::as_writable_bytes(k_.part(rows)), std::as_writable_bytes(v_.part(rows))};
    });
    poll();
  }
  KeysOfChunk(const KeysOfChunk&) = delete;
  KeysOfChunk& operator=(const KeysOfChunk&) = delete;
  /// Passes on what comes also where this rank's work has thrown.
  ~KeysOfChunk() {
    try {
      finish();
    } catch (const Error&) {  // the transport has failed, and touches no bytes any more
    }
  }

  /// Moves messages on; whether all are done.
  bool poll() {
    return messages_.poll([](std::size_t) {},
                          [&](std::size_t n) {
                            const Rows& rows = chunk_.parts[n].rows;
                            return std::array{std::as_bytes(k_.part(rows)), std::as_bytes(v_.part(rows))};
                          });
  }
  bool all_sent() const { return messages_.all_sent(); }
  /// Until the keys are here, and on their way on.
  KeyChunk<T> wait() {
    wait_until([&] { return poll() || messages_.all_here(); });
    return {k_.view(), v_.view(), chunk_.rows.begin};
  }
  void finish() {
    wait_until([&] { return poll(); });
  }

 private:
  static void copy_own(const ParallelCall<T>& call, const View<const T, 4>& local, const Rows& rows, ChunkRows<T>& to) {
    each_local_piece(local, call.keys.of_rank[call.rank()], {rows}, [&](const View<const T, 4>& from) {
      const View<T, 4> here = to.view(rows);
      for (Index b = 0; b < from.size(0); ++b) {
        for (Index h = 0; h < from.size(1); ++h) {
          for (Index i = 0; i < from.size(2); ++i) std::copy_n(&from(b, h, i, 0), from.size(3), &here(b, h, i, 0));
        }
      }
    });
  }

  const RoutedChunk& chunk_;
  ChunkRows<T> k_, v_;
  RouteMessages messages_;
};

/// Whether a call's keys arrive in chunks. What one rank holds alone does not travel.
template <class T>
bool by_chunks(const ParallelCall<T>& call) {
  const Method method = call.cut.method;
  return (method == Method::kRing || (method == Method::kAllGather && call.cut.chunk > 0)) && call.transport.size() > 1;
}
/// In forward few queries over many keys, which decode computes, and the mean over all values that EmptyRow::kMean writes, take
/// whole heads; in forward and backward so do keys that are read by lists (Mask::keys).
template <class T>
bool forward_goes_by_chunks(const ParallelCall<T>& call) {
  const KeySizes keys{call.k.size(1), call.keys.length, call.v.size(3)};
  return by_chunks(call) && carries_forward(call.q, keys, call.queries.length, call.options, call.context);
}
template <class T>
bool backward_goes_by_chunks(const ParallelCall<T>& call) {
  const KeySizes keys{call.k.size(1), call.keys.length, call.v.size(3)};
  return by_chunks(call) && carries_backward(call.q, keys, call.queries.length, call.options, call.context);
}

/// The chunks of a call, of a size that kernels take.
template <class T>
std::vector<RoutedChunk> routed_chunks(const ParallelCall<T>& call) {
  const Index step = carried_step<T>(call.q.size(3), call.v.size(3), call.options, call.context);
  const Index chunk = call.cut.chunk == 0 ? 4096 : call.cut.chunk;
  return routed_chunks(call, std::max<Index>(1, chunk / step) * step);
}

/// This rank's shares of dk and dv of a chunk, and their way back to the owner: each rank of a ring adds its own to what comes from the
/// rank after it; otherwise the owner adds all, in order of ranks. In the type of sums; the owner rounds once.
template <class T>
class SharesOfChunk {
 public:
  using Sum = Accumulator<T>;
  SharesOfChunk(const ParallelCall<T>& call, const RoutedChunk& chunk, Index head, Index heads,
                const AttentionGradients<T>& gradients)
      : call_(call), chunk_(chunk), head_(head), heads_(heads), gradients_(gradients), messages_(call.transport, chunk) {
    const auto rows = [&](Index width) { return ChunkRows<Sum>(chunk.rows, call.k.size(0), heads, width); };
    if (!gradients.dk.is_null() || !gradients.dk_sums.is_null()) dk_ = rows(call.k.size(3));
    if (!gradients.dv.is_null() || !gradients.dv_sums.is_null()) dv_ = rows(call.v.size(3));
  }
  SharesOfChunk(const SharesOfChunk&) = delete;
  SharesOfChunk& operator=(const SharesOfChunk&) = delete;
  ~SharesOfChunk() {
    try {
      if (started_) finish();
    } catch (const Error&) {  // the transport has failed, and touches no bytes any more
    }
  }

  View<Sum, 4> dk() { return dk_.view(); }
  View<Sum, 4> dv() { return dv_.view(); }

  void start() {
    started_ = true;
    for (const RoutedRows& part : chunk_.parts) {
      const std::size_t sources = part.away_from_owner(call_.transport.rank()).size();
      const auto like = [&](ChunkRows<Sum>& sums) {
        return std::vector<std::vector<Sum>>(sources, std::vector<Sum>(sums.part(part.rows).size()));
      };
      came_.push_back({like(dk_), like(dv_)});
    }
    messages_.start(true, [&](std::size_t n, std::size_t source) {
      Came& part = came_[n];
      return std::array{std::as_writable_bytes(std::span(part.dk[source])), std::as_writable_bytes(std::span(part.dv[source]))};
    });
  }
  bool poll() {
    return messages_.poll([&](std::size_t n) { arrived(n); },
                          [&](std::size_t n) {
                            const Rows& rows = chunk_.parts[n].rows;
                            return std::array{std::as_bytes(dk_.part(rows)), std::as_bytes(dv_.part(rows))};
                          });
  }
  void finish() {
    wait_until([&] { return poll(); });
  }

 private:
  /// What came for a part, by sender.
  struct Came {
    std::vector<std::vector<Sum>> dk, dv;
  };

  void arrived(std::size_t n) {
    const RoutedRows& part = chunk_.parts[n];
    const int me = call_.transport.rank();
    const std::vector<int> from = part.away_from_owner(me);
    const auto before = static_cast<std::size_t>(std::ranges::count_if(from, [&](int rank) { return rank < me; }));
    const auto add = [&](std::span<Sum> mine, const std::vector<std::vector<Sum>>& came) {
      for (std::size_t x = 0; x < mine.size(); ++x) {
        Sum sum = 0;
        for (std::size_t source = 0; source < before; ++source) sum += came[source][x];
        sum += mine[x];
        for (std::size_t source = before; source < came.size(); ++source) sum += came[source][x];
        mine[x] = sum;
      }
    };
    if (!from.empty()) {
      add(dk_.part(part.rows), came_[n].dk);
      add(dv_.part(part.rows), came_[n].dv);
    }
    if (part.owner != me) return;
    write(dk_, part.rows, gradients_.dk, gradients_.dk_sums);
    write(dv_, part.rows, gradients_.dv, gradients_.dv_sums);
  }
  void write(ChunkRows<Sum>& sums, const Rows& rows, const View<T, 4>& gradient, const View<Sum, 4>& gradient_sums) const {
    const auto to = [&](const auto& whole, const auto& set) {
      if (whole.is_null()) return;
      each_local_piece(whole.sliced(1, head_, head_ + heads_), call_.keys.of_rank[call_.rank()], {rows}, [&](const auto& mine) {
        const View<Sum, 4> from = sums.view(rows);
        for (Index b = 0; b < mine.size(0); ++b) {
          for (Index h = 0; h < mine.size(1); ++h) {
            for (Index i = 0; i < mine.size(2); ++i) {
              for (Index d = 0; d < mine.size(3); ++d) set(mine(b, h, i, d), from(b, h, i, d));
            }
          }
        }
      });
    };
    to(gradient, rounded<T>(gradients_.accumulate));
    to(gradient_sums, rounded<Sum>(gradients_.accumulate));
  }

  const ParallelCall<T>& call_;
  const RoutedChunk& chunk_;
  Index head_, heads_;
  const AttentionGradients<T>& gradients_;
  ChunkRows<Sum> dk_, dv_;
  std::vector<Came> came_;  // by part
  RouteMessages messages_;
  bool started_ = false;
};

/// work(step, keys) for every step, while the keys of the next one travel, and the shares of dk and dv that the step before gave.
/// `work` returns its shares, or null.
template <class T, class Work>
void visit_chunks(const ParallelCall<T>& call, const std::vector<RoutedChunk>& chunks, const std::vector<ChunkStep>& steps,
                  Index heads, const Work& work) {
  // Destroyed in the opposite order: where this rank's work has thrown, the keys that are under way are passed on. The others then
  // wait for this rank until the transport says that it is gone (guarded.h).
  std::unique_ptr<SharesOfChunk<T>> made, going;
  std::unique_ptr<KeysOfChunk<T>> now, next;
  const auto start = [&](std::size_t n) {
    if (n == steps.size()) return std::unique_ptr<KeysOfChunk<T>>();
    return std::make_unique<KeysOfChunk<T>>(call, chunks[steps[n].chunk], steps[n].head, heads, !steps[n].maxima);
  };
  next = start(0);
  for (std::size_t n = 0; n < steps.size(); ++n) {
    const KeyChunk<T> keys = next->wait();
    if (going) going->finish();
    now = std::move(next);
    next = start(n + 1);
    going = std::move(made);
    if (going) going->start();
    UnderWay others([&] {
      const bool gone = now->poll(), come = next == nullptr || next->poll();
      const bool in_turn = next == nullptr || next->all_sent();  // chunk_route.h
      const bool returned = going == nullptr || (in_turn && going->poll());
      return gone && come && returned;
    });
    made = work(steps[n], keys);
    others.finish();
    now->finish();
  }
  if (going) going->finish();
  if (!made) return;
  made->start();
  made->finish();
}

/// All chunks of all heads, `heads` at a time.
inline std::vector<ChunkStep> chunk_steps(const std::vector<Index>& first_heads, std::size_t chunks) {
  std::vector<ChunkStep> steps;
  for (const Index head : first_heads) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) steps.push_back({head, chunk});
  }
  return steps;
}

inline std::vector<Index> marked_heads(const std::vector<Index>& marks) {
  std::vector<Index> heads;
  for (std::size_t head = 0; head < marks.size(); ++head) {
    if (marks[head] != 0) heads.push_back(static_cast<Index>(head));
  }
  return heads;
}
/// Collective: the heads that any rank has marked.
template <class T>
std::vector<Index> marked_on_any_rank(const ParallelCall<T>& call, std::vector<Index> marks) {
  Exchange<Index> exchange(call.transport);
  for (std::size_t n = 0; n < exchange.out.size(); ++n) {
    exchange.out[n] = marks;
    exchange.in[n].resize(marks.size());
  }
  exchange.start();
  exchange.wait();
  std::vector<Index> any(marks.size());
  for (const std::vector<Index>& of_rank : exchange.in) {
    for (std::size_t head = 0; head < any.size(); ++head) any[head] |= of_rank[head];
  }
  return marked_heads(any);
}

template <class T>
void forward_by_chunks(const ParallelCall<T>& call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  const Index kv_heads = call.k.size(1), group = call.q.size(1) / kv_heads;
  const std::vector<RoutedChunk> chunks = routed_chunks(call);
  const KeySizes sizes{1, call.keys.length, call.v.size(3)};
  using Piece = std::unique_ptr<CarriedForward<T>>;
  std::vector<std::vector<Piece>> pieces(static_cast<std::size_t>(kv_heads));  // by head: those that are not finished
  const auto start = [&](Index head) {
    each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
      const auto mine = [&](const auto& x) { return query_heads(rows_between(x, begin, end), head, 1, group); };
      pieces[static_cast<std::size_t>(head)].push_back(std::make_unique<CarriedForward<T>>(
          mine(call.q), sizes, mine(out), mine(lse), call.options_at(rows, head * group), call.context));
    });
  };
  const auto visit = [&](const std::vector<Index>& heads, bool first) {
    const auto work = [&](const ChunkStep& step, const KeyChunk<T>& keys) {
      std::vector<Piece>& here = pieces[static_cast<std::size_t>(step.head)];
      if (first && step.chunk == 0) start(step.head);
      for (const Piece& piece : here) {
        if (chunks[step.chunk].needed) piece->add(keys);
      }
      if (step.chunk + 1 < chunks.size()) return std::unique_ptr<SharesOfChunk<T>>();
      std::vector<Piece> unfinished;
      for (Piece& piece : here) {
        if (piece->finish()) unfinished.push_back(std::move(piece));
      }
      here = std::move(unfinished);
      return std::unique_ptr<SharesOfChunk<T>>();
    };
    visit_chunks(call, chunks, chunk_steps(heads, chunks.size()), 1, work);
  };
  visit(marked_heads(std::vector<Index>(pieces.size(), 1)), true);
  std::vector<Index> overflown;
  for (const std::vector<Piece>& of_head : pieces) overflown.push_back(of_head.empty() ? 0 : 1);
  visit(marked_on_any_rank(call, overflown), false);
}

template <class T>
void backward_by_chunks(const ParallelCall<T>& call, const ForwardResults<T>& results, const AttentionGradients<T>& gradients) {
  RankShares<T> shared(gradients);
  const Index kv_heads = call.k.size(1), group = call.q.size(1) / kv_heads, heads = shared.any() ? kv_heads : 1;
  const std::vector<RoutedChunk> chunks = routed_chunks(call);
  const KeySizes sizes{heads, call.keys.length, call.v.size(3)};
  std::vector<std::unique_ptr<CarriedBackward<T>>> pieces;  // of the heads that are under way
  const auto of_heads = [&](const auto& x, Index head) { return query_heads(x, head, heads, group); };
  const auto start = [&](Index head) {
    pieces.clear();
    each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
      const auto mine = [&](const auto& x) { return of_heads(rows_between(x, begin, end), head); };
      AttentionGradients<T> wanted;
      wanted.dq = mine(gradients.dq);
      wanted.dlse = mine(gradients.dlse);
      wanted.accumulate = gradients.accumulate;
      pieces.push_back(std::make_unique<CarriedBackward<T>>(
          mine(call.q), sizes, BackwardInputs<T>{mine(results.out), mine(results.lse), mine(results.dout)}, wanted,
          call.options_at(rows, head * group), call.context));
    });
  };
  std::vector<Index> coarse(static_cast<std::size_t>(kv_heads)), firsts(coarse.size());
  for (Index head = 0; head < kv_heads; head += heads) {
    firsts[static_cast<std::size_t>(head)] = 1;
    coarse[static_cast<std::size_t>(head)] = lse_is_coarse(of_heads(results.lse, head)) ? 1 : 0;
  }
  const std::vector<Index> twice = marked_on_any_rank(call, coarse);
  std::vector<ChunkStep> steps;
  for (const Index head : marked_heads(firsts)) {
    const auto add = [&](bool maxima) {
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) steps.push_back({head, chunk, maxima});
    };
    if (std::ranges::find(twice, head) != twice.end()) add(true);
    add(false);
  }
  Index begun = -1;
  visit_chunks(call, chunks, steps, heads, [&](const ChunkStep& step, const KeyChunk<T>& keys) {
    const RoutedChunk& chunk = chunks[step.chunk];
    if (std::exchange(begun, step.head) != step.head) start(step.head);
    std::unique_ptr<SharesOfChunk<T>> shares;
    if (!step.maxima) shares = std::make_unique<SharesOfChunk<T>>(call, chunk, step.head, heads, gradients);
    for (const auto& piece : pieces) {
      if (step.maxima) {
        if (chunk.needed) piece->add_maxima(keys);
        if (step.chunk + 1 == chunks.size()) piece->end_maxima();
        continue;
      }
      shared.add({}, [&](const AttentionGradients<T>& of_piece) { piece->add(keys, shares->dk(), shares->dv(), of_piece); });
    }
    return shares;
  });
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist

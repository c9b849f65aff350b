// Ulysses: rows are exchanged for heads, and a rank computes its own heads. Jacobs 2023 (arXiv:2309.14509).
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "dist/call.h"
#include "dist/waiting.h"

namespace qkv::inline v0::dist {
namespace {

/// Arrays of a step on their way, and their memory. A step is one key/value head of each rank, so that two are held at
/// most; all heads where nothing is sent, and where gradients of biases are wanted, whose size a step costs.
struct HeadsUnderWay {
  HeadsUnderWay(const ParallelCall& of, Index number, Index of_steps)
      : call(of), step(number), steps(of_steps), exchange(of.transport) {}

  Index first_head(std::size_t rank, Index all) const {
    const Index share = all / call.transport.size();
    return share * static_cast<Index>(rank) + share / steps * step;
  }
  AnyView of_rank(const AnyView& x, std::size_t rank) const {
    const Index first = first_head(rank, x.size(1));
    return sliced(x, 1, first, first + x.size(1) / call.transport.size() / steps);
  }
  /// Where results of these heads are made: with `length` rows.
  AnyView buffer(const AnyView& x, Index length) {
    return x.is_null() ? x : memory.emplace_back(with_rows(of_rank(x, call.rank()), length), x.type).view;
  }
  /// This rank's heads of a local array with all rows, which arrive.
  AnyView gather(const AnyView& x, const Sequence& rows) {
    const AnyView whole = buffer(x, rows.length);
    if (!x.is_null()) trade(x, whole, rows, true);
    return whole;
  }
  /// The way back, to the rows of all ranks.
  void give_back(const AnyView& whole, const AnyView& x, const Sequence& rows) {
    if (!x.is_null()) trade(x, whole, rows, false);
  }

  const ParallelCall& call;
  Index step, steps;
  std::deque<Buffer> memory;
  Exchange exchange;  // last: it writes there

 private:
  void trade(const AnyView& x, const AnyView& whole, const Sequence& rows, bool gathers) {
    for (std::size_t rank = 0; rank < rows.of_rank.size(); ++rank) {
      for (const Rows& some : rows.of_rank[rank]) {
        const AnyView piece = sliced(whole, 2, some.begin, some.end);
        gathers ? exchange.expect(rank, piece) : exchange.send(rank, piece);
      }
      each_local_piece(of_rank(x, rank), rows.of_rank[call.rank()], rows.all(), [&](const AnyView& piece, const Rows&) {
        gathers ? exchange.send(rank, piece) : exchange.expect(rank, piece);
      });
    }
  }
};

/// work(inputs) for every step, while the inputs of the next one arrive and the results of the last one leave; it makes
/// the results.
template <class Work>
void run_steps(const ParallelCall& call, const Gradients* backward, bool at_once, bool accumulate, const Work& work) {
  struct Inputs : HeadsUnderWay {
    using HeadsUnderWay::HeadsUnderWay;
    Tensors x;
    AnyView dlse;
  };
  const Index ranks = call.transport.size(), steps = at_once || ranks == 1 ? 1 : call.x.k.size(1) / ranks;
  const auto inputs_of = [&](Index step) {
    auto made = std::make_unique<Inputs>(call, step, steps);
    Tensors& x = made->x;
    x.q = made->gather(call.x.q, call.queries);
    x.k = made->gather(call.x.k, call.keys), x.v = made->gather(call.x.v, call.keys);
    if (backward != nullptr) {
      x.out = made->gather(call.x.out, call.queries), x.dout = made->gather(call.x.dout, call.queries);
      x.lse = made->gather(call.x.lse, call.queries), made->dlse = made->gather(backward->dlse, call.queries);
    }
    made->exchange.start();
    return made;
  };
  std::unique_ptr<Inputs> now, next = inputs_of(0);
  std::unique_ptr<HeadsUnderWay> made, leaving;
  for (Index step = 0; step < steps; ++step) {
    next->exchange.finish();
    now = std::exchange(next, nullptr);
    if (step + 1 < steps) next = inputs_of(step + 1);
    made = std::make_unique<HeadsUnderWay>(call, step, steps);
    const AttentionOptions options =
        call.options_at({0, call.queries.length}, now->first_head(call.rank(), call.x.q.size(1)));
    std::optional<UnderWay> others;
    if (ranks > 1)
      others.emplace([&] {
        const bool arrived = next == nullptr || next->exchange.poll();
        return (leaving == nullptr || leaving->exchange.poll()) && arrived;
      });
    const auto leave = work(now->x, now->dlse, options, *made);
    if (others) others->finish();
    if (leaving) leaving->exchange.finish(accumulate);
    leave();
    leaving = std::move(made);
    leaving->exchange.start();
  }
  leaving->exchange.finish(accumulate);
}

}  // namespace

void forward_by_heads(const ParallelCall& call) {
  run_steps(call, nullptr, false, false,
      [&](const Tensors& x, const AnyView&, const AttentionOptions& options, HeadsUnderWay& made) {
        const AnyView out = made.buffer(call.x.out, call.queries.length),
                      lse = made.buffer(call.x.lse, call.queries.length);
        detail::forward(x.q, x.k, x.v, {.out = out, .lse = lse}, options, call.context);
        return [&, out, lse] {
          made.give_back(out, call.x.out, call.queries);
          made.give_back(lse, call.x.lse, call.queries);
        };
      });
}

void backward_by_heads(const ParallelCall& call, const Gradients& g) {
  using Member = AnyView Gradients::*;
  const std::pair<Member, const Sequence*> all[] = {{&Gradients::dq, &call.queries}, {&Gradients::dk, &call.keys},
      {&Gradients::dv, &call.keys}, {&Gradients::dk_sums, &call.keys}, {&Gradients::dv_sums, &call.keys}};
  RankShares shared(g);
  run_steps(call, &g, shared.any(), g.accumulate,
      [&](const Tensors& x, const AnyView& dlse, const AttentionOptions& options, HeadsUnderWay& made) {
        Gradients mine{.dlse = dlse};
        for (const auto& [gradient, rows] : all) mine.*gradient = made.buffer(g.*gradient, rows->length);
        shared.add(mine, [&](const Gradients& wanted) {
          detail::backward(x.q, x.k, x.v, x.out, x.lse, x.dout, wanted, options, call.context);
        });
        return [&, mine] {
          for (const auto& [gradient, rows] : all) made.give_back(mine.*gradient, g.*gradient, *rows);
        };
      });
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist

// Ulysses: rows are exchanged for heads, and a rank computes its own heads. Jacobs 2023 (arXiv:2309.14509).
#include <deque>
#include <memory>
#include <optional>

#include "dist/call.h"
#include "dist/compute.h"
#include "dist/under_way.h"

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
  Array of_rank(const Array& x, std::size_t rank) const {
    const Index first = first_head(rank, x.sizes[1]);
    return x.sliced(1, first, first + x.sizes[1] / call.transport.size() / steps);
  }
  Array buffer(const Array& asked, const std::array<Index, 4>& sizes) {
    return asked.is_null() ? asked : memory.emplace_back(asked.type, sizes).view;
  }
  /// This rank's heads of a local array with all rows, which arrive.
  Array gather(const Array& x, const Sequence& rows) {
    const Array own = of_rank(x, call.rank());
    const Array whole = buffer(x, {own.sizes[0], own.sizes[1], rows.length, own.sizes[3]});
    if (!x.is_null()) trade(x, whole, rows, true);
    return whole;
  }
  /// The way back, to the rows of all ranks.
  void give_back(const Array& whole, const Array& x, const Sequence& rows) {
    if (!x.is_null()) trade(x, whole, rows, false);
  }

  const ParallelCall& call;
  Index step, steps;
  std::deque<Buffer> memory;
  Exchange exchange;  // last: it writes there

 private:
  void trade(const Array& x, const Array& whole, const Sequence& rows, bool gathers) {
    for (std::size_t rank = 0; rank < rows.of_rank.size(); ++rank) {
      for (const Rows& some : rows.of_rank[rank]) {
        const Array piece = whole.sliced(2, some.begin, some.end);
        gathers ? exchange.expect(rank, piece) : exchange.send(rank, piece);
      }
      each_local_piece(of_rank(x, rank), rows.of_rank[call.rank()], rows.all(), [&](const Array& piece, const Rows&) {
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
    Array dlse;
  };
  const Index ranks = call.transport.size(), steps = at_once || ranks == 1 ? 1 : call.x.k.sizes[1] / ranks;
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
    now = std::move(next);
    if (step + 1 < steps) next = inputs_of(step + 1);
    made = std::make_unique<HeadsUnderWay>(call, step, steps);
    const AttentionOptions options =
        call.options_at({0, call.queries.length}, now->first_head(call.rank(), call.x.q.sizes[1]));
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

void forward_by_heads(const ParallelCall& call, const Array& out, const Array& lse) {
  run_steps(call, nullptr, false, false,
      [&](const Tensors& x, const Array&, const AttentionOptions& options, HeadsUnderWay& made) {
        const auto& q = x.q.sizes;
        const Array my_out = made.buffer(out, {q[0], q[1], q[2], x.v.sizes[3]}),
                    my_lse = made.buffer(lse, {q[0], q[1], q[2], 1});
        compute_forward(x.q, x.k, x.v, my_out, my_lse, options, call.context);
        return [&, my_out, my_lse] {
          made.give_back(my_out, out, call.queries);
          made.give_back(my_lse, lse, call.queries);
        };
      });
}

void backward_by_heads(const ParallelCall& call, const Gradients& g) {
  RankShares shared(g);
  run_steps(call, &g, shared.any(), g.accumulate,
      [&](const Tensors& x, const Array& dlse, const AttentionOptions& options, HeadsUnderWay& made) {
        Gradients mine;
        mine.dlse = dlse;
        mine.dq = made.buffer(g.dq, x.q.sizes);
        mine.dk = made.buffer(g.dk, x.k.sizes), mine.dk_sums = made.buffer(g.dk_sums, x.k.sizes);
        mine.dv = made.buffer(g.dv, x.v.sizes), mine.dv_sums = made.buffer(g.dv_sums, x.v.sizes);
        shared.add(mine, [&](const Gradients& all) {
          compute_backward(x.q, x.k, x.v, x.out, x.lse, x.dout, all, options, call.context);
        });
        return [&, mine] {
          made.give_back(mine.dq, g.dq, call.queries);
          made.give_back(mine.dk, g.dk, call.keys), made.give_back(mine.dv, g.dv, call.keys);
          made.give_back(mine.dk_sums, g.dk_sums, call.keys), made.give_back(mine.dv_sums, g.dv_sums, call.keys);
        };
      });
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist

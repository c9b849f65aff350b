// A sequence cut over ranks beside one machine: what all tests of ContextParallel share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "qkv/dist/context_parallel.h"
#include "qkv/dist/in_process.h"
#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

using dist::ContextParallel;
using dist::ContextParallelOptions;
using dist::Method;
using dist::Rows;
using dist::Transport;

constexpr dist::Layout kContiguous = dist::Layout::kContiguous, kZigZag = dist::Layout::kZigZag;

/// body(element of whole, its number in the tensor of these rows alone), by ascending number.
template <class E, class Body>
void each_local(const View<E, 4>& whole, const std::vector<Rows>& rows, const Body& body) {
  Index n = 0;
  for (Index b = 0; b < whole.size(0); ++b) {
    for (Index h = 0; h < whole.size(1); ++h) {
      for (const Rows& some : rows) {
        for (Index i = some.begin; i < some.end; ++i) {
          for (Index d = 0; d < whole.size(3); ++d) body(whole(b, h, i, d), n++);
        }
      }
    }
  }
}
template <class E> Tensor<std::remove_const_t<E>> local_of(const View<E, 4>& whole, const std::vector<Rows>& rows) {
  Index count = 0;
  for (const Rows& some : rows) count += some.count();
  Tensor<std::remove_const_t<E>> local({whole.size(0), whole.size(1), count, whole.size(3)});
  each_local(whole, rows, [&](const E& x, Index n) { local.data()[n] = x; });
  return local;
}
template <class E> void to_whole(const Tensor<E>& local, const std::vector<Rows>& rows, const View<E, 4>& whole) {
  each_local(whole, rows, [&](E& x, Index n) { x = local.data()[n]; });
}
template <class E> View<E, 4> wide(const View<E, 3>& x) {
  return {x.data(), {x.size(0), x.size(1), x.size(2), 1}, {x.stride(0), x.stride(1), x.stride(2), 1}};
}
template <class E> View<E, 3> narrow(const Tensor<std::remove_const_t<E>>& x) {
  return {const_cast<E*>(x.data()), {x.size(0), x.size(1), x.size(2)}};
}

/// A rank's rows of a problem, and its results.
template <class T> struct OnRank {
  using Sum = Accumulator<T>;

  const Problem<T>& problem;
  Context context;
  ContextParallel cp;
  std::vector<Rows> q_rows, k_rows;
  Tensor<T> q, k, v, dout, out, dq, dk, dv;
  Tensor<Sum> dlse, lse, dbias, dsinks, dposition;

  /// `like`: results of the whole, whose shared gradients are wanted.
  OnRank(const Problem<T>& of, Transport& transport, const ContextParallelOptions& cut, Isa isa, const Result<T>& like)
      : problem(of),
        context({.threads = 1, .isa = isa, .executor = nullptr}),
        cp(transport, cut, context),
        q_rows(cp.rows(of.c.q_len)),
        k_rows(cp.rows(of.c.kv_len)),
        q(local_of(of.q(), q_rows)),
        k(local_of(of.k(), k_rows)),
        v(local_of(of.v(), k_rows)),
        dout(local_of(of.dout.view, q_rows)),
        out(dout.sizes()),
        dq(q.sizes()),
        dk(k.sizes()),
        dv(v.sizes()),
        dlse(local_of(wide(View<const Sum, 3>(of.dlse)), q_rows)),
        lse(dlse.sizes()) {
    if (!of.bias.is_null()) dbias = Tensor<Sum>(like.dbias.sizes());
    if (like.dsinks.data() != nullptr) dsinks = Tensor<Sum>(like.dsinks.sizes());
    if (like.dposition.data() != nullptr) dposition = Tensor<Sum>(like.dposition.sizes());
    for (Tensor<T>* x : {&out, &dq, &dk, &dv}) std::ranges::fill(x->span(), static_cast<T>(std::nanf("")));
  }
  void run(bool accumulate = false) {
    cp.forward(q, k, v, out, narrow<Sum>(lse), problem.options);
    AttentionGradients<T> wanted;
    wanted.dq = dq, wanted.dk = dk, wanted.dv = dv, wanted.dlse = narrow<const Sum>(dlse);
    if (dbias.data() != nullptr) wanted.dbias = dbias;
    if (dsinks.data() != nullptr) wanted.dsinks = dsinks;
    if (dposition.data() != nullptr) wanted.dposition_bias = dposition;
    wanted.accumulate = accumulate;
    cp.backward(q, k, v, out, narrow<const Sum>(lse), dout, wanted, problem.options);
  }
};

/// The results of `ranks` ranks, put together; shared gradients are those of rank 0, which must be every rank's. The
/// instruction sets are the ranks' in turn.
template <class T> void run_cut(const Problem<T>& problem, int ranks, const ContextParallelOptions& cut,
    const std::vector<Isa>& isas, Result<T>& all) {
  std::mutex mutex;
  int shared = 0;
  dist::run_in_process(ranks, [&](Transport& transport) {
    OnRank<T> mine = [&] {
      const std::lock_guard lock(mutex);  // shared gradients are replaced below
      const Isa isa = isas[static_cast<std::size_t>(transport.rank()) % isas.size()];
      return OnRank<T>(problem, transport, cut, isa, all);
    }();
    mine.run();
    const std::lock_guard lock(mutex);
    to_whole(mine.out, mine.q_rows, all.out.view);
    to_whole(mine.lse, mine.q_rows, wide(View<Accumulator<T>, 3>(all.lse)));
    to_whole(mine.dq, mine.q_rows, all.gradients.views[0]);
    to_whole(mine.dk, mine.k_rows, all.gradients.views[1]);
    to_whole(mine.dv, mine.k_rows, all.gradients.views[2]);
    for (const auto& [own, theirs] :
        {std::pair(&mine.dbias, &all.dbias), {&mine.dsinks, &all.dsinks}, {&mine.dposition, &all.dposition}}) {
      if (own->data() == nullptr) continue;
      if (shared > 0) {
        EXPECT_TRUE(same_bits(*own, *theirs)) << "shared gradients differ between ranks";
      }
      *theirs = std::move(*own);
    }
    ++shared;
  });
}

/// A message for the log.
std::string name_of(int ranks, const ContextParallelOptions& cut) {
  const char* method = cut.method == Method::kUlysses ? "ulysses" : cut.method == Method::kRing ? "ring" : "all-gather";
  const char* layout = cut.layout == kZigZag ? "zig-zag" : "contiguous";
  return std::to_string(ranks) + " ranks, " + method + ", " + layout + ", block " + std::to_string(cut.block);
}

template <class T> void expect_same_rows(const View<T, 4>& a, const View<T, 4>& b, bool zeros, const char* what) {
  const std::vector<Rows> all{{0, a.size(2)}};
  const Tensor<T> x = local_of(a, all), y = local_of(b, all);
  if (!zeros) {
    EXPECT_TRUE(same_bits(x, y)) << what;
    return;
  }
  for (Index n = 0; n < x.count(); ++n) {  // of either sign
    const auto p = number_as<double>(x.data()[n]), q = number_as<double>(y.data()[n]);
    ASSERT_TRUE(p == q || (std::isnan(p) && std::isnan(q))) << what;
  }
}

template <class T> void expect_cut_is_whole(const Problem<T>& problem, const std::vector<ContextParallelOptions>& cuts,
    const std::vector<int>& ranks, Isa isa, Worst& worst) {
  const AttentionCase& each = problem.c;
  SCOPED_TRACE(each.name());
  const Expectation<T> expected(problem);
  Context context({.threads = 2, .isa = isa, .executor = nullptr});
  Result<T> whole(problem);
  whole.run_forward(problem, context);
  whole.run_backward(problem, context);
  for (const int size : ranks) {
    for (const ContextParallelOptions& cut : cuts) {
      if (cut.method == Method::kUlysses && each.num_kv_heads % size != 0) continue;
      SCOPED_TRACE(name_of(size, cut));
      Result<T> all(problem);
      run_cut(problem, size, cut, {isa}, all);
      const bool zeros = each.scale == ScaleKind::kZero;
      expect_same_rows(all.out.view, whole.out.view, false, "out");
      EXPECT_TRUE(same_bits(all.lse, whole.lse)) << "lse";
      expect_same_rows(all.gradients.views[0], whole.gradients.views[0], zeros, "dq");
      if (cut.method == Method::kUlysses || size == 1) {
        expect_same_rows(all.gradients.views[1], whole.gradients.views[1], zeros, "dk");
        expect_same_rows(all.gradients.views[2], whole.gradients.views[2], false, "dv");
      }
      EXPECT_TRUE(expected.holds_backward(all, each.name(), worst));
    }
  }
}

template <class T> void expect_cut_is_whole(const AttentionCase& each, const std::vector<ContextParallelOptions>& cuts,
    const std::vector<int>& ranks, Isa isa, Worst& worst) {
  expect_cut_is_whole(Problem<T>(each), cuts, ranks, isa, worst);
}

}  // namespace
}  // namespace qkv::test

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

/// Copies rows of whole to local one after the other, or back.
template <class E>
Tensor<std::remove_const_t<E>> local_of(const View<E, 4>& whole, const std::vector<Rows>& rows) {
  Index count = 0;
  for (const Rows& some : rows) count += some.count();
  Tensor<std::remove_const_t<E>> local({whole.size(0), whole.size(1), count, whole.size(3)});
  const View<std::remove_const_t<E>, 4> to = local;
  for (Index b = 0; b < to.size(0); ++b) {
    for (Index h = 0; h < to.size(1); ++h) {
      Index i = 0;
      for (const Rows& some : rows) {
        for (Index from = some.begin; from < some.end; ++from, ++i) {
          for (Index d = 0; d < to.size(3); ++d) to(b, h, i, d) = whole(b, h, from, d);
        }
      }
    }
  }
  return local;
}
template <class E>
void to_whole(const Tensor<E>& local, const std::vector<Rows>& rows, const View<E, 4>& whole) {
  const View<const E, 4> from = local;
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index h = 0; h < from.size(1); ++h) {
      Index i = 0;
      for (const Rows& some : rows) {
        for (Index to = some.begin; to < some.end; ++to, ++i) {
          for (Index d = 0; d < from.size(3); ++d) whole(b, h, to, d) = from(b, h, i, d);
        }
      }
    }
  }
}
template <class E>
View<E, 4> wide(const View<E, 3>& x) {
  return {x.data(), {x.size(0), x.size(1), x.size(2), 1}, {x.stride(0), x.stride(1), x.stride(2), 1}};
}
template <class E>
View<E, 3> narrow(const Tensor<std::remove_const_t<E>>& x) {
  return {const_cast<E*>(x.data()), {x.size(0), x.size(1), x.size(2)}};
}

/// What `ranks` ranks give, put together; shared gradients are those of rank 0, which must be every rank's.
template <class T>
void run_cut(const Problem<T>& problem, int ranks, const ContextParallelOptions& cut, Isa isa, Result<T>& all) {
  using Sum = Accumulator<T>;
  std::mutex mutex;
  int shared = 0;
  dist::run_in_process(ranks, [&](Transport& transport) {
    Context context({.threads = 1, .isa = isa, .executor = nullptr});
    ContextParallel cp(transport, cut, context);
    const std::vector<Rows> q_rows = cp.rows(problem.c.q_len), k_rows = cp.rows(problem.c.kv_len);
    const Tensor<T> q = local_of(problem.q(), q_rows), k = local_of(problem.k(), k_rows), v = local_of(problem.v(), k_rows),
                    dout = local_of(problem.dout.view, q_rows);
    const Tensor<Sum> dlse = local_of(wide(View<const Sum, 3>(problem.dlse)), q_rows);
    Tensor<T> out(dout.sizes()), dq(q.sizes()), dk(k.sizes()), dv(v.sizes());
    Tensor<Sum> lse(dlse.sizes()), dbias, dsinks, dposition;
    for (Tensor<T>* x : {&out, &dq, &dk, &dv}) std::ranges::fill(x->span(), static_cast<T>(std::nanf("")));
    cp.forward(q, k, v, out, narrow<Sum>(lse), problem.options);
    AttentionGradients<T> wanted;
    wanted.dq = dq, wanted.dk = dk, wanted.dv = dv, wanted.dlse = narrow<const Sum>(dlse);
    const auto like = [](const Tensor<Sum>& x) { return Tensor<Sum>(x.sizes()); };
    if (!problem.bias.is_null()) wanted.dbias = dbias = like(all.dbias);
    if (all.dsinks.data() != nullptr) wanted.dsinks = dsinks = like(all.dsinks);
    if (all.dposition.data() != nullptr) wanted.dposition_bias = dposition = like(all.dposition);
    cp.backward(q, k, v, out, narrow<const Sum>(lse), dout, wanted, problem.options);
    const std::lock_guard lock(mutex);
    to_whole(out, q_rows, all.out.view);
    to_whole(lse, q_rows, wide(View<Sum, 3>(all.lse)));
    to_whole(dq, q_rows, all.gradients.views[0]);
    to_whole(dk, k_rows, all.gradients.views[1]);
    to_whole(dv, k_rows, all.gradients.views[2]);
    for (const auto& [mine, theirs] : {std::pair(&dbias, &all.dbias), {&dsinks, &all.dsinks}, {&dposition, &all.dposition}}) {
      if (mine->data() == nullptr) continue;
      if (shared > 0) {
        EXPECT_TRUE(same_bits(*mine, *theirs)) << "shared gradients differ between ranks";
      }
      *theirs = std::move(*mine);
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

template <class T>
void expect_same_rows(const View<T, 4>& a, const View<T, 4>& b, bool zeros, const char* what) {
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

template <class T>
void expect_cut_is_whole(const Problem<T>& problem, const std::vector<ContextParallelOptions>& cuts,
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
      run_cut(problem, size, cut, isa, all);
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

template <class T>
void expect_cut_is_whole(const AttentionCase& each, const std::vector<ContextParallelOptions>& cuts,
                         const std::vector<int>& ranks, Isa isa, Worst& worst) {
  expect_cut_is_whole(Problem<T>(each), cuts, ranks, isa, worst);
}

}  // namespace
}  // namespace qkv::test

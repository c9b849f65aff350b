// One call of ContextParallel as all of its methods see it: checked here, agreed on with the other ranks, lengths known. Not: the
// methods (context_parallel.cc).
#pragma once

#include <array>
#include <exception>

#include "dist/claims.h"
#include "dist/exchange.h"
#include "dist/rows.h"

namespace qkv::inline v0::dist {

/// What backward needs of forward, and the gradient that arrives. Local.
template <class T>
struct ForwardResults {
  View<const T, 4> out, dout;
  View<const Accumulator<T>, 3> lse;
};

template <class T>
struct ParallelCall {
  const char* function;
  Transport& transport;
  const ContextParallelOptions& cut;
  Context& context;
  const AttentionOptions& options;
  View<const T, 4> q, k, v;  // local
  Sequence queries, keys;
  std::vector<std::vector<Rows>> needed = {};  // by rank: the keys that its queries may attend

  std::size_t rank() const { return static_cast<std::size_t>(transport.rank()); }

  /// The shapes of q, k, v and of a tensor beside q; `name` is what that is called.
  void check_rows() const {
    check<ShapeError>(k.size(0) == q.size(0) && v.size(0) == q.size(0), function, "q, k and v must have the same batch: got q ",
                      q, ", k ", k, ", v ", v);
    check<ShapeError>(k.size(3) == q.size(3), function, "head_dim of k must equal head_dim of q: got q ", q, ", k ", k);
    check<ShapeError>(k.size(1) == v.size(1) && k.size(2) == v.size(2), function,
                      "heads and length of v must equal those of k: got k ", k, ", v ", v);
    check<ShapeError>(k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0, function,
                      "heads of k must divide heads of q: got q ", q, ", k ", k);
    check<OptionError>(
        options.place.first_query == 0 && options.place.queries < 0 && options.place.first_head == 0 && options.place.heads < 0,
        function, "place must be left alone: it follows from the ranks' rows");
    check<UnsupportedError>(options.capture.what == nullptr, function,
                            "captures are not supported: capture on one machine, by attention_forward");
    check<UnsupportedError>(
        cut.method != Method::kUlysses || k.size(1) % transport.size() == 0, function,
        "Ulysses gives each rank the same number of key/value heads: take Method::kAllGather, or a number of ranks that "
        "divides them: got ",
        k.size(1), " heads, ", transport.size(), " ranks");
  }
  void check_beside_q(const char* name, const std::array<Index, 4>& sizes, Index width) const {
    const std::array<Index, 4> wanted{q.size(0), q.size(1), q.size(2), width};
    check<ShapeError>(
        sizes == wanted, function, name, " must be ", [&] { return shape_text(wanted.data(), 4); }, ": got ",
        [&] { return shape_text(sizes.data(), 4); });
  }

  /// Collective: `checks` throws where this rank's arguments are wrong; then every rank throws. `claims` are the method's own.
  template <class Checks>
  void agree(std::vector<Claim> claims, const Checks& checks) {
    claims.insert(claims.begin(),
                  {{"call", function}, {"q", sizes_but_length(q)}, {"k", sizes_but_length(k)}, {"v", sizes_but_length(v)}});
    add_claims(claims, cut, options, context);
    std::exception_ptr wrong;
    std::string text = "as expected";
    try {
      check_rows();
      checks();
    } catch (const Error& error) {
      wrong = std::current_exception();
      text = error.what();
    }
    claims.insert(claims.begin(), Claim{"arguments", text});
    dist::agree(transport, claims);
    if (wrong) std::rethrow_exception(wrong);
    share_lengths();
  }

  /// The options of some of this rank's rows of all queries, and of heads from first_head on.
  AttentionOptions options_at(const Rows& rows, Index first_head) const {
    AttentionOptions placed = options;
    placed.place = {rows.begin, queries.length, first_head, q.size(1)};
    return placed;
  }
  /// The options of a part of this rank's heads.
  AttentionOptions options_of_heads(const HeadPart& of) const {
    AttentionOptions placed = options;
    const Index share = q.size(1) / transport.size();
    placed.place.first_head = share * transport.rank() + share / of.parts * of.part;
    placed.place.heads = q.size(1);
    return placed;
  }

 private:
  void share_lengths() {
    const std::array<Index, 2> mine{q.size(2), k.size(2)};
    Exchange<Index> exchange(transport);
    for (std::size_t n = 0; n < exchange.out.size(); ++n) {
      exchange.out[n] = mine;
      exchange.in[n].resize(2);
    }
    exchange.start();
    exchange.wait();
    queries = sequence_of("q", exchange.in, 0);
    keys = sequence_of("k", exchange.in, 1);
    for (const std::vector<Rows>& rows : queries.of_rank) needed.push_back(keys_of(rows));
  }
  /// By the mask's verdicts on blocks of keys. The two fills of empty rows read every value.
  std::vector<Rows> keys_of(const std::vector<Rows>& rows) const {
    constexpr Index block = 128;
    if (options.mask.keeps_everything() || options.empty_row != EmptyRow::kZero) return keys.all();
    const std::array<Index, 4> sizes{q.size(0), q.size(1), queries.length, keys.length};
    std::vector<Rows> live;
    for (Index begin = 0; begin < keys.length; begin += block) {
      const Index end = std::min(begin + block, keys.length);
      bool any = false;
      for (const Rows& some : rows) any = any || mask_may_keep(options.mask, sizes, some.begin, some.end, begin, end);
      if (!any) continue;
      if (!live.empty() && live.back().end == begin) {
        live.back().end = end;
      } else {
        live.push_back({begin, end});
      }
    }
    return live;
  }
  Sequence sequence_of(const char* name, const std::vector<std::vector<Index>>& lengths, std::size_t which) const {
    Sequence whole;
    for (const std::vector<Index>& length : lengths) whole.length += length[which];
    const int ranks = transport.size();
    whole.of_rank = rows_of_ranks(cut, whole.length, ranks);
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      check<ShapeError>(lengths[n][which] == whole.count(n), function, "every rank must hold rows(T): of T ", whole.length,
                        " rows of ", name, ", rank ", n, " must hold ", whole.count(n), ": got ", lengths[n][which]);
    }
    return whole;
  }
};

}  // namespace qkv::inline v0::dist

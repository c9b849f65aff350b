// Tensors between ranks: numbers of rows, one message to each rank. "Local" tensors hold a rank's rows one after the other, whole
// ones all rows of the sequence. Not: what goes where (context_parallel.cc), the lines (qkv/dist/transport.h).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "qkv/dist/context_parallel.h"

namespace qkv::inline v0::dist {

/// The rows of every rank, and how many there are.
struct Sequence {
  std::vector<std::vector<Rows>> of_rank;
  Index length = 0;

  std::vector<Rows> all() const { return {{0, length}}; }
  Index count(std::size_t rank) const {
    Index n = 0;
    for (const Rows& rows : of_rank[rank]) n += rows.count();
    return n;
  }
};

/// body(first element) for every row of width x.size(3).
template <class E, class Body>
void each_row(const View<E, 4>& x, const Body& body) {
  for (Index b = 0; b < x.size(0); ++b) {
    for (Index h = 0; h < x.size(1); ++h) {
      for (Index i = 0; i < x.size(2); ++i) body(x.data() + b * x.stride(0) + h * x.stride(1) + i * x.stride(2));
    }
  }
}

/// [B, H, T] as [B, H, T, 1]; null stays null.
template <class E>
View<E, 4> with_width(const View<E, 3>& x) {
  if (x.is_null()) return {};
  return {x.data(), {x.size(0), x.size(1), x.size(2), 1}, {x.stride(0), x.stride(1), x.stride(2), 1}};
}

/// body(rows of x) for each piece that is in both lists: x is a local tensor of `rows`, or a whole one.
template <class E, class Body>
void each_local_piece(const View<E, 4>& x, const std::vector<Rows>& rows, const std::vector<Rows>& wanted, const Body& body) {
  Index begin = 0;
  for (const Rows& mine : rows) {
    for (const Rows& some : wanted) {
      const Index from = std::max(mine.begin, some.begin), to = std::min(mine.end, some.end);
      if (from < to) body(x.sliced(2, begin + from - mine.begin, begin + to - mine.begin));
    }
    begin += mine.count();
  }
}
template <class E, class Body>
void each_whole_piece(const View<E, 4>& x, const std::vector<Rows>& rows, const std::vector<Rows>& wanted, const Body& body) {
  for (const Rows& mine : rows) {
    for (const Rows& some : wanted) {
      const Index from = std::max(mine.begin, some.begin), to = std::min(mine.end, some.end);
      if (from < to) body(x.sliced(2, from, to));
    }
  }
}
/// How many rows are in both.
inline Index count_both(const std::vector<Rows>& rows, const std::vector<Rows>& wanted) {
  Index n = 0;
  for (const Rows& mine : rows) {
    for (const Rows& some : wanted) n += std::max<Index>(0, std::min(mine.end, some.end) - std::max(mine.begin, some.begin));
  }
  return n;
}

/// Appends the numbers of x to a message, and writes a message's numbers to x: set(number of x, number of the message).
template <class E>
void append(std::vector<std::remove_const_t<E>>& message, const View<E, 4>& x) {
  each_row(x, [&](const E* row) { message.insert(message.end(), row, row + x.size(3)); });
}
template <class E, class Number, class Set>
void take(const Number*& message, const View<E, 4>& x, const Set& set) {
  each_row(x, [&](E* row) {
    for (Index d = 0; d < x.size(3); ++d) set(row[d], *message++);
  });
}
template <class E>
void take(const E*& message, const View<E, 4>& x) {
  each_row(x, [&](E* row) {
    std::copy_n(message, x.size(3), row);
    message += x.size(3);
  });
}

/// One message to and from every rank. start() once `out` holds what goes to each rank and `in` has the size of what comes; both
/// stay as they are until wait() returns.
template <class E>
class Exchange {
 public:
  explicit Exchange(Transport& transport)
      : out(static_cast<std::size_t>(transport.size())), in(out.size()), transport_(transport) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  /// What was started ends before its bytes go away, also where this rank's work has thrown.
  ~Exchange() {
    try {
      wait();
    } catch (const Error&) {  // the transport has failed, and touches no bytes any more
    }
  }

  void start() {
    const auto me = static_cast<std::size_t>(transport_.rank()), ranks = out.size();
    for (std::size_t step = 1; step < ranks; ++step) {  // each begins with its neighbour
      const std::size_t from = (me + ranks - step) % ranks;
      tickets_.push_back(transport_.receive(static_cast<int>(from), std::as_writable_bytes(std::span(in[from]))));
    }
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t to = (me + step) % ranks;
      tickets_.push_back(transport_.send(static_cast<int>(to), std::as_bytes(out[to])));
    }
    std::ranges::copy(out[me], in[me].begin());
  }
  void wait() {
    dist::wait(transport_, tickets_);
    tickets_.clear();
  }
  /// Moves messages on; whether all are done.
  bool poll() {
    std::erase_if(tickets_, [&](const Ticket ticket) { return transport_.poll(ticket); });
    return tickets_.empty();
  }

  std::vector<std::span<const E>> out;  // by rank
  std::vector<std::vector<E>> in;

 private:
  Transport& transport_;
  std::vector<Ticket> tickets_;
};

/// Rows of a tensor [B, H, local T, width] on the ranks that need them: [B, H, T, width], zeros in rows that are not needed.
/// needed[r]: the rows that rank r needs, in ascending order.
template <class T>
class GatherRows {
 public:
  GatherRows(Transport& transport, const View<const T, 4>& local, const Sequence& rows,
             const std::vector<std::vector<Rows>>& needed)
      : rows_(rows),
        mine_(needed[static_cast<std::size_t>(transport.rank())]),
        whole_({local.size(0), local.size(1), rows.length, local.size(3)}),
        messages_(static_cast<std::size_t>(transport.size())),
        exchange_(transport) {
    const auto me = static_cast<std::size_t>(transport.rank());
    for (std::size_t rank = 0; rank < exchange_.out.size(); ++rank) {
      each_local_piece(local, rows.of_rank[me], needed[rank],
                       [&](const View<const T, 4>& piece) { append(messages_[rank], piece); });
      exchange_.out[rank] = messages_[rank];
      const Index count = count_both(rows.of_rank[rank], mine_);
      exchange_.in[rank].resize(static_cast<std::size_t>(local.size(0) * local.size(1) * count * local.size(3)));
    }
    exchange_.start();
  }
  bool poll() { return exchange_.poll(); }
  Tensor<T> wait() {
    exchange_.wait();
    for (std::size_t rank = 0; rank < exchange_.in.size(); ++rank) {
      const T* message = exchange_.in[rank].data();
      each_whole_piece(View<T, 4>(whole_), rows_.of_rank[rank], mine_, [&](const View<T, 4>& piece) { take(message, piece); });
      exchange_.in[rank] = {};
    }
    return std::move(whole_);
  }

 private:
  const Sequence& rows_;
  const std::vector<Rows>& mine_;
  Tensor<T> whole_;
  std::vector<std::vector<T>> messages_;
  Exchange<T> exchange_;  // last: it reads the messages
};

/// Which heads of a tensor are exchanged at once: of each rank's heads / ranks, one part of `parts`.
struct HeadPart {
  Index part, parts;
};
template <class E>
View<E, 4> heads_of(const View<E, 4>& x, std::size_t rank, std::size_t ranks, const HeadPart& of) {
  const Index share = x.size(1) / static_cast<Index>(ranks), count = share / of.parts;
  const Index begin = share * static_cast<Index>(rank) + count * of.part;
  return x.sliced(1, begin, begin + count);
}

/// Rows for heads: some of each rank's heads of a tensor [B, H, local T, width]. A rank gets its own ones, [B, heads, T, width].
template <class T>
class RowsForHeads {
 public:
  /// A null view gives a tensor without data.
  RowsForHeads(Transport& transport, const View<const T, 4>& local, const Sequence& rows, const HeadPart& of)
      : rows_(rows), messages_(static_cast<std::size_t>(transport.size())), exchange_(transport) {
    if (local.is_null()) return;
    const std::size_t ranks = messages_.size(), me = static_cast<std::size_t>(transport.rank());
    const Index heads = local.size(1) / static_cast<Index>(ranks) / of.parts;
    whole_ = Tensor<T>({local.size(0), heads, rows.length, local.size(3)});
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      each_local_piece(heads_of(local, rank, ranks, of), rows.of_rank[me], rows.all(),
                       [&](const View<const T, 4>& piece) { append(messages_[rank], piece); });
      exchange_.out[rank] = messages_[rank];
      exchange_.in[rank].resize(static_cast<std::size_t>(local.size(0) * heads * rows.count(rank) * local.size(3)));
    }
    exchange_.start();
  }
  bool poll() { return exchange_.poll(); }
  Tensor<T> wait() {
    exchange_.wait();
    for (std::size_t rank = 0; rank < messages_.size() && whole_.rank() != 0; ++rank) {
      const T* message = exchange_.in[rank].data();
      each_whole_piece(View<T, 4>(whole_), rows_.of_rank[rank], rows_.all(),
                       [&](const View<T, 4>& piece) { take(message, piece); });
      exchange_.in[rank] = {};
    }
    return std::move(whole_);
  }

 private:
  const Sequence& rows_;
  Tensor<T> whole_;
  std::vector<std::vector<T>> messages_;
  Exchange<T> exchange_;  // last: it reads the messages
};

/// The way back: this rank's [B, heads, T, width] of those heads, to the rows of all ranks. Null: nothing.
template <class T>
class HeadsForRows {
 public:
  HeadsForRows(Transport& transport, const View<const T, 4>& whole, const Sequence& rows, const HeadPart& of)
      : rows_(rows),
        me_(static_cast<std::size_t>(transport.rank())),
        of_(of),
        messages_(static_cast<std::size_t>(transport.size())),
        exchange_(transport) {
    if (whole.is_null()) return;
    for (std::size_t rank = 0; rank < messages_.size(); ++rank) {
      each_whole_piece(whole, rows.of_rank[rank], rows.all(),
                       [&](const View<const T, 4>& piece) { append(messages_[rank], piece); });
      exchange_.out[rank] = messages_[rank];
      exchange_.in[rank].resize(static_cast<std::size_t>(whole.size(0) * whole.size(1) * rows.count(me_) * whole.size(3)));
    }
    exchange_.start();
  }
  bool poll() { return exchange_.poll(); }
  /// set(number of local, number that came) for those heads of local [B, H, local T, width].
  template <class E, class Set>
  void wait(const View<E, 4>& local, const Set& set) {
    exchange_.wait();
    for (std::size_t rank = 0; rank < messages_.size() && !local.is_null(); ++rank) {
      const T* message = exchange_.in[rank].data();
      each_local_piece(heads_of(local, rank, messages_.size(), of_), rows_.of_rank[me_], rows_.all(),
                       [&](const View<E, 4>& piece) { take(message, piece, set); });
    }
  }

 private:
  const Sequence& rows_;
  std::size_t me_;
  HeadPart of_;
  std::vector<std::vector<T>> messages_;
  Exchange<T> exchange_;  // last: it reads the messages
};

/// Shares of a sum go to the ranks that hold its rows: whole [B, H, T, width] of every rank, added in order of ranks. A rank has
/// shares of the rows that it needs, as above.
template <class Sum>
class SumToOwners {
 public:
  SumToOwners(Transport& transport, const View<const Sum, 4>& whole, const Sequence& rows,
              const std::vector<std::vector<Rows>>& needed)
      : rows_(rows.of_rank[static_cast<std::size_t>(transport.rank())]),
        needed_(needed),
        sums_({whole.size(0), whole.size(1), rows.count(static_cast<std::size_t>(transport.rank())), whole.size(3)}),
        messages_(static_cast<std::size_t>(transport.size())),
        exchange_(transport) {
    const std::vector<Rows>& mine = needed[static_cast<std::size_t>(transport.rank())];
    for (std::size_t rank = 0; rank < messages_.size(); ++rank) {
      each_whole_piece(whole, rows.of_rank[rank], mine,
                       [&](const View<const Sum, 4>& piece) { append(messages_[rank], piece); });
      exchange_.out[rank] = messages_[rank];
      const Index count = count_both(rows_, needed[rank]);
      exchange_.in[rank].resize(static_cast<std::size_t>(whole.size(0) * whole.size(1) * count * whole.size(3)));
    }
    exchange_.start();
  }
  bool poll() { return exchange_.poll(); }
  /// The sums of this rank's rows, [B, H, local T, width].
  Tensor<Sum> wait() {
    exchange_.wait();
    for (std::size_t rank = 0; rank < messages_.size(); ++rank) {
      const Sum* message = exchange_.in[rank].data();
      each_local_piece(View<Sum, 4>(sums_), rows_, needed_[rank],
                       [&](const View<Sum, 4>& piece) { take(message, piece, [](Sum& sum, Sum share) { sum += share; }); });
    }
    return std::move(sums_);
  }

 private:
  const std::vector<Rows>& rows_;
  const std::vector<std::vector<Rows>>& needed_;
  Tensor<Sum> sums_;
  std::vector<std::vector<Sum>> messages_;
  Exchange<Sum> exchange_;  // last: it reads the messages
};

}  // namespace qkv::inline v0::dist

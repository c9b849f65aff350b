#include "dist/exchange.h"

#include <cstring>
#include <new>

#include "attention/call/tensor_checks.h"

namespace qkv::inline v0::dist {
namespace {

std::size_t bytes_of(const AnyView& x) { return static_cast<std::size_t>(count_of(x) * x.element_bytes()); }

template <class T, class From> void add_numbers(
    const std::byte* from, Index from_stride, std::byte* to, Index to_stride, Index count, bool accumulate) {
  using Sum = Accumulator<T>;
  for (Index n = 0; n < count; ++n) {
    From number;
    std::memcpy(&number, from + n * from_stride, sizeof(From));
    T& sum = *reinterpret_cast<T*>(to + n * to_stride);
    sum = static_cast<T>(accumulate ? static_cast<Sum>(sum) + static_cast<Sum>(number) : static_cast<Sum>(number));
  }
}

void write_row(const AnyView& to, const AnyView& from, bool accumulate) {
  const Index count = to.sizes[0], bytes = from.element_bytes();
  const Index to_stride = to.strides[0] * to.element_bytes(), from_stride = from.strides[0] * bytes;
  const bool copies = to.type == from.type && !accumulate;
  if (copies && to_stride == bytes && from_stride == bytes) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(count * bytes));
    return;
  }
  with_sums(to.type, [&]<class Sum>(Sum) {
    with_elements<Sum>(to.type, [&]<class T>(T) {
      const auto add = to.type == from.type ? add_numbers<T, T> : add_numbers<T, Sum>;
      add(from.data, from_stride, to.data, to_stride, count, accumulate);
    });
  });
}

/// The first element of the first axis.
AnyView inner(AnyView x) {
  std::copy(x.sizes.begin() + 1, x.sizes.end(), x.sizes.begin());
  std::copy(x.strides.begin() + 1, x.strides.end(), x.strides.begin());
  --x.rank;
  return x;
}

}  // namespace

void write(const AnyView& to, const AnyView& from, bool accumulate) {
  if (to.is_empty()) return;
  if (to.rank == 1) return write_row(to, from, accumulate);
  AnyView here = inner(to), there = inner(from);
  for (Index n = 0; n < to.sizes[0]; ++n) {
    write(here, there, accumulate);
    here.data += to.strides[0] * to.element_bytes();
    there.data += from.strides[0] * from.element_bytes();
  }
}

Index Sequence::count(std::size_t rank) const {
  Index n = 0;
  for (const Rows& rows : of_rank[rank]) n += rows.count();
  return n;
}

std::vector<Rows> rows_in_both(const std::vector<Rows>& a, const std::vector<Rows>& b) {
  std::vector<Rows> both;
  for (const Rows& one : a) {
    for (const Rows& other : b) {
      const Rows rows{std::max(one.begin, other.begin), std::min(one.end, other.end)};
      if (rows.begin < rows.end) both.push_back(rows);
    }
  }
  return both;
}

Exchange::Exchange(Transport& transport)
    : transport_(transport), of_rank_(static_cast<std::size_t>(transport.size())) {}

Exchange::~Exchange() {
  try {
    wait();
  } catch (const Error&) {  // the transport has failed, and touches no bytes any more
  } catch (const std::bad_alloc&) {
  }
}

void Exchange::send(std::size_t rank, const AnyView& piece) {
  std::vector<std::byte>& out = of_rank_[rank].out;
  const std::size_t begin = out.size();
  out.resize(begin + bytes_of(piece));
  write(packed(piece, piece.type, out.data() + begin), piece);
}

void Exchange::expect(std::size_t rank, const AnyView& piece) {
  Message& message = of_rank_[rank];
  message.pieces.push_back(piece);
  message.in.resize(message.in.size() + bytes_of(piece));
}

void Exchange::start() {
  const auto me = static_cast<std::size_t>(transport_.rank()), ranks = of_rank_.size();
  // None is lost when memory is out.
  tickets_.reserve(2 * ranks);
  for (std::size_t step = 1; step < ranks; ++step) {  // each begins with its neighbour
    const std::size_t from = (me + ranks - step) % ranks;
    tickets_.push_back(transport_.receive(static_cast<int>(from), of_rank_[from].in));
  }
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t to = (me + step) % ranks;
    tickets_.push_back(transport_.send(static_cast<int>(to), of_rank_[to].out));
  }
  of_rank_[me].in = std::move(of_rank_[me].out);
}

bool Exchange::poll() {
  std::erase_if(tickets_, [&](const Ticket ticket) { return transport_.poll(ticket); });
  return tickets_.empty();
}

void Exchange::wait() {
  dist::wait(transport_, tickets_);
  tickets_.clear();
}

void Exchange::finish(bool accumulate) {
  wait();
  for (Message& message : of_rank_) {
    std::byte* numbers = message.in.data();
    for (const AnyView& piece : message.pieces) {
      write(piece, packed(piece, piece.type, numbers), accumulate);
      numbers += bytes_of(piece);
    }
    message = {};
  }
}

}  // namespace qkv::inline v0::dist

#include "dist/exchange.h"

#include <cstring>

namespace qkv::inline v0::dist {
namespace {

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

/// Numbers whose strides are bytes.
void write_row(const Array& to, std::byte* row, const Array& from, const std::byte* numbers, bool accumulate) {
  const Index count = to.sizes[3], bytes = bytes_of(from.type);
  const Index to_stride = to.strides[3] * bytes_of(to.type), from_stride = from.strides[3] * bytes;
  if (to.type == from.type && !accumulate) {
    if (to_stride == bytes && from_stride == bytes) {
      std::memcpy(row, numbers, static_cast<std::size_t>(count * bytes));
      return;
    }
    for (Index n = 0; n < count; ++n)
      std::memcpy(row + n * to_stride, numbers + n * from_stride, static_cast<std::size_t>(bytes));
    return;
  }
  with_type(to.type, [&]<class T>(T) {
    const auto add = to.type == from.type ? add_numbers<T, T> : add_numbers<T, Accumulator<T>>;
    add(numbers, from_stride, row, to_stride, count, accumulate);
  });
}

}  // namespace

void write(const Array& to, const Array& from, bool accumulate) {
  if (to.count() == 0) return;
  const auto at = [](const Array& x, Index b, Index h, Index i) {
    return x.data + (b * x.strides[0] + h * x.strides[1] + i * x.strides[2]) * bytes_of(x.type);
  };
  for (Index b = 0; b < to.sizes[0]; ++b) {
    for (Index h = 0; h < to.sizes[1]; ++h) {
      for (Index i = 0; i < to.sizes[2]; ++i) write_row(to, at(to, b, h, i), from, at(from, b, h, i), accumulate);
    }
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
  }
}

void Exchange::send(std::size_t rank, const Array& piece) {
  std::vector<std::byte>& out = of_rank_[rank].out;
  const std::size_t begin = out.size();
  out.resize(begin + piece.bytes());
  write(packed(piece.type, out.data() + begin, piece.sizes), piece);
}

void Exchange::expect(std::size_t rank, const Array& piece) {
  Message& message = of_rank_[rank];
  message.pieces.push_back(piece);
  message.in.resize(message.in.size() + piece.bytes());
}

void Exchange::start() {
  const auto me = static_cast<std::size_t>(transport_.rank()), ranks = of_rank_.size();
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
    for (const Array& piece : message.pieces) {
      write(piece, packed(piece.type, numbers, piece.sizes), accumulate);
      numbers += piece.bytes();
    }
    message = {};
  }
}

}  // namespace qkv::inline v0::dist

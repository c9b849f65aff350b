#include "dist/chunk_route.h"

#include <cstring>
#include <iterator>
#include <set>

#include "dist/waiting.h"

namespace qkv::inline v0::dist {

std::vector<RoutedChunk> routed_chunks(const ParallelCall& call, Index step, bool passed_on) {
  const int ranks = call.transport.size(), me = call.transport.rank();
  std::vector<RoutedChunk> chunks;
  Index begin = 0;
  do {
    RoutedChunk chunk{{begin, std::min(begin + step, call.keys.length)}, {}, false};
    const auto needed = [&](int rank, const Rows& rows) {
      return rows_in_both(call.needed[static_cast<std::size_t>(rank)], {rows});
    };
    chunk.needed = !needed(me, chunk.rows).empty();
    for (int owner = 0; owner < ranks; ++owner) {
      for (const Rows& rows : rows_in_both(call.keys.of_rank[static_cast<std::size_t>(owner)], {chunk.rows})) {
        std::set<Index> cuts{rows.begin, rows.end};  // between them the same ranks need all rows
        for (int rank = 0; rank < ranks; ++rank) {
          for (const Rows& some : needed(rank, rows)) cuts.insert({some.begin, some.end});
        }
        for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
          RoutedRows part{{*cut, *std::next(cut)}, owner, passed_on, {}, {}};
          std::vector<int> way{owner};  // then who needs them, in the ring's order
          for (int n = 1; n < ranks; ++n) {
            if (const int rank = (owner + n) % ranks; !needed(rank, part.rows).empty()) way.push_back(rank);
          }
          if (const auto at = std::ranges::find(way, me); at != way.end()) {
            if (me != owner) part.from = {passed_on ? *(at - 1) : owner};
            if (passed_on || me == owner) part.to.assign(at + 1, passed_on && at + 1 != way.end() ? at + 2 : way.end());
            std::ranges::sort(part.to);
          }
          chunk.parts.push_back(std::move(part));
        }
      }
    }
    std::ranges::sort(chunk.parts, {}, [](const RoutedRows& part) { return part.rows.begin; });
    chunks.push_back(std::move(chunk));
    begin += step;
  } while (begin < call.keys.length);
  return chunks;
}

Routed::Routed(const ParallelCall& call, const RoutedChunk& chunk, Way way, StoredType type, const AnyView& k,
    const AnyView& v, Arrived arrived)
    : call_(call), chunk_(chunk), way_(way), arrived_(std::move(arrived)) {
  for (std::size_t n = 0; n < 2; ++n) {
    const AnyView& like = n == 0 ? k : v;
    if (like.is_null()) continue;
    const Index batch = like.sizes[0], heads = like.sizes[1], width = like.sizes[3];
    memory_[n] = Buffer(with_rows(like, chunk.rows.count()), type);
    arrays_[n] = memory_[n].view;
    arrays_[n].strides = {heads * width, width, batch * heads * width, 1};
  }
}

Routed::~Routed() {
  try {
    if (started_) finish();
  } catch (const Error&) {  // the transport has failed, and touches no bytes any more
  }
}

/// Nothing where there are no numbers.
std::span<std::byte> Routed::part(const AnyView& x, const Rows& rows) const {
  if (x.is_empty()) return {};
  const Index row = x.strides[2] * x.element_bytes();
  return {x.data + (rows.begin - chunk_.rows.begin) * row, static_cast<std::size_t>(rows.count() * row)};
}

void Routed::start() {
  started_ = true;
  const std::size_t parts = chunk_.parts.size();
  to_.resize(parts), receives_.resize(parts), came_.resize(parts), done_.resize(parts);
  for (std::size_t n = 0; n < parts; ++n) {
    const RoutedRows& rows = chunk_.parts[n];
    std::vector<int> from = rows.from;
    to_[n] = rows.to;
    if (way_ == Way::kToOwners) std::swap(from, to_[n]);
    came_[n].resize(way_ == Way::kToOwners ? from.size() : 0);
    for (std::size_t source = 0; source < from.size(); ++source) {
      for (std::size_t x = 0; x < 2; ++x) {
        std::span<std::byte> bytes = part(arrays_[x], rows.rows);
        if (way_ == Way::kToOwners) {
          came_[n][source][x].resize(bytes.size());
          bytes = came_[n][source][x];
        }
        receives_[n].push_back(call_.transport.receive(from[source], bytes));
      }
    }
  }
}

/// Adds what came for a part, and this rank's own, in order of ranks.
void Routed::add_in_order(std::size_t n) {
  if (came_[n].empty()) return;
  const RoutedRows& rows = chunk_.parts[n];
  const int me = call_.transport.rank();
  const auto before = static_cast<std::size_t>(std::ranges::count_if(rows.to, [&](int rank) { return rank < me; }));
  for (std::size_t x = 0; x < 2; ++x) {
    const std::span<std::byte> mine = part(arrays_[x], rows.rows);
    if (mine.empty()) continue;
    AnyView numbers;
    numbers.rank = 1;
    numbers.sizes[0] = static_cast<Index>(mine.size()) / arrays_[x].element_bytes();
    const Buffer sum(numbers, arrays_[x].type);
    const auto add = [&](std::byte* share) { write(sum.view, packed(numbers, sum.view.type, share), true); };
    for (std::size_t source = 0; source <= came_[n].size(); ++source) {
      if (source == before) add(mine.data());
      if (source < came_[n].size()) add(came_[n][source][x].data());
    }
    std::memcpy(mine.data(), sum.view.data, mine.size());
  }
}

/// Keys passed on from neighbour to neighbour go in order of parts, as both ends expect it; what an owner serves,
/// or gets, waits for no other part.
bool Routed::poll() {
  Transport& transport = call_.transport;
  for (std::size_t n = first_; n < receives_.size(); ++n) {
    if (done_[n]) continue;
    std::erase_if(receives_[n], [&](const Ticket ticket) { return transport.poll(ticket); });
    if (!receives_[n].empty()) {
      if (chunk_.parts[n].passed_on) break;
      continue;
    }
    add_in_order(n);
    if (arrived_) arrived_(*this, chunk_.parts[n]);
    for (const int to : to_[n]) {
      for (const AnyView& x : arrays_) sends_.push_back(transport.send(to, part(x, chunk_.parts[n].rows)));
    }
    to_[n].clear();
    done_[n] = true;
  }
  while (first_ < done_.size() && done_[first_]) ++first_;
  std::erase_if(sends_, [&](const Ticket ticket) { return transport.poll(ticket); });
  return first_ == receives_.size() && sends_.empty();
}

bool Routed::all_sent() const {
  return std::ranges::all_of(to_, [](const std::vector<int>& to) { return to.empty(); });
}
void Routed::wait() {
  wait_until([&] { return poll() || first_ == receives_.size(); });
}
void Routed::finish() {
  wait_until([&] { return poll(); });
}

}  // namespace qkv::inline v0::dist

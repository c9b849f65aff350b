#include "dist/chunk_route.h"

#include <cstring>
#include <iterator>
#include <new>
#include <ranges>
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
  if (!started_) return;
  arrived_ = nullptr;  // what this rank makes of them is lost
  try {
    finish();
  } catch (const Error&) {  // the transport has failed, and touches no bytes any more
  } catch (const std::bad_alloc&) {
  }
}

/// Nothing where there are no numbers.
std::span<std::byte> Routed::part(const AnyView& x, const Rows& rows) const {
  if (x.is_empty()) return {};
  const Index row = x.strides[2] * x.element_bytes();
  return {x.data + (rows.begin - chunk_.rows.begin) * row, static_cast<std::size_t>(rows.count() * row)};
}

/// All that takes memory is there before the first message, so that none is lost where memory is out.
void Routed::start() {
  const std::size_t parts = chunk_.parts.size();
  to_.resize(parts), receives_.resize(parts), came_.resize(parts), done_.resize(parts);
  std::vector<std::vector<int>> from(parts);
  std::size_t sends = 0;
  for (std::size_t n = 0; n < parts; ++n) {
    const RoutedRows& rows = chunk_.parts[n];
    from[n] = rows.from;
    std::vector<int> to = rows.to;
    if (way_ == Way::kToOwners) {
      std::swap(from[n], to);
      came_[n].resize(from[n].size());
      for (auto& shares : came_[n]) {
        for (std::size_t x = 0; x < 2; ++x) shares[x].resize(part(arrays_[x], rows.rows).size());
      }
    }
    for (const int rank : std::views::reverse(to)) to_[n].insert(to_[n].end(), {{rank, 1}, {rank, 0}});
    receives_[n].reserve(2 * from[n].size());
    sends += to_[n].size();
  }
  sends_.reserve(sends);
  started_ = true;
  for (std::size_t n = 0; n < parts; ++n) {
    for (std::size_t source = 0; source < from[n].size(); ++source) {
      for (std::size_t x = 0; x < 2; ++x) {
        const std::span<std::byte> bytes =
            came_[n].empty() ? part(arrays_[x], chunk_.parts[n].rows) : std::span(came_[n][source][x]);
        receives_[n].push_back(call_.transport.receive(from[n][source], bytes));
      }
    }
  }
}

/// Adds what came for a part, and this rank's own, in order of ranks; in the first one's memory.
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
    std::byte* const sum = before == 0 ? mine.data() : came_[n][0][x].data();
    const auto of = [&](std::byte* share) { return packed(numbers, arrays_[x].type, share); };
    const auto add = [&](std::byte* share) {
      if (share != sum) write(of(sum), of(share), true);
    };
    for (std::size_t source = 0; source <= came_[n].size(); ++source) {
      if (source == before) add(mine.data());
      if (source < came_[n].size()) add(came_[n][source][x].data());
    }
    if (sum != mine.data()) std::memcpy(mine.data(), sum, mine.size());
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
    for (; !to_[n].empty(); to_[n].pop_back()) {
      const auto& [to, x] = to_[n].back();
      sends_.push_back(transport.send(to, part(arrays_[x], chunk_.parts[n].rows)));
    }
    done_[n] = true;
  }
  while (first_ < done_.size() && done_[first_]) ++first_;
  std::erase_if(sends_, [&](const Ticket ticket) { return transport.poll(ticket); });
  return first_ == receives_.size() && sends_.empty();
}

bool Routed::all_sent() const {
  return std::ranges::all_of(to_, [](const auto& to) { return to.empty(); });
}
void Routed::wait() {
  wait_until([&] { return poll() || first_ == receives_.size(); });
}
void Routed::finish() {
  wait_until([&] { return poll(); });
}

}  // namespace qkv::inline v0::dist

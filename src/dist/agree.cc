// Every rank hears every rank, and comes to the same verdict.
#include "qkv/dist/agree.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <sstream>

#include "core/check.h"
#include "dist/exchange.h"
#include "qkv/version.h"

namespace qkv::inline v0::dist {
namespace {

constexpr std::uint64_t kLongest = std::uint64_t{1} << 26;  // bytes of a text; what is longer is not one of ours

/// Lines "name\tvalue".
std::string lines_of(const std::vector<Claim>& claims) {
  std::string text = std::string("qkv\t") + QKV_VERSION + "\n";
  for (Claim claim : claims) {
    std::ranges::replace(claim.value, '\n', ' ');
    text += claim.name + "\t" + claim.value + "\n";
  }
  return text;
}

std::vector<Claim> claims_of(const std::string& text) {
  std::vector<Claim> claims;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    claims.push_back({line.substr(0, tab), tab == std::string::npos ? "" : line.substr(tab + 1)});
  }
  return claims;
}

void compare(const std::vector<std::string>& texts) {
  const auto value_in = [](const std::vector<Claim>& claims, const std::string& name) {
    const auto found = std::ranges::find(claims, name, &Claim::name);
    return found == claims.end() || found->value.empty() ? "none" : found->value;
  };
  const std::vector<Claim> first = claims_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<Claim> others = claims_of(texts[rank]);
    for (const std::vector<Claim>* claims : {&first, &others}) {  // each has what the other may lack
      for (const Claim& claim : *claims) {
        const std::string here = value_in(first, claim.name), there = value_in(others, claim.name);
        check<MismatchError>(here == there, "dist::agree", "every rank must have the same ", claim.name,
            ": rank 0 has ", here, ", rank ", rank, " has ", there);
      }
    }
  }
}

/// `verdict` throws alike on every rank, but not before all have heard all: a rank that had ended would be a failure to
/// those that still wait.
template <class Verdict> auto verdict_of_all(Transport& transport, const Verdict& verdict) {
  try {
    return verdict();
  } catch (const MismatchError&) {
    try {
      from_all<std::uint64_t>(transport, {0});
    } catch (const Error&) {  // of a rank that has heard all
    }
    throw;
  }
}

}  // namespace

MismatchError::~MismatchError() = default;

std::vector<std::string> texts_of_ranks(Transport& transport, const std::string& mine) {
  const auto lengths = from_all<std::uint64_t>(transport, {mine.size()});
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const std::uint64_t length = lengths[rank][0];
    check<TransportError>(length <= kLongest, "dist::texts_of_ranks", "a text must be at most ", kLongest,
        " bytes: rank ", rank, " sent ", length);
    texts.emplace_back(static_cast<std::size_t>(length), '\0');
  }
  Exchange exchange(transport);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    exchange.send(rank, view_of_bytes(mine.data(), mine.size()));
    exchange.expect(rank, view_of_bytes(texts[rank].data(), texts[rank].size()));
  }
  exchange.start();
  exchange.finish();
  return texts;
}

void agree(Transport& transport, const std::vector<Claim>& claims) {
  const std::vector<std::string> texts = texts_of_ranks(transport, lines_of(claims));
  verdict_of_all(transport, [&] { compare(texts); });
}

SharedIsa agree_on_isa(Transport& transport, std::optional<Isa> wanted, const std::vector<Isa>& can_run) {
  constexpr const char* function = "dist::agree_on_isa";
  std::uint64_t mine = 0;  // a bit for each
  for (const Isa isa : can_run) mine |= std::uint64_t{1} << static_cast<int>(isa);
  const auto all = from_all<std::uint64_t>(transport, {wanted ? 1 + static_cast<std::uint64_t>(*wanted) : 0, mine});
  const auto wish = [&](std::size_t rank) { return static_cast<Isa>(all[rank][0] - 1); };
  const auto fastest_of = [](std::uint64_t runs) { return static_cast<Isa>(std::bit_width(runs) - 1); };
  const auto first_without = [&](Isa isa) {
    const auto lacks = [&](const auto& numbers) { return (numbers[1] >> static_cast<int>(isa) & 1U) == 0; };
    return static_cast<std::size_t>(std::ranges::find_if(all, lacks) - all.begin());
  };
  return verdict_of_all(transport, [&]() -> SharedIsa {
    std::optional<std::size_t> wisher;
    std::uint64_t common = mine;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      common &= all[rank][1];
      if (all[rank][0] == 0) continue;
      if (!wisher) wisher = rank;
      check<MismatchError>(wish(rank) == wish(*wisher), function, "every rank must use one instruction set: rank ",
          *wisher, " wants ", isa_name(wish(*wisher)), ", rank ", rank, " wants ", isa_name(wish(rank)));
    }
    if (wisher) {
      const std::size_t rank = first_without(wish(*wisher));
      check<MismatchError>(
          rank == all.size(), function, "every rank must run the instruction set that rank ", *wisher, " wants, ",
          isa_name(wish(*wisher)), ": rank ", rank, " runs ",
          [&] { return std::string(isa_name(fastest_of(all[rank][1]))); }, " at most");
      return {wish(*wisher), {}};
    }
    check<MismatchError>(common != 0, function, "the ranks must have an instruction set in common");
    const Isa fastest = fastest_of(common);
    for (const auto& numbers : all) {
      if (const Isa own = fastest_of(numbers[1]); own != fastest) {
        return {fastest, "all ranks use " + std::string(isa_name(fastest)) + ", which is all that rank " +
                             std::to_string(first_without(own)) + " can run: equal bits need one instruction set"};
      }
    }
    return {fastest, {}};
  });
}

}  // namespace qkv::inline v0::dist

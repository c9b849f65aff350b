// Everything goes through rank 0: it hears every rank, compares, and sends one verdict to all.
#include "qkv/dist/agree.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>

#include "core/check.h"
#include "qkv/version.h"

namespace qkv::inline v0::dist {
namespace {

constexpr std::uint64_t kLongest = std::uint64_t{1} << 26;  // bytes of a text; what is longer is not one of ours

void send_text(Transport& transport, int to, const std::string& text) {
  const std::uint64_t length = text.size();
  const Ticket both[] = {
      transport.send(to, std::as_bytes(std::span(&length, 1))), transport.send(to, std::as_bytes(std::span(text)))};
  wait(transport, both);
}

std::string receive_text(Transport& transport, int from) {
  std::uint64_t length = 0;
  wait(transport, transport.receive(from, std::as_writable_bytes(std::span(&length, 1))));
  check<TransportError>(
      length <= kLongest, "dist::decide", "a text must be at most ", kLongest, " bytes: rank ", from, " sent ", length);
  std::string text(static_cast<std::size_t>(length), '\0');
  wait(transport, transport.receive(from, std::as_writable_bytes(std::span(text))));
  return text;
}

std::string verdict_of(
    const std::vector<std::string>& texts, const std::function<std::string(const std::vector<std::string>&)>& make) {
  try {
    return "+" + make(texts);
  } catch (const std::exception& error) {
    return std::string("-") + error.what();
  }
}

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

/// Of any architecture and CPU, unlike parse_isa.
Isa isa_named(const std::string& name) {
  for (const Isa isa :
      {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx, Isa::kNeon, Isa::kSve256, Isa::kSve512}) {
    if (isa_name(isa) == name) return isa;
  }
  fail<MismatchError>("dist::agree_on_isa", "an instruction set must be known: got ", name);
}

/// The first rank whose names lack one; their number: none.
std::size_t first_without(const std::vector<std::vector<std::string>>& names, const std::string& name) {
  const auto lacks = [&](const auto& of_rank) { return std::ranges::find(of_rank, name) == of_rank.end(); };
  return static_cast<std::size_t>(std::ranges::find_if(names, lacks) - names.begin());
}

/// "any" or the wanted one, then what a rank can run, slowest first: names.
SharedIsa choose(const std::vector<std::string>& texts) {
  constexpr const char* function = "dist::agree_on_isa";
  std::string wanted;
  std::size_t wisher = 0;
  std::vector<std::vector<std::string>> can;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream words(texts[rank]);
    std::string wish;
    words >> wish;
    can.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
    if (wish == "any") continue;
    check<MismatchError>(wanted.empty() || wish == wanted, function, "every rank must use one instruction set: rank ",
        wisher, " wants ", wanted, ", rank ", rank, " wants ", wish);
    if (wanted.empty()) wisher = rank;
    wanted = wish;
  }
  if (!wanted.empty()) {
    const std::size_t rank = first_without(can, wanted);
    check<MismatchError>(
        rank == can.size(), function, "every rank must run the instruction set that rank ", wisher, " wants, ", wanted,
        ": rank ", rank, " runs ", [&] { return can[rank].back(); }, " at most");
    return {isa_named(wanted), {}};
  }
  std::string fastest;
  for (const std::string& name : can[0]) {
    if (first_without(can, name) == can.size()) fastest = name;
  }
  check<MismatchError>(!fastest.empty(), function, "the ranks must have an instruction set in common");
  std::string note;
  const auto faster = std::ranges::find_if(can, [&](const auto& names) { return names.back() != fastest; });
  if (faster != can.end()) {
    note = "all ranks use " + fastest + ", which is all that rank " +
           std::to_string(first_without(can, faster->back())) + " can run: equal bits need one instruction set";
  }
  return {isa_named(fastest), note};
}

}  // namespace

MismatchError::~MismatchError() = default;

std::string decide(Transport& transport, const std::string& mine,
    const std::function<std::string(const std::vector<std::string>&)>& make) {
  std::string verdict;
  if (transport.rank() == 0) {
    std::vector<std::string> texts = {mine};
    for (int rank = 1; rank < transport.size(); ++rank) texts.push_back(receive_text(transport, rank));
    verdict = verdict_of(texts, make);
    for (int rank = 1; rank < transport.size(); ++rank) send_text(transport, rank, verdict);
  } else {
    send_text(transport, 0, mine);
    verdict = receive_text(transport, 0);
  }
  if (verdict[0] == '-') throw MismatchError(verdict.substr(1));
  return verdict.substr(1);
}

void agree(Transport& transport, const std::vector<Claim>& claims) {
  decide(transport, lines_of(claims), [](const std::vector<std::string>& texts) {
    compare(texts);
    return std::string();
  });
}

SharedIsa agree_on_isa(Transport& transport, std::optional<Isa> wanted, const std::vector<Isa>& can_run) {
  std::string mine = wanted ? std::string(isa_name(*wanted)) : "any";
  for (const Isa isa : can_run) mine += " " + std::string(isa_name(isa));
  const std::string verdict = decide(transport, mine, [](const std::vector<std::string>& texts) {
    const SharedIsa chosen = choose(texts);
    return std::string(isa_name(chosen.isa)) + "\n" + chosen.note;
  });
  const std::size_t end = verdict.find('\n');
  return {isa_named(verdict.substr(0, end)), verdict.substr(end + 1)};
}

}  // namespace qkv::inline v0::dist

#include "support/claim.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/escape.h"
#include "core/sentences.h"
#include "support/text.h"

namespace qkv::cli {

bool all_hold(const std::vector<Claim>& claims) {
  return std::ranges::all_of(claims, [](const Claim& claim) { return claim.holds; });
}

void print_claims(const std::vector<Claim>& claims) {
  const bool unicode = terminal().unicode;
  for (const Claim& claim : claims) {
    const std::string text =
        wrapped(claim.holds ? claim.sentence : said("Not so here: ") + said(claim.sentence), 2).substr(2);
    print_line(
        (claim.holds ? (unicode ? "✓ " : "+ ") : bold(unicode ? "✗ " : "x ")) + (claim.holds ? text : bold(text)));
    if (!claim.measured.empty())
      print_line(faint(wrapped(claim.holds ? claim.measured : said("measured: ") + said(claim.measured), 2)));
  }
}

Json to_json(const std::vector<Claim>& claims) {
  Json list = Json::array();
  for (const Claim& claim : claims) {
    list.push_back({{"sentence", said(claim.sentence)}, {"holds", claim.holds}, {"measured", said(claim.measured)}});
  }
  return list;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  return qkv::wrapped(said(text), indent, static_cast<std::size_t>(std::clamp(terminal().columns, 40, 80)));
}

std::string small_text(double value) { return value == 0 ? "0" : fmt::format("{:.1e}", value); }

std::string beside(const std::vector<std::vector<std::string>>& columns, std::size_t gap) {
  std::size_t height = 0;
  std::vector<std::size_t> widths;
  for (const auto& column : columns) {
    height = std::max(height, column.size());
    std::size_t width = 0;
    for (const std::string& line : column) width = std::max(width, columns_of(line));
    widths.push_back(width);
  }
  std::string result;
  for (std::size_t row = 0; row < height; ++row) {
    std::string line;
    for (std::size_t n = 0; n < columns.size(); ++n) {
      const std::string cell = row < columns[n].size() ? columns[n][row] : "";
      line += cell + std::string(widths[n] - columns_of(cell) + gap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  }
  return result;
}

}  // namespace qkv::cli

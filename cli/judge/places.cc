// Where in the file, and what: SARIF, and lines of FILE:LINE: error: (options.h).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/escape.h"
#include "core/sentences.h"
#include "judge/options.h"
#include "qkv/version.h"
#include "support/json.h"

namespace qkv::cli {
namespace {

using judge::Finding;

constexpr std::string_view kPages = "https://github.com/qkv-attention/qkv/blob/main/";

struct Result {
  std::string rule, says, read;
};

std::vector<Result> results_of(const Finding& finding, bool hint) {
  if (finding.right()) return {};
  if (finding.mistakes.empty()) {
    const bool no_task = !finding.checks.empty() && finding.checks.back().name == judge::kHasTask;
    return {{no_task ? "no-task" : finding.verdict, said(judge::first_line(finding, hint)), ""}};
  }
  std::vector<Result> results;
  for (const judge::Mistake& one : finding.mistakes)
    results.push_back(hint ? Result{"wrong", said(one.hint), ""} : Result{one.id, said(one.says), said(one.read)});
  return results;
}

/// The line that leaves the textbook, otherwise the one that raised the error, otherwise that of the definition.
int line_of(const Finding& finding) {
  if (finding.line > 0) return finding.line;
  const std::string frame = "File \"" + std::filesystem::path(finding.file).filename().string() + "\", line ";
  const std::size_t at = finding.traceback.rfind(frame);
  int raised = 0;
  const char* const end = finding.traceback.data() + finding.traceback.size();
  if (at != std::string::npos) std::from_chars(finding.traceback.data() + at + frame.size(), end, raised);
  return std::max({raised, raised > 0 ? 0 : finding.begins, 1});
}

/// Bytes other than letters, digits and -._~/ as %20.
std::string uri_of(const std::string& path) {
  std::string uri = path.starts_with('/') ? "file://" : "";
  for (const char letter : path) {
    const auto one = static_cast<unsigned char>(letter);
    const bool plain = (one >= '0' && one <= '9') || (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z');
    uri += plain || std::string_view("-._~/").find(letter) != std::string_view::npos ? std::string(1, letter)
                                                                                     : fmt::format("%{:02X}", one);
  }
  return uri;
}

/// Of the last page of docs/ in what there is to read; empty without one.
std::string url_of(std::string_view read) {
  const std::size_t at = read.rfind("docs/");
  if (at == std::string_view::npos) return "";
  return std::string(kPages).append(read.substr(at, read.find_first_of("; ", at) - at));
}

}  // namespace

std::string sarif_of(const Finding& finding, bool hint) {
  Json rules = Json::array(), results = Json::array(), place = Json::object();
  if (!finding.file.empty())
    place["physicalLocation"] = {
        {"artifactLocation", {{"uri", uri_of(finding.file)}}}, {"region", {{"startLine", line_of(finding)}}}};
  if (!finding.name.empty()) place["logicalLocations"] = Json::array({Json{{"name", finding.name}}});
  for (const Result& one : results_of(finding, hint)) {
    const Json::iterator known = std::ranges::find_if(rules, [&](const Json& rule) { return rule["id"] == one.rule; });
    if (known == rules.end()) {
      rules.push_back({{"id", one.rule}, {"shortDescription", {{"text", one.says}}}});
      if (!one.read.empty()) rules.back()["help"] = {{"text", one.read}};
      if (const std::string url = url_of(one.read); !url.empty()) rules.back()["helpUri"] = url;
    }
    results.push_back({{"ruleId", one.rule}, {"level", "error"}, {"message", {{"text", one.says}}},
        {"locations", Json::array({place})}});
  }
  const Json driver = {{"name", "qkv judge"}, {"version", QKV_VERSION}, {"rules", rules}};
  const Json run = {{"tool", {{"driver", driver}}}, {"results", results}, {"columnKind", "unicodeCodePoints"},
      {"properties", {{"task", finding.task}, {"name", finding.name}, {"verdict", finding.verdict}}}};
  const Json document = {
      {"$schema", "https://json.schemastore.org/sarif-2.1.0.json"}, {"version", "2.1.0"}, {"runs", Json::array({run})}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string problems_of(const Finding& finding, bool hint) {
  std::string lines;
  for (const Result& one : results_of(finding, hint))
    lines +=
        fmt::format("{}:{}: error: {} [{}]\n", one_line(finding.file), line_of(finding), one_line(one.says), one.rule);
  return lines;
}

}  // namespace qkv::cli

#include "judge/print.h"

#include <algorithm>

#include "judge/report.h"
#include "support/text.h"

namespace qkv::cli {

using judge::Finding;
using judge::Mistake;

Json to_json(const Finding& finding) {
  Json mistakes = Json::array(), conventions = Json::array(), checks = Json::array();
  for (const Mistake& mistake : finding.mistakes) {
    mistakes.push_back({{"id", mistake.id}, {"same_as", mistake.same_as}, {"says", mistake.says},
        {"hint", mistake.hint}, {"evidence", mistake.evidence}, {"term", mistake.term}, {"read", mistake.read}});
  }
  for (const judge::Convention& one : finding.conventions) conventions.push_back({{"id", one.id}, {"says", one.says}});
  for (const judge::Check& one : finding.checks)
    checks.push_back({{"name", one.name}, {"ok", one.ok}, {"detail", one.detail}});
  return {{"file", finding.file}, {"name", finding.name}, {"task", finding.task}, {"verdict", finding.verdict},
      {"mistakes", mistakes}, {"conventions", conventions}, {"checks", checks}, {"untried", finding.untried},
      {"notes", finding.notes}, {"evidence", finding.evidence}, {"traceback", finding.traceback},
      {"seconds", finding.seconds}};
}

void print_finding(const Finding& finding, bool hint) {
  print(report(finding, hint, {bold, faint, static_cast<std::size_t>(std::clamp(terminal().columns, 40, 80))}));
}

}  // namespace qkv::cli

// `qkv info`: what this machine is and what would run on it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/Version.hpp>

#include "core/cpu.h"
#include "qkv/version.h"
#include "support/command.h"
#include "support/json.h"
#include "support/machine.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

struct InfoOptions {
  bool json = false;
};

Json gather() {
  const Context context;
  Json isas = Json::array(), skipped = Json::array();
  for (const IsaCandidate& candidate : isa_candidates()) {
    if (candidate.obstacle.empty()) {
      isas.push_back(isa_name(candidate.isa));
    } else {
      skipped.push_back({{"name", isa_name(candidate.isa)}, {"reason", candidate.obstacle}});
    }
  }
  Json cache_sizes = Json::object();
  for (const Cache& cache : caches()) cache_sizes[cache.name] = cache.bytes;
  return {{"version", QKV_VERSION},
      {"cpu", {{"model", cpu_model()}, {"features", cpu_features()}, {"caches", cache_sizes}}},
      {"isa", {{"chosen", isa_name(context.isa())}, {"supported", isas}, {"skipped", skipped}}},
      {"threads", {{"used", context.threads()}, {"available", available_threads()}}},
      {"compiler", fmt::format("{} {}.{}.{}",
#ifdef __clang__
                       "clang", __clang_major__, __clang_minor__, __clang_patchlevel__
#else
                       "gcc", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__
#endif
                       )},
      {"libraries",
          {{"cli11", CLI11_VERSION},
              {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
              {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                    NLOHMANN_JSON_VERSION_PATCH)}}}};
}

std::string joined(const Json& list) {
  return list.empty() ? "none" : fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), " "));
}

void print_info(const Json& info) {
  const auto row = [](std::string_view name, const std::string& value) {
    print_line(fmt::format("{:<12}{}", name, one_line(value)));
  };
  row("qkv", info["version"].get<std::string>() + ", built with " + info["compiler"].get<std::string>());
  row("cpu", info["cpu"]["model"].get<std::string>());
  row("features", joined(info["cpu"]["features"]));
  std::string sizes;
  for (const auto& [name, bytes] : info["cpu"]["caches"].items()) {
    sizes += (sizes.empty() ? "" : ", ") + name + " " + bytes_text(bytes.get<double>());
  }
  row("caches", sizes.empty() ? "not reported" : sizes);
  row("isa", info["isa"]["chosen"].get<std::string>() + " (of " + joined(info["isa"]["supported"]) +
                 "; choose with QKV_ISA or --isa)");
  for (const Json& isa : info["isa"]["skipped"]) {
    row("", "not " + isa["name"].get<std::string>() + ": " + isa["reason"].get<std::string>());
  }
  row("threads", fmt::format("{} (of {} available; choose with QKV_THREADS or --threads)",
                     info["threads"]["used"].get<int>(), info["threads"]["available"].get<int>()));
}

int run_info(const InfoOptions& options) {
  const Json info = gather();
  options.json ? print_json(info) : print_info(info);
  return 0;
}

const bool info_added = add_command<InfoOptions>(
    {"info", "This machine: CPU, instruction sets, threads, kernels", "qkv info --json"},
    [](Options& add, InfoOptions& options) { add.json(options.json); }, run_info);

}  // namespace
}  // namespace qkv::cli

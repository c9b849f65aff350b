// qkv ablate: what each part of attention does, shown by removing it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "ablate/ablate.h"
#include "core/escape.h"
#include "map/maps.h"
#include "qkv/view/pictures.h"
#include "support/command.h"
#include "support/files.h"
#include "support/options.h"
#include "support/progress.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

struct AblateCommandOptions {
  std::vector<std::string> names;
  AblateOptions ablate;
  std::optional<Index> steps;
  std::string out;
  ComputeOptions compute;
  bool json = false;
};

struct NamedExperiment {
  const char* name;
  Experiment (*run)(const AblateOptions&, Context&);
};
constexpr NamedExperiment kExperiments[] = {{"same-q", ablate_same_q}, {"same-k", ablate_same_k},
    {"zero-v", ablate_zero_v}, {"no-scale", ablate_scale}, {"no-mask", ablate_mask}};

std::vector<NamedExperiment> chosen(const std::vector<std::string>& names) {
  if (names.empty()) return {std::begin(kExperiments), std::end(kExperiments)};
  std::vector<NamedExperiment> all;
  for (const std::string& name : names) {
    const auto* const found = std::ranges::find(kExperiments, name, &NamedExperiment::name);
    if (found == std::end(kExperiments))
      throw UsageError("EXPERIMENT must be one of same-q, same-k, zero-v, no-scale, no-mask: got " + escaped(name));
    if (std::ranges::count(names, name) > 1) throw UsageError("EXPERIMENT " + name + " is named twice: name it once");
    all.push_back(*found);
  }
  return all;
}

std::string map_path(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / (name + (view::draws_text() ? ".png" : ".svg"))).string();
}

void print_experiment(const std::string& name, const Experiment& experiment) {
  print_line();
  print_line(bold(name) + "  " + experiment.title);
  print_line();
  for (std::size_t n = 0; n < experiment.table.size(); ++n) {
    print_line(n < kHeadingLines ? faint(experiment.table[n]) : experiment.table[n]);
  }
  if (!experiment.table.empty()) print_line();
  for (const view::AttentionMap& map : experiment.maps) print_map(map);
  print_line();
  print_claims(experiment.claims);
}

int run_ablate(const AblateCommandOptions& options) {
  const std::vector<NamedExperiment> experiments = chosen(options.names);
  if (options.steps && std::ranges::none_of(experiments, [](const auto& one) { return one.run == ablate_mask; }))
    throw UsageError("--steps is for no-mask only, the one experiment that trains: name it too, or leave --steps out");
  Outputs outputs;
  if (!options.out.empty()) {  // every picture is named before the work begins
    std::error_code error;
    std::filesystem::create_directories(options.out, error);
    if (error)
      throw UsageError(
          "--out " + escaped(options.out) + ": " + error.message() + ": name a folder that can be written");
    for (const NamedExperiment& one : experiments) expect_map(outputs, "--out", map_path(options.out, one.name));
  }
  Context context(options.compute.context());
  AblateOptions ablate = options.ablate;
  ablate.steps = options.steps.value_or(ablate.steps);
  bool holds = true;
  Json list = Json::array();
  for (const NamedExperiment& one : experiments) {
    Progress progress(kTrainings * ablate.steps, options.json);
    ablate.on_step = [&](Index done, Index) { progress.update(done, "training four small models"); };
    const Experiment experiment = one.run(ablate, context);
    progress.clear();
    holds &= all_hold(experiment.claims);
    if (!options.json) print_experiment(one.name, experiment);
    list.push_back({{"name", one.name}, {"title", experiment.title}, {"holds", all_hold(experiment.claims)},
        {"claims", to_json(experiment.claims)}, {"numbers", experiment.numbers}});
    if (options.out.empty()) continue;
    for (const view::AttentionMap& map : experiment.maps) add_map(outputs, map_path(options.out, one.name), map);
  }
  outputs.commit();
  if (options.json) {
    print_json({{"seed", options.ablate.seed}, {"experiments", list}, {"holds", holds}});
  } else if (!options.out.empty()) {
    print_line();
    for (const NamedExperiment& one : experiments)
      print_line(faint("wrote " + one_line(map_path(options.out, one.name))));
  }
  return holds ? 0 : 1;
}

void declare_ablate(Options& add, AblateCommandOptions& options) {
  add("EXPERIMENT", &options.names, "same-q, same-k, zero-v, no-scale, no-mask (default: all)");
  add("--steps N", &options.steps, "Steps of each of the four trainings of no-mask (default 400)",
      {.least = 1, .most = 1000000});
  add("--seed N", &options.ablate.seed, "Seed of everything random (default 0)");
  add("--out DIR", &options.out, "Folder for maps as PNG (SVG without Pango), one per experiment; created if missing");
  add.compute(options.compute);
  add.json(options.json);
}

const bool ablate_added = add_command(
    {"ablate", "Remove a part of attention; show what breaks", "qkv ablate\n  qkv ablate no-scale no-mask --out maps"},
    declare_ablate, run_ablate);

}  // namespace
}  // namespace qkv::cli

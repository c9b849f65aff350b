#include "ablate/ablate.h"

#include "qkv/error.h"

namespace qkv::cli {
namespace {

struct Named {
  std::string_view name;
  Experiment (*run)(const AblateOptions&, Context&);
};

constexpr Named kExperiments[] = {{"same-q", ablate_same_q},
                                  {"same-k", ablate_same_k},
                                  {"zero-v", ablate_zero_v},
                                  {"no-scale", ablate_scale},
                                  {"no-mask", ablate_mask}};

}  // namespace

std::vector<std::string_view> experiment_names() {
  std::vector<std::string_view> names;
  for (const Named& one : kExperiments) names.push_back(one.name);
  return names;
}

Experiment run_experiment(std::string_view name, const AblateOptions& options, Context& context) {
  for (const Named& one : kExperiments) {
    if (one.name != name) continue;
    Experiment experiment = one.run(options, context);
    experiment.name = name;
    return experiment;
  }
  std::string names;
  for (const Named& one : kExperiments) names += (names.empty() ? "" : ", ") + std::string(one.name);
  throw OptionError("[ablate] the experiment must be one of " + names + ": got " + std::string(name));
}

view::AttentionMap map_of(const std::string& title, const std::vector<std::string>& words,
                          const std::vector<const Tensor<double>*>& weights) {
  const Index length = weights.front()->size(2);
  Tensor<float> heads({static_cast<Index>(weights.size()), length, length});
  float* next = heads.data();
  for (const Tensor<double>* one : weights) {
    for (const double weight : one->span()) *next++ = static_cast<float>(weight);
  }
  view::AttentionMap map = view::make_map(View<const float, 3>(heads), {}, title);
  map.head_names = words;
  return map;
}

}  // namespace qkv::cli

#include "map/look.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "map/seen.h"
#include "qkv/attention.h"
#include "support/files.h"
#include "support/option_group.h"
#include "support/options.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

/// What is reported per head: a mean over the rows i >= 1, since row 0 of a causal head has no choice.
constexpr std::pair<const char*, Tensor<double> RowStatistics::*> kMeans[] = {{"entropy_nats", &RowStatistics::entropy},
                                                                              {"max_weight", &RowStatistics::max_weight},
                                                                              {"self", &RowStatistics::self},
                                                                              {"previous", &RowStatistics::previous},
                                                                              {"first", &RowStatistics::first},
                                                                              {"distance", &RowStatistics::distance}};

double mean_of(const Tensor<double>& statistic, Index place) {
  const View<const double, 3> all = statistic;  // [1, heads, T]
  const Index rows = all.size(2) - 1;
  double sum = 0;
  for (Index i = 1; i <= rows; ++i) sum += all(0, place, i);
  return rows > 0 ? sum / static_cast<double>(rows) : 0;
}

std::size_t width_of(const char* name) { return std::max<std::size_t>(10, std::string_view(name).size()); }

void print_means(const std::vector<LayerLook>& looks) {
  print_line(bold("statistics of each head") + faint("   means over the rows after the first"));
  print_line();
  std::string line = fmt::format("{:>5} {:>5}", "layer", "head");
  for (const auto& [name, member] : kMeans) line += fmt::format(" {:>{}}", name, width_of(name));
  print_line(faint(line));
  for (const LayerLook& look : looks) {
    for (Index place = 0; place < std::ssize(look.heads); ++place) {
      line = fmt::format("{:>5} {:>5}", look.layer, look.heads[static_cast<std::size_t>(place)]);
      for (const auto& [name, member] : kMeans) {
        line += fmt::format(" {:>{}.3f}", mean_of(look.seen.statistics.*member, place), width_of(name));
      }
      print_line(line);
    }
  }
}

void print_largest(const LayerLook& look, const std::vector<std::string>& labels) {
  const View<const double, 4> weights = look.seen.top_weights;  // [1, heads, T, top_k]
  const View<const Index, 4> keys = look.seen.top_keys;
  const auto token = [&](Index j) { return fmt::format("{:>3} {}", j, one_line(labels[static_cast<std::size_t>(j)])); };
  for (Index place = 0; place < weights.size(1); ++place) {
    print_line();
    print_line(bold(fmt::format("layer {} head {}", look.layer, look.heads[static_cast<std::size_t>(place)])) +
               faint("   each row's largest weights, in percent, and their keys"));
    for (Index i = 0; i < weights.size(2); ++i) {
      std::string line = token(i) + " :";
      for (Index n = 0; n < weights.size(3) && keys(0, place, i, n) >= 0; ++n) {
        line += fmt::format("  {:>5.1f} {}", 100 * weights(0, place, i, n), token(keys(0, place, i, n)));
      }
      print_line(line);
    }
  }
}

}  // namespace

void add_map_look_options(CLI::App& app, MapLookOptions& options) {
  const OptionGroup group(app, "Looking at a model in numbers");
  group.flag("--stats", options.stats,
             "Statistics of each head: entropy in nats, largest weight, self, previous, first, distance");
  group.integer("--top-k", options.top_k, "The N largest weights of each row and their keys");
  add_json_option(app, options.json);
  group.take("--json");
}

std::vector<LayerLook> look_at(const lm::AttentionLM& model, std::span<const Index> ids, const std::vector<Index>& layers,
                               const std::vector<Index>& heads, const MapLookOptions& options, Context& context) {
  const auto all = [](std::vector<Index> chosen, Index count) {
    if (!chosen.empty()) return chosen;
    chosen.resize(static_cast<std::size_t>(count));
    std::iota(chosen.begin(), chosen.end(), Index{0});
    return chosen;
  };
  const lm::AttentionLMConfig& config = model.config();
  const std::vector<lm::LayerTrace> traces =
      model.trace(View<const Index, 2>(ids.data(), {1, static_cast<Index>(ids.size())}), context);
  std::vector<LayerLook> looks;
  for (const Index layer : all(layers, config.num_layers)) {
    if (layer < 0 || layer >= config.num_layers) {
      throw UsageError(fmt::format("--layers must be below {}: got {}", config.num_layers, layer));
    }
    const lm::LayerTrace& trace = traces[static_cast<std::size_t>(layer)];
    LayerLook look{layer, all(heads, config.num_heads), {}};
    const Index top_k = std::min(options.top_k, static_cast<Index>(ids.size()));  // no row has more
    const Capture what{.heads = look.heads, .top_k = top_k, .statistics = true};
    Tensor<float> out(trace.q.sizes()), lse({1, config.num_heads, static_cast<Index>(ids.size())});
    AttentionOptions attention{.capture = {what, look.seen}};
    if (config.causal) attention.mask = Mask::causal();
    about("--heads or --top-k",
          [&] { attention_forward(trace.q, trace.k, trace.v, {.out = out, .lse = lse}, attention, context); });
    looks.push_back(std::move(look));
  }
  return looks;
}

void print_looks(const std::vector<LayerLook>& looks, const std::vector<std::string>& labels, const MapLookOptions& options) {
  if (options.stats) print_means(looks);
  if (options.top_k == 0) return;
  for (const LayerLook& look : looks) print_largest(look, labels);
}

Json looks_json(const std::vector<LayerLook>& looks, const std::string& text) {
  Json layers = Json::array();
  for (const LayerLook& look : looks) {
    Json means = Json::array();
    for (Index place = 0; place < std::ssize(look.heads); ++place) {
      Json one{{"head", look.heads[static_cast<std::size_t>(place)]}};
      for (const auto& [name, member] : kMeans) one[name] = mean_of(look.seen.statistics.*member, place);
      means.push_back(std::move(one));
    }
    Json layer{{"layer", look.layer}, {"heads", look.heads}, {"means", std::move(means)}};
    add_seen(layer, look.seen);
    layers.push_back(std::move(layer));
  }
  return {{"text", text}, {"layers", std::move(layers)}};
}

}  // namespace qkv::cli

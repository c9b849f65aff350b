#include "judge/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "core/random.h"
#include "qkv/attention.h"
#include "qkv/nn/layer.h"

namespace qkv::cli {
namespace {

struct Size {
  Index batch, length, embed, heads;
};
constexpr std::array<Size, 3> kSizes = {{{1, 64, 64, 4}, {4, 128, 256, 8}, {16, 100, 512, 8}}};

constexpr double kEnough = 0.2;  // seconds of measuring
constexpr std::size_t kLeast = 3;

/// The median of repeated calls, after one that is not counted.
double seconds_of(const std::function<void()>& call) {
  const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  call();
  std::vector<double> times;
  for (const double begin = now(); times.size() < kLeast || now() - begin < kEnough;) {
    const double start = now();
    call();
    times.push_back(now() - start);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

Tensor<float> numbers(std::vector<Index> sizes) {
  Random random(1);
  Tensor<float> tensor(std::move(sizes));
  for (float& value : tensor.span()) value = static_cast<float>(random.normal());
  return tensor;
}

double function_seconds(const Size& n, bool causal, Context& context) {
  const std::vector<Index> sizes = {n.batch, n.heads, n.length, n.embed / n.heads};
  const Tensor<float> q = numbers(sizes), k = numbers(sizes), v = numbers(sizes);
  Tensor<float> out(sizes);
  AttentionOptions options;
  if (causal) options.mask = Mask::causal();
  return seconds_of([&] { attention_forward(q, k, v, {.out = out}, options, context); });
}

double layer_seconds(std::string_view name, const Size& n, Context& context) {
  const nn::LayerConfig config{.embed_dim = n.embed, .num_heads = n.heads, .num_kv_heads = n.heads / 2, .dropout = 0.0F};
  const std::unique_ptr<nn::Layer> layer = nn::make_layer(name, config);
  const Tensor<float> x = numbers({n.batch, n.length, n.embed});
  Tensor<float> y(x.sizes());
  return seconds_of([&] { layer->forward_into(x, y, {.context = &context}, nullptr); });
}

/// The layer of qkv that computes what a task does.
std::optional<std::string_view> layer_of(std::string_view task) {
  static const std::map<std::string_view, std::string_view> kLayers = {{"v1", "v1"},
                                                                       {"v2", "v2"},
                                                                       {"v3", "v3"},
                                                                       {"v4", "v4"},
                                                                       {"self-attention", "self-attention"},
                                                                       {"mha", "mha"},
                                                                       {"gqa", "grouped-query"},
                                                                       {"single-head", "single-head"}};
  const auto found = kLayers.find(task);
  return found == kLayers.end() ? std::nullopt : std::optional(found->second);
}

bool is_function(std::string_view task) { return task == "sdpa" || task == "causal" || task == "flash"; }

/// Seconds that the runner measured: a positive number, otherwise null.
Json seconds_in(const Json& row, const char* who) {
  const auto found = row.is_object() ? row.find(who) : row.end();
  const bool there = row.is_object() && found != row.end() && found->is_number() && found->get<double>() > 0;
  return there ? *found : Json();
}

std::string ratio(const Json& seconds, const Json& ours) {
  return seconds.is_null() ? "-" : fmt::format("{:.3g} x", seconds.get<double>() / ours.get<double>());
}

}  // namespace

Json speed_sizes() {
  Json sizes = Json::array();
  for (const Size& n : kSizes)
    sizes.push_back({{"batch", n.batch}, {"length", n.length}, {"embed", n.embed}, {"heads", n.heads}});
  return sizes;
}

Json speed_of(std::string_view task, const std::filesystem::path& folder) {
  Json rows = speed_sizes();
  const std::optional<std::string_view> layer = layer_of(task);
  if (!layer && !is_function(task)) return Json::array();
  std::ifstream file(folder / "speed-reply.json");
  const Json reply = Json::parse(file, nullptr, false);
  Context context({.threads = 1});
  for (std::size_t n = 0; n < kSizes.size(); ++n) {
    const Json theirs = reply.is_array() && n < reply.size() ? reply[n] : Json();
    rows[n]["qkv"] = layer ? layer_seconds(*layer, kSizes[n], context) : function_seconds(kSizes[n], task == "causal", context);
    for (const char* who : {"yours", "torch", "naive"}) rows[n][who] = seconds_in(theirs, who);
  }
  return rows;
}

void print_speed(const Json& speed) {
  if (speed.empty()) {
    print_line(
        faint("--speed: this task is not timed (sdpa, causal, flash, v1 to v4, self-attention, single-head, mha, gqa are)"));
    return;
  }
  print_line(bold("speed") + faint("  f32, one thread; times as multiples of qkv's"));
  print_line(faint(fmt::format("{:<24}{:>12}{:>12}{:>12}{:>12}", "", "qkv", "yours", "PyTorch", "textbook")));
  for (const Json& row : speed) {
    const std::string size = fmt::format("B {}, L {}, E {}, H {}", row["batch"].get<Index>(), row["length"].get<Index>(),
                                         row["embed"].get<Index>(), row["heads"].get<Index>());
    print_line(fmt::format("{:<24}{:>12}{:>12}{:>12}{:>12}", size, seconds_text(row["qkv"].get<double>()),
                           ratio(row["yours"], row["qkv"]), ratio(row["torch"], row["qkv"]), ratio(row["naive"], row["qkv"])));
  }
}

}  // namespace qkv::cli

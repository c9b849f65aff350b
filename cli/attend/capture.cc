#include "attend/capture.h"

#include <algorithm>

#include "core/escape.h"
#include "map/maps.h"
#include "map/seen.h"
#include "support/option_group.h"

namespace qkv::cli {
namespace {

CaptureOf parse_of(const std::string& text) {
  if (text == "weights") return CaptureOf::kWeights;
  if (text == "applied") return CaptureOf::kApplied;
  if (text == "gradient") return CaptureOf::kGradient;
  throw UsageError("--of must be weights, applied or gradient: got " + escaped(text));
}

/// [8, B, heads, Tq]
Tensor<double> stacked(const CaptureResult& seen) {
  const auto all = statistics_of(seen);
  std::vector<Index> sizes = seen.statistics.entropy.sizes();
  sizes.insert(sizes.begin(), static_cast<Index>(all.size()));
  Tensor<double> result(sizes);
  double* to = result.data();
  for (const auto& [name, tensor] : all) to = std::ranges::copy(tensor.span(), to).out;
  return result;
}

/// The map of the first sequence as means over the queries of each of its rows,
/// so that each sums to 1.
view::AttentionMap drawn_map(const Tensor<double>& map, Index q_len) {
  if (map.size(0) == 0) throw UsageError("--map-out draws the first sequence: q has none (B = 0); a .npy file can hold that");
  const Index heads = map.size(1), rows = map.size(2), columns = map.size(3);
  view::AttentionMap drawn;
  drawn.weights = Tensor<float>({1, heads, rows, columns});
  for (Index n = 0; n < drawn.weights.count(); ++n) {
    const Index row = n / columns % rows;
    const Index queries = ((row + 1) * q_len + rows - 1) / rows - (row * q_len + rows - 1) / rows;
    drawn.weights.data()[n] = static_cast<float>(queries > 0 ? map.data()[n] / static_cast<double>(queries) : 0);
  }
  drawn.title = "attention, mean over the queries of a block";
  return drawn;
}

}  // namespace

void add_capture_options(CLI::App& app, CaptureOptions& options) {
  const OptionGroup look(app, "Capture (the output stays bit-identical)");
  look.file("--stats", options.stats,
            "Statistics of each row: entropy in nats, largest weight and its key, self, previous, "
            "first, distance, sink; .json, or .npy [8, B, H, Tq]");
  look.integer("--top-k", options.top_k, "The N largest weights of each row, into --capture or a --stats .json");
  look.value("--rows", options.rows, "N,N,...", "Whole rows of these queries, into --capture");
  look.flag("--column-mass", options.column_mass, "Sum of the weights that each key gets, into --capture or a --stats .json");
  look.value("--block-map", options.block_map, "N[,N]",
             "Block sums, a map of N x N (rows, columns), into --map-out or "
             "--capture");
  look.file("--map-out", options.map_out, "The block map: .npy [B, H, N, N], or a picture .png, .svg, .pdf, .html");
  look.file("--capture", options.seen, "Everything that was captured, one .safetensors");
  look.value("--capture-heads", options.heads, "N,N,...", "Capture these heads only");
  look.value("--of", options.of, "WHAT",
             "What is captured: weights, applied (after dropout), gradient (weights times their gradient, "
             "needs --dout)");
  look.flag("--positive", options.positive, "With --of gradient: count only what is above 0");
  look.flag("--mean-of-heads", options.mean_of_heads, "With --of gradient: the mean over the heads, after --positive");
}

Look::Look(const CaptureOptions& options, bool has_dout, Outputs& outputs) : options_(options) {
  what_.of = parse_of(options.of);
  what_.top_k = options.top_k;
  what_.column_mass = options.column_mass;
  what_.positive = options.positive;
  what_.mean_of_heads = options.mean_of_heads;
  if (!options.heads.empty()) what_.heads = parse_indices("--capture-heads", options.heads);
  if (!options.rows.empty()) what_.rows = parse_indices("--rows", options.rows);
  if (!options.block_map.empty()) {
    const std::vector<Index> sizes = parse_indices("--block-map", options.block_map);
    if (sizes.size() > 2) throw UsageError("--block-map must be N or ROWS,COLUMNS: got " + escaped(options.block_map));
    what_.map_rows = sizes.front();
    what_.map_columns = sizes.back();
  }
  const bool gradient = what_.of == CaptureOf::kGradient, lists = ending(options.stats) == ".json";
  what_.statistics = !gradient && (!options.stats.empty() || !options.seen.empty());
  outputs.expect("--stats", options.stats, {".json", ".npy"});
  outputs.expect("--capture", options.seen, {".safetensors"});
  std::vector<std::string> endings = kMapEndings;
  endings.push_back(".npy");
  expect_map(outputs, "--map-out", options.map_out, endings);
  const bool anywhere = !options.seen.empty();
  if (!options.any() && (!options.heads.empty() || options.of != "weights"))
    throw UsageError("--capture-heads and --of need something to look at: add --stats, --map-out or --capture");
  if (gradient && !has_dout) throw UsageError("--of gradient needs the output's gradient: add --dout");
  if (!gradient && (options.positive || options.mean_of_heads))
    throw UsageError("--positive and --mean-of-heads need --of gradient");
  if (gradient && !options.stats.empty() && (!lists || (what_.top_k == 0 && !what_.column_mass)))
    throw UsageError("--stats describes weights: --of gradient has only --top-k and --column-mass in a .json");
  if (gradient && !options.positive && !options.map_out.empty() && ending(options.map_out) != ".npy")
    throw UsageError("--map-out of gradients, which may be negative, must be a .npy file, or add --positive");
  if ((what_.top_k != 0 || what_.column_mass) && !anywhere && !lists)
    throw UsageError(
        "--top-k and --column-mass need a place: add --capture "
        "FILE.safetensors or --stats FILE.json");
  if (!what_.rows.empty() && !anywhere) throw UsageError("--rows needs a place: add --capture FILE.safetensors");
  if (what_.map_rows != 0 && options.map_out.empty() && !anywhere)
    throw UsageError(
        "--block-map needs a place: add --map-out FILE or --capture "
        "FILE.safetensors");
  if (!options.map_out.empty() && what_.map_rows == 0) throw UsageError("--map-out needs a resolution: add --block-map N");
}

CaptureRequest Look::request(Index kv_len) {
  what_.top_k = std::min(what_.top_k, kv_len);  // the library would keep room for what no row has
  return options_.any() ? CaptureRequest(what_, seen_) : CaptureRequest();
}

void Look::write(Index q_len, Outputs& outputs) const {
  if (ending(options_.stats) == ".npy") outputs.add_npy(options_.stats, any_tensor(stacked(seen_)));
  if (ending(options_.stats) == ".json") {
    Json document;
    document["heads"] = what_.heads;
    add_seen(document, seen_);
    outputs.add(options_.stats, document.dump(1) + "\n");
  }
  if (ending(options_.map_out) == ".npy") {
    outputs.add_npy(options_.map_out, any_tensor(seen_.map));
  } else if (!options_.map_out.empty()) {
    view::MapOptions style;
    style.range = view::ValueRange::kMax;
    add_map(outputs, options_.map_out, drawn_map(seen_.map, q_len), style);
  }
  if (options_.seen.empty()) return;
  StateDict state;
  const auto add = [&state](const char* name, const auto& tensor) {
    if (tensor.rank() > 0) state.add(name, any_tensor(tensor));
  };
  add("rows", seen_.rows);
  add("top_weights", seen_.top_weights);
  add("top_keys", seen_.top_keys);
  add("map", seen_.map);
  add("column_mass", seen_.column_mass);
  const RowStatistics& s = seen_.statistics;
  add("entropy", s.entropy);
  add("max_weight", s.max_weight);
  add("max_key", s.max_key);
  add("self", s.self);
  add("previous", s.previous);
  add("first", s.first);
  add("distance", s.distance);
  add("sink", s.sink);
  outputs.add_safetensors(options_.seen, state);
}

}  // namespace qkv::cli

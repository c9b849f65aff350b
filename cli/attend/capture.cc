#include "attend/capture.h"

#include <algorithm>

#include "core/escape.h"
#include "support/json.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

/// body(name, tensor) for each statistic [B, heads, Tq], in the order of the .npy file.
template <class Body> void each_statistic(const RowStatistics& s, const Body& body) {
  body("entropy", s.entropy);
  body("max_weight", s.max_weight);
  body("max_key", s.max_key);
  body("self", s.self);
  body("previous", s.previous);
  body("first", s.first);
  body("distance", s.distance);
  body("sink", s.sink);
}

/// [8, B, heads, Tq]
Tensor<double> stacked(const RowStatistics& statistics) {
  std::vector<Index> sizes = statistics.entropy.sizes();
  sizes.insert(sizes.begin(), 8);
  Tensor<double> result(sizes);
  double* to = result.data();
  each_statistic(statistics, [&](const char*, const auto& tensor) { to = std::ranges::copy(tensor.span(), to).out; });
  return result;
}

}  // namespace

void CaptureOptions::add_to(Options& add) {
  add.heading("Capture (the output stays bit-identical)");
  add("--stats FILE", &stats,
      "Statistics of each row: entropy in nats, largest weight and its key, self, previous, first, distance, sink; "
      ".json, or .npy [8, B, H, Tq]");
  add("--top-k N", &top_k, "The N largest weights of each row, into --capture or a --stats .json");
  add("--rows N,N,...", &rows, "Whole rows of these queries, into --capture");
  add("--column-mass", &column_mass, "Sum of the weights that each key gets, into --capture or a --stats .json");
  add("--block-map N[,N]", &block_map, "Block sums, a map of N x N (rows, columns), into --capture");
  add("--capture FILE", &file, "Everything that was captured, one .safetensors");
  add("--capture-heads N,N,...", &heads, "Capture these heads only");
  add("--of WHAT", &of, "weights, applied (after dropout), gradient (weights times their gradient, needs --dout)");
}

CaptureCall::CaptureCall(const CaptureOptions& options, bool has_dout, Outputs& outputs) : options_(options) {
  what_.of = named<CaptureOf>("--of", options.of,
      {{"weights", CaptureOf::kWeights}, {"applied", CaptureOf::kApplied}, {"gradient", CaptureOf::kGradient}});
  what_.top_k = options.top_k;
  what_.column_mass = options.column_mass;
  if (!options.heads.empty()) what_.heads = parse_indices("--capture-heads", options.heads);
  if (!options.rows.empty()) what_.rows = parse_indices("--rows", options.rows);
  if (!options.block_map.empty()) {
    const std::vector<Index> sizes = parse_indices("--block-map", options.block_map);
    if (sizes.size() > 2) throw UsageError("--block-map must be N or ROWS,COLUMNS: got " + escaped(options.block_map));
    what_.map_rows = sizes.front();
    what_.map_columns = sizes.back();
  }
  const bool gradient = what_.of == CaptureOf::kGradient, lists = ending(options.stats) == ".json";
  what_.statistics = !gradient && options.any();
  outputs.expect("--stats", options.stats, {".json", ".npy"});
  outputs.expect("--capture", options.file, {".safetensors"});
  if (!options.any() && (!options.heads.empty() || options.of != "weights"))
    throw UsageError("--capture-heads and --of need something to capture: add --stats or --capture");
  if (gradient && !has_dout) throw UsageError("--of gradient needs the output's gradient: add --dout");
  if (gradient && !options.stats.empty() && (!lists || (what_.top_k == 0 && !what_.column_mass)))
    throw UsageError("--stats describes weights: --of gradient has only --top-k and --column-mass in a .json");
  if ((what_.top_k != 0 || what_.column_mass) && options.file.empty() && !lists)
    throw UsageError("--top-k and --column-mass need a file: add --capture FILE.safetensors or --stats FILE.json");
  if ((!what_.rows.empty() || what_.map_rows != 0) && options.file.empty())
    throw UsageError("--rows and --block-map need a file: add --capture FILE.safetensors");
}

CaptureRequest CaptureCall::request(Index kv_len) {
  what_.top_k = std::min(what_.top_k, kv_len);  // the library would allocate for what no row has
  return options_.any() ? CaptureRequest(what_, result_) : CaptureRequest();
}

void CaptureCall::write(Outputs& outputs) const {
  if (ending(options_.stats) == ".npy") outputs.add_npy(options_.stats, any_tensor(stacked(result_.statistics)));
  Json document{{"heads", what_.heads}};
  StateDict state;
  const auto add = [&](const char* name, const auto& tensor) {
    if (tensor.rank() == 0) return;
    state.add(name, any_tensor(tensor));
    document[std::string_view(name) == "entropy" ? "entropy_nats" : name] = nested(tensor);
  };
  each_statistic(result_.statistics, add);
  add("top_weights", result_.top_weights);
  add("top_keys", result_.top_keys);
  add("column_mass", result_.column_mass);
  if (ending(options_.stats) == ".json") outputs.add(options_.stats, document.dump(1) + "\n");
  if (options_.file.empty()) return;
  add("rows", result_.rows);
  add("map", result_.map);
  outputs.add_safetensors(options_.file, state);
}

}  // namespace qkv::cli

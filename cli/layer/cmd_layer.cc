// `qkv layer`: any layer of the ladder with a PyTorch state_dict, so that a class written by hand can be compared with
// it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/escape.h"
#include "qkv/nn/layer.h"
#include "qkv/rotary.h"
#include "support/command.h"
#include "support/files.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

struct LayerCommandOptions {
  std::string name, state, x, out, weights, applied, dout, grads, empty_row;
  DenseMaskOptions dense;
  std::optional<bool> causal;
  Index heads = 0, kv_heads = 0;  // 0: not given
  std::optional<std::string> rope;
  std::optional<double> norm_eps;
  std::optional<float> dropout, residual_dropout;
  std::optional<std::uint64_t> seed;
  ComputeOptions compute;

  bool training() const { return dropout || residual_dropout; }
};

Tensor<float> load_bte(std::string_view option, const std::string& path) {
  Tensor<float> tensor = to_f32(load_npy(option, path));
  if (tensor.rank() != 3) {
    throw UsageError(std::string(option) + " " + escaped(path) + ": must be [B, T, E]: got " + tensor.shape());
  }
  return tensor;
}

std::string all_names() { return fmt::format("{}", fmt::join(nn::layer_names(), ", ")); }

/// Refuses what is wrong already before any file is read.
void check_usage(const LayerCommandOptions& options) {
  const bool grouped = options.name == "grouped-query";
  if (std::ranges::find(nn::layer_names(), options.name) == std::end(nn::layer_names()))
    throw UsageError("NAME must be one of " + all_names() + ": got " + escaped(options.name));
  if (options.name != "mha" && !grouped && options.heads > 1) {
    throw UsageError("--heads is for mha and grouped-query only: " + options.name + " has one head, got " +
                     std::to_string(options.heads));
  }
  if (!grouped && options.kv_heads != 0) throw UsageError("--kv-heads is for grouped-query only: got " + options.name);
  if (!grouped && (options.rope || options.norm_eps))
    throw UsageError("--rope and --norm-eps are for grouped-query only: got " + options.name);
  if (options.seed && !options.training()) throw UsageError("--seed is of --dropout and --residual-dropout: add one");
  const bool drops = options.dropout.value_or(0) != 0 || options.residual_dropout.value_or(0) != 0;
  if ((drops || !options.empty_row.empty()) && (options.name == "average" || options.name == "fixed-weights"))
    throw UsageError((drops ? "--dropout and --residual-dropout are" : "--empty-row is") +
                     std::string(" for layers that compute their weights: got ") + options.name);
  if (options.name != "average" && options.state.empty())
    throw UsageError("--state is required: the parameters, a state_dict saved as safetensors");
  if (options.dout.empty() != options.grads.empty()) throw UsageError("--dout and --grads belong together: give both");
  options.dense.check();
}

/// Of heads and rotary positions, what the weights decide. No file says how many heads its weights are for, and any
/// number that fits gives an output: the option's name and what fits.
void check_heads(
    const LayerCommandOptions& options, const StateDict& state, const std::optional<RotaryOptions>& rotary) {
  const std::vector<Index> possible = nn::possible_heads(options.name, state);
  if (possible.empty()) return;  // no weights of attention: load_layer says so
  const Index heads = options.heads == 0 && possible.size() == 1 ? possible[0] : options.heads;
  if (heads != 0 && std::ranges::find(possible, heads) == possible.end())
    throw UsageError(fmt::format(
        "--heads must be one of {} for --state {}: got {}", fmt::join(possible, ", "), escaped(options.state), heads));
  if (options.kv_heads != 0 && heads % options.kv_heads != 0)
    throw UsageError(fmt::format("--kv-heads must divide --heads: got {} for {}", options.kv_heads, heads));
  const AnyTensor *const q = state.find("q_proj.weight"), *const k = state.find("k_proj.weight");
  if (options.kv_heads != 0 && heads != 0 && q != nullptr && k != nullptr) {
    const Index width = q->sizes[0] / heads;
    if (width > 0 && k->sizes[0] != options.kv_heads * width)
      throw UsageError(fmt::format("--kv-heads must be {} for --state {}, of {} heads: got {}", k->sizes[0] / width,
          escaped(options.state), heads, options.kv_heads));
  }
  if (rotary && heads != 0 && q != nullptr)
    about("--rope", [&] { static_cast<void>(Rotary(q->sizes[0] / heads, *rotary)); });
  if (heads != 0) return;
  throw UsageError(
      fmt::format("--heads is required for {}: the weights in --state {} do not say how many there are and allow {}",
          options.name, escaped(options.state), fmt::join(possible, ", ")));
}

std::unique_ptr<nn::Layer> load(const LayerCommandOptions& options, const Tensor<float>& x) {
  nn::LayerConfig config;
  config.num_heads = options.heads;
  config.num_kv_heads = options.kv_heads;
  config.norm_eps = options.norm_eps.value_or(config.norm_eps);
  if (options.rope) config.rotary = parse_rotary(*options.rope).options;
  if (!options.empty_row.empty()) config.empty_row = parse_empty_row(options.empty_row);
  config.dropout = options.dropout.value_or(0);
  config.residual_dropout = options.residual_dropout.value_or(0);
  if (options.state.empty()) return nn::make_layer(options.name, config);
  const StateDict state = load_safetensors("--state", options.state);
  check_heads(options, state, config.rotary);
  if (options.norm_eps && !state.contains("q_norm.weight"))
    throw UsageError("--norm-eps needs norms: there is no q_norm.weight in --state " + escaped(options.state));
  std::unique_ptr<nn::Layer> layer =
      about_file("--state", options.state, [&] { return nn::load_layer(options.name, state, config); });
  if (layer->embed_dim() != 0 && layer->embed_dim() != x.size(2)) {
    throw UsageError("--x " + escaped(options.x) + ": the last axis must be the layer's width " +
                     std::to_string(layer->embed_dim()) + ": got " + x.shape());
  }
  layer->train(options.training());
  return layer;
}

/// Both files as one mask, which borrows what `held` holds. Without --mask-axes the layer knows what the axes are,
/// where only one reading fits.
Mask load_masks(const DenseMaskOptions& options, const nn::Layer& layer, std::array<Tensor<std::uint8_t>, 2>& held) {
  Mask mask;
  for (const bool keeps : {true, false}) {
    const std::string option = keeps ? "--keep" : "--drop";
    const std::string& path = keeps ? options.keep : options.drop;
    if (path.empty()) continue;
    const Tensor<std::uint8_t>& dense = held[keeps ? 0 : 1] = to_bool(load_npy(option, path));
    const std::string file = option + " " + escaped(path);
    if (options.axes.empty() && dense.rank() == 2 && dense.size(0) == dense.size(1) && dense.size(0) > 1) {
      throw UsageError(
          file +
          ": a square mask fits two readings: add --mask-axes bk for [B, Tk] or --mask-axes qk for [Tq, Tk]: got " +
          dense.shape());
    }
    mask = mask & (options.axes.empty() ? about(file, [&] { return keeps ? layer.keep(dense) : layer.drop(dense); })
                                        : dense_mask(file, dense, options.axes, keeps));
  }
  return mask;
}

/// y; weights and gradients as they are asked for.
Tensor<float> run_ladder(const LayerCommandOptions& options, const Tensor<float>& x, const Tensor<float>& dout,
    Tensor<float>& weights, Tensor<float>& applied, StateDict& gradients) {
  const std::unique_ptr<nn::Layer> layer = load(options, x);
  Context context(options.compute.context());
  std::array<Tensor<std::uint8_t>, 2> held;
  nn::ForwardOptions forward{.mask = load_masks(options.dense, *layer, held),
      .causal = options.causal,
      .seed = options.seed.value_or(0),
      .context = &context};
  if (options.rope) forward.positions = parse_rotary(*options.rope).positions;
  if (!options.weights.empty()) forward.weights = &weights;
  if (!options.applied.empty()) forward.applied = &applied;
  nn::Saved saved;
  std::string files = "--x " + escaped(options.x);
  if (!options.dense.keep.empty()) files += ", --keep " + escaped(options.dense.keep);
  if (!options.dense.drop.empty()) files += ", --drop " + escaped(options.dense.drop);
  Tensor<float> y = about<ShapeError>(files, [&] { return layer->forward(x, forward, &saved); });
  if (dout.rank() == 0) return y;
  if (dout.sizes() != y.sizes()) {
    throw UsageError(
        "--dout " + escaped(options.dout) + ": must have the output's shape " + y.shape() + ": got " + dout.shape());
  }
  layer->zero_gradients();
  const Tensor<float> dx = layer->backward(dout, saved, context);
  gradients = layer->gradients();
  gradients.add("x", any_tensor(dx));
  return y;
}

int run_layer(const LayerCommandOptions& options) {
  check_usage(options);
  Outputs outputs;
  for (const std::string& path : {options.state, options.x, options.dense.keep, options.dense.drop, options.dout})
    outputs.protect(path);
  outputs.expect("--out", options.out, {".npy"});
  outputs.expect("--weights", options.weights, {".npy"});
  outputs.expect("--applied", options.applied, {".npy"});
  outputs.expect("--grads", options.grads, {".safetensors"});
  const Tensor<float> x = load_bte("--x", options.x);
  const Tensor<float> dout = options.dout.empty() ? Tensor<float>() : load_bte("--dout", options.dout);
  Tensor<float> weights, applied;
  StateDict gradients;
  const Tensor<float> y = run_ladder(options, x, dout, weights, applied, gradients);
  outputs.add_npy(options.out, any_tensor(y));
  if (!options.weights.empty()) outputs.add_npy(options.weights, any_tensor(weights));
  if (!options.applied.empty()) outputs.add_npy(options.applied, any_tensor(applied));
  if (!options.grads.empty()) outputs.add_safetensors(options.grads, gradients);
  outputs.commit();
  return 0;
}

void declare_layer(Options& add, LayerCommandOptions& options) {
  add("NAME", &options.name, all_names(), {.required = true});
  add("--state FILE", &options.state, "Parameters: a PyTorch state_dict saved as .safetensors");
  add("--x FILE", &options.x, "Input [B, T, E], .npy", {.required = true});
  add("--out FILE", &options.out, "Output [B, T, E], .npy", {.required = true});
  add("--heads N", &options.heads, "Heads, required for mha and grouped-query", {.least = 1});
  add("--kv-heads N", &options.kv_heads, "Heads of keys and values of grouped-query (default: from the file)",
      {.least = 1});
  add("--rope [KEY=VALUE,...]", &options.rope,
      "Rotary positions of grouped-query: base=10000,layout=half,... (default: none)");
  add("--norm-eps X", &options.norm_eps, "Epsilon of the norms of grouped-query (default 1e-6)");
  options.dense.add_to(add);
  add("--causal,!--no-causal", &options.causal, "No key after the query (single-head is causal by default)");
  add("--empty-row HOW", &options.empty_row, "A row without keys gives zero, mean or nan (default: the layer's)");
  add("--weights FILE", &options.weights, "Weights [B, H, T, T] before dropout, .npy");
  add("--dropout P", &options.dropout, "Dropout of the weights, as in training (default 0)", {.most = 1});
  add("--residual-dropout P", &options.residual_dropout, "Dropout of the output, as in training (default 0)",
      {.most = 1});
  add("--seed N", &options.seed, "Seed of both dropouts (default 0)");
  add("--applied FILE", &options.applied, "Weights after dropout, .npy");
  add("--dout FILE", &options.dout, "Gradient arriving at the output, .npy");
  add("--grads FILE", &options.grads, "Gradients of x and of every parameter by its name, .safetensors");
  add.compute(options.compute);
}

const bool layer_added =
    add_command({"layer", "One layer of the ladder with a PyTorch state_dict",
                    "qkv layer mha --heads 8 --state mha.safetensors --x x.npy --out y.npy --weights w.npy"},
        declare_layer, run_layer);

}  // namespace
}  // namespace qkv::cli

// `qkv layer`: any layer of the ladder with a PyTorch state_dict, so that a class written by hand can be compared with it.
// Not: training, attention without parameters (attend).
#include <algorithm>

#include "core/escape.h"
#include "layer/layer_options.h"
#include "qkv/nn/layer.h"
#include "support/command.h"
#include "support/integer_option.h"
#include "support/rotary_option.h"

namespace qkv::cli {

Tensor<float> load_bte(std::string_view option, const std::string& path) {
  Tensor<float> tensor = to_f32(load_npy(option, path));
  if (tensor.rank() != 3) {
    throw UsageError(std::string(option) + " " + escaped(path) + ": must be [B, T, E]: got " + tensor.shape());
  }
  return tensor;
}

namespace {

constexpr std::string_view kLatent = "latent";

std::string all_names() {
  std::string names;
  for (const std::string_view one : nn::layer_names()) names += std::string(one) + ", ";
  return names + std::string(kLatent);
}

/// Refuses what is wrong already before any file is read.
void check_usage(const LayerCommandOptions& options) {
  const bool latent = options.name == kLatent, grouped = options.name == "grouped-query";
  if (!latent && std::ranges::find(nn::layer_names(), options.name) == std::end(nn::layer_names()))
    throw UsageError("NAME must be one of " + all_names() + ": got " + escaped(options.name));
  if (options.name != "mha" && !grouped && !latent && options.heads > 1) {
    throw UsageError("--heads is for mha, grouped-query and latent only: " + options.name + " has one head, got " +
                     std::to_string(options.heads));
  }
  if (!grouped && options.kv_heads != 0) throw UsageError("--kv-heads is for grouped-query only: got " + options.name);
  if (!grouped && !latent && (options.rope || options.norm_eps))
    throw UsageError("--rope and --norm-eps are for grouped-query and latent only: got " + options.name);
  if (latent && (options.training() || !options.empty_row.empty() || !options.weights.empty() || !options.applied.empty()))
    throw UsageError("latent has no dropout, --empty-row, --weights or --applied: leave them out");
  const bool drops = options.dropout.value_or(0) != 0 || options.residual_dropout.value_or(0) != 0;
  if (drops && (options.name == "average" || options.name == "fixed-weights"))
    throw UsageError("--dropout and --residual-dropout are for layers that compute their weights: got " + options.name);
  if (options.dout.empty() != options.grads.empty()) throw UsageError("--dout and --grads belong together: give both");
  if (!options.mask_axes.empty() && options.keep.empty() && options.drop.empty())
    throw UsageError("--mask-axes needs --keep or --drop");
}

/// No file says how many heads its weights are for, and any number that fits gives an output. The option's name and what fits.
void require_heads(const LayerCommandOptions& options, const StateDict& state) {
  const std::vector<Index> possible = nn::possible_heads(options.name, state);
  if (options.heads != 0 || possible.size() < 2) return;
  std::string numbers;
  for (const Index heads : possible) numbers += (numbers.empty() ? "" : ", ") + std::to_string(heads);
  throw UsageError("--heads is required for " + options.name + ": the weights in --state " + escaped(options.state) +
                   " do not say how many there are and allow " + numbers);
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
  const bool has_parameters = options.name != "average";
  if (has_parameters && options.state.empty())
    throw UsageError("--state is required: the parameters, a state_dict saved as safetensors");
  if (!has_parameters && options.state.empty()) return nn::make_layer(options.name, config);
  const StateDict state = load_safetensors("--state", options.state);
  require_heads(options, state);
  std::unique_ptr<nn::Layer> layer =
      about_file("--state", options.state, [&] { return nn::load_layer(options.name, state, config); });
  if (layer->embed_dim() != 0 && layer->embed_dim() != x.size(2)) {
    throw UsageError("--x " + escaped(options.x) + ": the last axis must be the layer's width " +
                     std::to_string(layer->embed_dim()) + ": got " + x.shape());
  }
  layer->train(options.training());
  return layer;
}

/// Without --mask-axes the layer knows what the axes of its masks are, where only one reading fits.
Mask make_mask(const LayerCommandOptions& options, const nn::Layer& layer, Tensor<std::uint8_t>& keep,
               Tensor<std::uint8_t>& drop) {
  Mask mask;
  const auto add = [&](std::string_view option, const std::string& path, Tensor<std::uint8_t>& dense, bool keeps) {
    if (path.empty()) return;
    dense = to_bool(load_npy(option, path));
    if (options.mask_axes.empty() && dense.rank() == 2 && dense.size(0) == dense.size(1) && dense.size(0) > 1) {
      throw UsageError(std::string(option) + " " + escaped(path) +
                       ": a square mask fits two readings: add --mask-axes bk for [B, Tk]"
                       " or --mask-axes qk for [Tq, Tk]: got " +
                       dense.shape());
    }
    const auto own = [&] { return keeps ? layer.keep(dense) : layer.drop(dense); };
    mask = mask &
           (options.mask_axes.empty() ? about_file(option, path, own) : dense_mask(option, dense, options.mask_axes, keeps));
  };
  add("--keep", options.keep, keep, true);
  add("--drop", options.drop, drop, false);
  return mask;
}

/// Every parameter's gradient by its name in the file, and that of x.
StateDict gradients(nn::Layer& layer, const Tensor<float>& dout, nn::Saved& saved, Context& context) {
  layer.zero_gradients();
  const Tensor<float> dx = layer.backward(dout, saved, context);
  StateDict result = layer.gradients();
  result.add("x", any_tensor(dx));
  return result;
}

int run_layer(const LayerCommandOptions& options) {
  check_usage(options);
  if (options.name == kLatent) return run_latent(options);
  Outputs outputs;
  for (const std::string& path : {options.state, options.x, options.keep, options.drop, options.dout}) outputs.protect(path);
  outputs.expect("--out", options.out, {".npy"});
  outputs.expect("--weights", options.weights, {".npy"});
  outputs.expect("--applied", options.applied, {".npy"});
  outputs.expect("--grads", options.grads, {".safetensors"});
  const Tensor<float> x = load_bte("--x", options.x);
  const std::unique_ptr<nn::Layer> layer = load(options, x);
  Context context(options.compute.context());
  Tensor<std::uint8_t> keep, drop;
  Tensor<float> weights, applied;
  nn::ForwardOptions forward{
      .mask = make_mask(options, *layer, keep, drop), .causal = options.causal, .seed = options.seed, .context = &context};
  if (options.rope) forward.positions = parse_rotary(*options.rope).positions;
  if (!options.weights.empty()) forward.weights = &weights;
  if (!options.applied.empty()) forward.applied = &applied;

  nn::Saved saved;
  std::string files = "--x " + escaped(options.x);
  if (!options.keep.empty()) files += ", --keep " + escaped(options.keep);
  if (!options.drop.empty()) files += ", --drop " + escaped(options.drop);
  const Tensor<float> y = about<ShapeError>(files, [&] { return layer->forward(x, forward, &saved); });
  outputs.add_npy(options.out, any_tensor(y));
  if (!options.weights.empty()) outputs.add_npy(options.weights, any_tensor(weights));
  if (!options.applied.empty()) outputs.add_npy(options.applied, any_tensor(applied));
  if (!options.grads.empty()) {
    const Tensor<float> dout = load_bte("--dout", options.dout);
    if (dout.sizes() != y.sizes()) {
      throw UsageError("--dout " + escaped(options.dout) + ": must have the output's shape " + y.shape() + ": got " +
                       dout.shape());
    }
    outputs.add_safetensors(options.grads, gradients(*layer, dout, saved, context));
  }
  outputs.commit();
  return 0;
}

std::function<int()> declare_layer(CLI::App& app) {
  auto options = std::make_shared<LayerCommandOptions>();
  const auto file = [&](const char* name, std::string& path, const char* help) {
    return app.add_option(name, path, help)->type_name("FILE");
  };
  app.add_option("NAME", options->name, all_names())->type_name("NAME")->required();
  file("--state", options->state, "Parameters: a PyTorch state_dict saved as .safetensors");
  file("--x", options->x, "Input [B, T, E], .npy")->required();
  file("--out", options->out, "Output [B, T, E], .npy")->required();
  add_integer(app, "--heads", options->heads, "Heads, required for mha and grouped-query; latent: from the file", 1);
  add_integer(app, "--kv-heads", options->kv_heads, "Heads of keys and values of grouped-query (default: from the file)", 1);
  app.add_option_function<std::string>(
         "--rope", [options](const std::string& text) { options->rope = text; },
         "Rotary positions of grouped-query and latent: base=10000,layout=half,... (default: none; latent: interleaved)")
      ->type_name("KEY=VALUE,...")
      ->expected(0, 1)
      ->default_str("");
  app.add_option("--norm-eps", options->norm_eps,
                 "Epsilon of the norms of grouped-query and latent (default 1e-6)")
      ->type_name("X");
  file("--keep", options->keep, "Non-zero: may attend; [B, Tk], [B, Tq, Tk], four axes; a square one needs --mask-axes");
  file("--drop", options->drop, "Non-zero: may not attend");
  app.add_option("--mask-axes", options->mask_axes, "Axes of the mask: bk, qk, bqk, hqk (default: by their number)")
      ->type_name("AXES");
  // A function, not the optional itself: CLI11 2.1 writes false into that when neither flag is given.
  app.add_flag_function(
      "--causal,!--no-causal", [options](std::int64_t count) { options->causal = count > 0; },
      "No key after the query (single-head is causal by default)");
  app.add_option("--empty-row", options->empty_row, "A row without keys gives zero, mean or nan (default: the layer's)")
      ->type_name("HOW");
  file("--weights", options->weights, "Weights [B, H, T, T] before dropout, .npy");
  app.add_option("--dropout", options->dropout, "Dropout of the weights, as in training (default 0)")->type_name("P");
  app.add_option("--residual-dropout", options->residual_dropout, "Dropout of the output, as in training (default 0)")
      ->type_name("P");
  add_integer(app, "--seed", options->seed, "Seed of both dropouts (default 0)");
  file("--applied", options->applied, "Weights after dropout, .npy");
  file("--dout", options->dout, "Gradient arriving at the output, .npy");
  file("--grads", options->grads, "Gradients of x and of every parameter by its name, .safetensors");
  add_compute_options(app, options->compute);
  return [options] { return run_layer(*options); };
}

const bool layer_added =
    add_command({"layer", "One layer of the ladder with a PyTorch state_dict",
                 "qkv layer mha --heads 8 --state mha.safetensors --x x.npy --out y.npy --weights w.npy", declare_layer});

}  // namespace
}  // namespace qkv::cli

// `qkv layer latent`: DeepSeek's latent attention, in the materialised form. Not: caches, the ladder (cmd_layer.cc).
#include "core/escape.h"
#include "layer/layer_options.h"
#include "qkv/nn/latent_attention.h"

namespace qkv::cli {
namespace {

/// Every size, the number of heads too, from the shapes in the file: with the rows of q_proj H (Dn + Dr), those of
/// kv_b_proj H (Dn + Dv) and the columns of o_proj H Dv.
nn::LatentAttentionConfig config_of(const LayerCommandOptions& options, const StateDict& state) {
  const std::string file = "--state " + escaped(options.state) + ": ";
  const auto size = [&](const std::string& name, std::size_t rank, std::size_t axis) {
    const AnyTensor* tensor = state.find(name);
    if (tensor == nullptr) throw UsageError(file + "latent needs DeepSeek's names: there is no " + name);
    if (tensor->sizes.size() != rank)
      throw UsageError(file + name + " must have " + std::to_string(rank) + " axes: got " + tensor->shape());
    return tensor->sizes[axis];
  };
  nn::LatentAttentionConfig c;
  const bool low_rank = state.contains("q_a_proj.weight");
  c.q_lora_rank = low_rank ? size("q_a_proj.weight", 2, 0) : 0;
  c.embed_dim = size("kv_a_proj_with_mqa.weight", 2, 1);
  c.kv_lora_rank = size("kv_a_layernorm.weight", 1, 0);
  c.qk_rope_head_dim = size("kv_a_proj_with_mqa.weight", 2, 0) - c.kv_lora_rank;
  const Index q_rows = size(low_rank ? "q_b_proj.weight" : "q_proj.weight", 2, 0),
              v_columns = size("o_proj.weight", 2, 1);
  const Index nope_rows = size("kv_b_proj.weight", 2, 0) - v_columns;  // H Dn
  const Index turned = q_rows - nope_rows;                             // H Dr
  const Index heads = c.qk_rope_head_dim >= 1 ? turned / c.qk_rope_head_dim : 0;
  if (heads < 1 || turned % c.qk_rope_head_dim != 0 || nope_rows < 1 || nope_rows % heads != 0 ||
      v_columns % heads != 0)
    throw UsageError(
        file + "the shapes of q_proj (or q_b_proj), kv_a_proj_with_mqa, kv_b_proj and o_proj fit no number of heads");
  if (options.heads != 0 && options.heads != heads) {
    throw UsageError("--heads must be what the shapes in --state say, " + std::to_string(heads) + ": got " +
                     std::to_string(options.heads));
  }
  c.num_heads = heads;
  c.qk_nope_head_dim = nope_rows / heads;
  c.v_head_dim = v_columns / heads;
  c.bias = state.contains("kv_a_proj_with_mqa.bias");
  c.norm_eps = options.norm_eps.value_or(c.norm_eps);
  if (options.rope) {
    c.rotary = parse_rotary(*options.rope).options;
    if (options.rope->find("layout") == std::string::npos) c.rotary.layout = RotaryLayout::kInterleaved;
  }
  return c;
}

}  // namespace

Tensor<float> run_latent(
    const LayerCommandOptions& options, const Tensor<float>& x, const Tensor<float>& dout, StateDict& gradients) {
  const StateDict state = load_safetensors("--state", options.state);
  nn::MultiHeadLatentAttention layer(config_of(options, state));
  about_file("--state", options.state, [&] { layer.load_state_dict(state); });
  Context context(options.compute.context());
  DenseMasks dense;
  nn::LatentOptions forward{.mask = dense.load(options.dense), .causal = options.causal};
  if (options.rope) forward.positions = parse_rotary(*options.rope).positions;
  nn::LatentSaved saved;
  Tensor<float> y(x.sizes());
  about<ShapeError>("--x " + escaped(options.x), [&] { layer.forward(x, y, saved, forward, context); });
  if (dout.rank() == 0) return y;
  Tensor<float> dx(x.sizes());
  layer.zero_gradients();
  about<ShapeError>("--dout " + escaped(options.dout), [&] { layer.backward(dout, saved, dx, context); });
  gradients = layer.gradients();
  gradients.add("x", any_tensor(dx));
  return y;
}

}  // namespace qkv::cli

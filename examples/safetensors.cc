// A layer to a file and back, and a file with other names: torch's in_proj_weight, written by hand.
#include "qkv/io/safetensors.h"

#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::Tensor<float> x = random_tensor({2, 3, 8}, 1);  // [B, T, E]
  const qkv::nn::MultiHeadAttention layer({.embed_dim = 8, .num_heads = 2, .seed = 2});
  qkv::io::save_safetensors("layer.safetensors", layer.state_dict());
  qkv::nn::MultiHeadAttention copy({.embed_dim = 8, .num_heads = 2, .seed = 3});
  copy.load_state_dict(qkv::io::load_safetensors("layer.safetensors"));
  const qkv::StateDict loaded = copy.state_dict();
  for (const auto& [name, tensor] : loaded.entries()) std::printf("%-14s %s\n", name.c_str(), tensor.shape().c_str());
  const double same = largest_difference(layer.forward(x), copy.forward(x));

  qkv::StateDict torch;  // with the names and merged matrices of torch.nn.MultiheadAttention
  torch.add("in_proj_weight", qkv::any_tensor(random_tensor({24, 8}, 4)));
  torch.add("in_proj_bias", qkv::any_tensor(random_tensor({24}, 5)));
  torch.add("out_proj.weight", qkv::any_tensor(random_tensor({8, 8}, 6)));
  torch.add("out_proj.bias", qkv::any_tensor(random_tensor({8}, 7)));
  copy.load_state_dict(torch);
  bool kept = true;  // saved again under the names that were loaded
  const qkv::StateDict saved = copy.state_dict();
  for (const auto& [name, tensor] : torch.entries()) kept = kept && saved.at(name).bytes == tensor.bytes;

  std::string refusal;
  qkv::StateDict half;
  half.add("q_proj.weight", qkv::any_tensor(random_tensor({8, 8}, 8)));
  try {
    copy.load_state_dict(half);
  } catch (const qkv::Error& error) {
    refusal = error.what();
  }
  std::printf("a file with one parameter: %s\n", refusal.c_str());
  return verdict(
      same == 0 && kept && !refusal.empty(), "saved and loaded bit for bit; torch's names are read and kept");
}

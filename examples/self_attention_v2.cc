// SelfAttentionV2: the three projections of V1 merged into one matrix, rows in the order q, k, v. The same layer.
#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::nn::SelfAttentionV1 separate({.embed_dim = 4, .seed = 1});
  const qkv::nn::SelfAttentionV2 merged = qkv::nn::to_v2(separate);
  const auto print = [](const char* form, const qkv::StateDict& state) {
    for (const auto& [name, tensor] : state.entries())
      std::printf("%s  %-18s %s\n", form, name.c_str(), tensor.shape().c_str());
  };
  print("V1", separate.state_dict());
  print("V2", merged.state_dict());

  const qkv::Tensor<float> x = random_tensor({3, 2, 4}, 2);  // [B, T, E]
  const double difference = largest_difference(separate.forward(x), merged.forward(x));
  std::printf("V1 against V2: %.1e\n", difference);

  // And back: the parameters are bit-identical.
  const qkv::StateDict before = separate.state_dict(), after = qkv::nn::to_v1(merged).state_dict();
  bool exact = before.size() == after.size();
  for (const auto& [name, tensor] : before.entries()) exact = exact && after.at(name).bytes == tensor.bytes;
  return verdict(difference < 1e-6 && exact, "V1 = V2, and converting loses no bit");
}

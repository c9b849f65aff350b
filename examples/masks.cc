// The mask algebra: which query may attend to which key, combined with & and |, drawn as 0s and 1s.
#include "example.h"
#include "qkv/qkv.h"

using qkv::Index, qkv::Mask;

int main() {
  const Index length = 8;
  bool held = true;
  const auto draw = [&](const char* title, const Mask& mask, Index wanted) {
    qkv::Tensor<std::uint8_t> keep({1, 1, length, length});  // [B, H, Tq, Tk]
    qkv::mask_to_dense(mask, keep);
    std::printf("%s: %s\n", title, mask.describe().c_str());
    Index kept = 0;
    for (Index n = 0; n < keep.count(); ++n) {
      std::printf("%d%s", keep.data()[n], n % length == length - 1 ? "\n" : " ");
      kept += keep.data()[n];
    }
    held = held && kept == wanted;
  };
  const std::vector<Index> prefix = {3}, offsets = {0, 3, 8}, global = {0}, image = {-1, -1, 4, 4, 4, -1, -1, -1};
  draw("prefix language model", Mask::causal() | Mask::prefix(prefix), 36 + 3);
  draw("StreamingLLM", (Mask::window(2, 0) | Mask::first(1)) & Mask::causal(), 21 + 5);
  draw("packed documents, causal", Mask::documents(offsets) & Mask::causal(), 6 + 15);
  draw("Longformer", Mask::window(1, 1) | Mask::global_rows(global) | Mask::global_columns(global), 22 + 12);
  draw("Llama 4", Mask::chunked(4) & Mask::causal(), 10 + 10);
  draw("text with an image", Mask::causal() | Mask::document_ids(image), 36 + 3);
  draw("whatever else",
      Mask::mask_mod([](Index, Index, Index i, Index j) { return (i + j) % 4 == 0; }) & Mask::causal(), 10);
  return verdict(held, "each keeps as many pairs as counted by hand");
}

// Uses the installed file formats: bytes of an array, there and back.
#include <qkv/io/npy.h>

#include <cstdio>

int main() {
  qkv::AnyTensor tensor;
  tensor.sizes = {2, 1};
  tensor.bytes.resize(2 * sizeof(float));
  const qkv::AnyTensor back = qkv::io::parse_npy(qkv::io::write_npy(tensor));
  const bool equal = back.sizes == tensor.sizes && back.bytes == tensor.bytes && back.dtype == tensor.dtype;
  std::printf("npy there and back: %s\n", equal ? "equal" : "different");
  return equal ? 0 : 1;
}

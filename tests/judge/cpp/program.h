// What the three programs share: reading a probe, arrays as plain vectors, writing an answer. Written as a person writes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "qkv/error.h"
#include "qkv/io/safetensors.h"
#include "qkv/state_dict.h"

using Numbers = std::vector<double>;

inline Numbers numbers(const qkv::StateDict& probe, const std::string& name) {
  const qkv::Tensor<double> tensor = qkv::to_f64(probe.at(name));
  return {tensor.data(), tensor.data() + tensor.count()};
}

/// The metadata's number, or 0.
inline int number(const qkv::StateDict& probe, const std::string& name) {
  const auto found = probe.metadata.find(name);
  return found == probe.metadata.end() ? 0 : std::stoi(found->second);
}

/// scores -> weights, in place.
inline void softmax(Numbers& row) {
  double largest = row[0];
  for (const double s : row) largest = std::max(largest, s);
  double sum = 0;
  for (double& s : row) sum += s = std::exp(s - largest);
  for (double& s : row) s /= sum;
}

inline void write_answer(const char* path, const Numbers& out, const std::vector<qkv::Index>& sizes) {
  qkv::AnyTensor tensor;
  tensor.dtype = qkv::DType::kF64;
  tensor.sizes = sizes;
  tensor.bytes.resize(out.size() * sizeof(double));
  std::memcpy(tensor.bytes.data(), out.data(), tensor.bytes.size());
  qkv::StateDict answer;
  answer.add("out", std::move(tensor));
  qkv::io::save_safetensors(path, answer);
}

/// Runs `program(probe, path of the answer)` on the command line's two files.
template <class Program>
int run(int argc, char** argv, Program program) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s PROBE ANSWER\n", argv[0]), 2;
  try {
    program(qkv::io::load_safetensors(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return 0;
}

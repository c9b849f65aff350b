// Given to each exercise in C++: arrays, a linear layer, the judge's files. `qkv practice` prints it instead of its
// include.
#pragma once

#include <qkv/io/safetensors.h>
#include <qkv/state_dict.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using qkv::Index;

/// Numbers in row-major order: a(b, h, i, c) is element [b, h, i, c]. New ones are zero.
struct Array {
  std::vector<Index> sizes;
  std::vector<double> data;

  Array() = default;
  explicit Array(std::vector<Index> of) : sizes(std::move(of)), data(qkv::checked_count(sizes)) {}
  bool empty() const { return sizes.empty(); }

  template <class... Indices> std::size_t offset(Indices... indices) const {
    std::size_t at = 0, axis = 0;
    ((at = at * sizes[axis++] + indices), ...);
    return at;
  }
  template <class... Indices> double& operator()(Indices... indices) { return data[offset(indices...)]; }
  template <class... Indices> double operator()(Indices... indices) const { return data[offset(indices...)]; }
};

/// y = x W + b for x [B, T, E], W [E, F], b [F]; without b where it is empty.
inline Array linear(const Array& x, const Array& W, const Array& b) {
  const Index B = x.sizes[0], T = x.sizes[1], E = x.sizes[2], F = W.sizes[1];
  Array y({B, T, F});
  for (Index n = 0; n < B; ++n) {
    for (Index t = 0; t < T; ++t) {
      for (Index f = 0; f < F; ++f) {
        y(n, t, f) = b.empty() ? 0 : b(f);
        for (Index e = 0; e < E; ++e) y(n, t, f) += x(n, t, e) * W(e, f);
      }
    }
  }
  return y;
}

/// Weights and biases of a layer; those that the exercise does not have are empty.
struct Parameters {
  Array W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o;
};

/// The judge's input file.
struct Probe {
  qkv::StateDict state;

  /// A tensor; empty where there is none of that name.
  Array operator[](const char* name) const {
    Array array;
    if (!state.contains(name)) return array;
    const qkv::Tensor<double> tensor = qkv::to_f64(state.at(name));
    array.sizes = tensor.sizes();
    array.data.assign(tensor.span().begin(), tensor.span().end());
    return array;
  }
  double number(const char* name) const { return std::stod(state.metadata.at(name)); }
  Index integer(const char* name) const { return std::stoll(state.metadata.at(name)); }
  Parameters parameters() const {
    const Probe& probe = *this;
    return {
        probe["W_q"], probe["b_q"], probe["W_k"], probe["b_k"], probe["W_v"], probe["b_v"], probe["W_o"], probe["b_o"]};
  }
};

using Answer = std::vector<std::pair<const char*, Array>>;

/// Reads the probe, writes the answer; 3 where nothing is filled in yet.
inline int run(int count, char** arguments, Answer (*answer)(const Probe&)) {
  try {
    if (count != 3) throw std::runtime_error("usage: in.safetensors out.safetensors");
    qkv::StateDict tensors;
    for (const auto& [name, array] : answer({qkv::io::load_safetensors(arguments[1])})) {
      qkv::Tensor<double> copy(array.sizes);
      std::ranges::copy(array.data, copy.data());
      tensors.add(name, qkv::any_tensor(copy));
    }
    qkv::io::save_safetensors(arguments[2], tensors);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;
  }
}

// qkv practice backward --cpp ; when done: qkv judge --run './backward {in} {out}' --task backward
// c++ -std=c++20 -O2 backward.cc -o backward $(pkg-config --cflags --libs qkv-io)
//
// The gradients of attention by hand. Behind article 003; docs/maths/by-hand.md does one row with a pencil.
//
//     q       [B, H, Tq, d]     queries
//     k, v    [B, H, Tk, d]     keys and values
//     dout    [B, H, Tq, d]     gradient of the loss with respect to out
//     causal  bool              true: query i sees the keys up to i + Tk - Tq
//     returns dq, dk, dv, each of the shape of its tensor
//
// Judged: each gradient by value, so the line of the derivation that is wrong can be named.

#include <qkv/io/safetensors.h>
#include <qkv/state_dict.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
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

  template <class... Places>
  std::size_t place(Places... places) const {
    std::size_t at = 0, axis = 0;
    ((at = at * sizes[axis++] + places), ...);
    return at;
  }
  template <class... Places>
  double& operator()(Places... places) {
    return data[place(places...)];
  }
  template <class... Places>
  double operator()(Places... places) const {
    return data[place(places...)];
  }
};

struct Gradients {
  Array dq, dk, dv;
};

Gradients attention_backward(const Array& q, const Array& k, const Array& v, const Array& dout, bool causal) {
  // solution: for each query: weights again, then back through values, softmax, scale and scores
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  const double scale = 1 / std::sqrt(d);
  Gradients g{Array(q.sizes), Array(k.sizes), Array(v.sizes)};
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        const Index seen = causal ? i + (Tk - Tq) + 1 : Tk;
        std::vector<double> weights(seen), dweights(seen);
        for (Index j = 0; j < seen; ++j) {
          for (Index c = 0; c < d; ++c) {
            weights[j] += q(b, h, i, c) * k(b, h, j, c) * scale;
            dweights[j] += dout(b, h, i, c) * v(b, h, j, c);  // out = sum over j of weights[j] v[j]
          }
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0, row = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < seen; ++j) {
          weights[j] /= sum;
          row += weights[j] * dweights[j];  // softmax binds the weights of a row
        }
        for (Index j = 0; j < seen; ++j) {
          const double dscore = weights[j] * (dweights[j] - row);
          for (Index c = 0; c < d; ++c) {
            g.dq(b, h, i, c) += dscore * k(b, h, j, c) * scale;
            g.dk(b, h, j, c) += dscore * q(b, h, i, c) * scale;
            g.dv(b, h, j, c) += weights[j] * dout(b, h, i, c);
          }
        }
      }
    }
  }
  return g;
  // end
}

// The files, from here on. Nothing is left to do below.

/// A tensor of the probe; empty where it has none of that name.
Array read(const qkv::StateDict& probe, const char* name) {
  Array array;
  if (!probe.contains(name)) return array;
  const qkv::Tensor<double> tensor = qkv::to_f64(probe.at(name));
  array.sizes = tensor.sizes();
  array.data.assign(tensor.span().begin(), tensor.span().end());
  return array;
}

qkv::AnyTensor tensor(const Array& array) {
  qkv::Tensor<double> copy(array.sizes);
  std::ranges::copy(array.data, copy.data());
  return qkv::any_tensor(copy);
}

int main(int count, char** arguments) {
  try {
    if (count != 3) throw std::runtime_error("usage: backward in.safetensors out.safetensors");
    const qkv::StateDict probe = qkv::io::load_safetensors(arguments[1]);
    qkv::StateDict answer;
    const bool causal = probe.metadata.at("causal") == "1";
    const Gradients g = attention_backward(read(probe, "q"), read(probe, "k"), read(probe, "v"), read(probe, "dout"), causal);
    answer.add("dq", tensor(g.dq));
    answer.add("dk", tensor(g.dk));
    answer.add("dv", tensor(g.dv));
    qkv::io::save_safetensors(arguments[2], answer);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;  // 3: not yet filled in
  }
}

// qkv practice causal --cpp ; when done: qkv judge --run './causal {in} {out}' --task causal
// c++ -std=c++20 -O2 causal.cc -o causal $(pkg-config --cflags --libs qkv-io)
//
// Causal attention: no query sees the future. Article 003.
//
//     q       [B, H, Tq, d]     queries
//     k, v    [B, H, Tk, d]     keys and values; Tk >= Tq
//     returns out [B, H, Tq, d]
//
// With Tq = Tk query i sees the keys 0 to i. With more keys than queries, as behind a cache, the queries are the last tokens:
// the last query sees every key.
// Judged: which keys a query sees, by one exactly; Tk > Tq; that a changed future changes nothing.

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

Array causal_attention(const Array& q, const Array& k, const Array& v) {
  // solution: for each query: the keys it sees, their scores, softmax, values
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  Array out({B, H, Tq, d});
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        const Index seen = i + (Tk - Tq) + 1;  // keys 0 to its own place: the future is not computed at all
        std::vector<double> weights(seen);
        for (Index j = 0; j < seen; ++j) {
          for (Index c = 0; c < d; ++c) weights[j] += q(b, h, i, c) * k(b, h, j, c) / std::sqrt(d);
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < seen; ++j) {
          for (Index c = 0; c < d; ++c) out(b, h, i, c) += weights[j] / sum * v(b, h, j, c);
        }
      }
    }
  }
  return out;
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
    if (count != 3) throw std::runtime_error("usage: causal in.safetensors out.safetensors");
    const qkv::StateDict probe = qkv::io::load_safetensors(arguments[1]);
    qkv::StateDict answer;
    answer.add("out", tensor(causal_attention(read(probe, "q"), read(probe, "k"), read(probe, "v"))));
    qkv::io::save_safetensors(arguments[2], answer);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;  // 3: not yet filled in
  }
}

// qkv practice linear --cpp ; when done: qkv judge --run './linear {in} {out}' --task linear
// c++ -std=c++20 -O2 linear.cc -o linear $(pkg-config --cflags --libs qkv-io)
//
// Linear attention: a product of features in place of the softmax. Named in article 002.
//
//     q       [B, H, Tq, d]     queries
//     k, v    [B, H, Tk, d]     keys and values
//     causal  bool              true: token i sees the tokens 0 to i (Tq = Tk)
//     returns out [B, H, Tq, d]
//
//     weight[i, j] = phi(q_i) . phi(k_j),  phi(x) = elu(x) + 1;  each row of weights is divided by its sum. No scale.
//
// The sum over keys can be made first: d x d numbers that all queries share, so the cost grows with T, not with T squared.
// Judged: the feature map, the division, causal.

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

Array linear_attention(const Array& q, const Array& k, const Array& v, bool causal) {
  // solution: features, sums over keys, division
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };  // elu(x) + 1: always above 0
  Array out({B, H, Tq, d});
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      Array state({d, d}), total({d});  // sum over the keys so far of phi(k) v, and of phi(k)
      Index summed = 0;
      for (Index i = 0; i < Tq; ++i) {
        for (; summed < (causal ? i + 1 : Tk); ++summed) {  // without causal: all keys before the first query
          for (Index f = 0; f < d; ++f) {
            total(f) += phi(k(b, h, summed, f));
            for (Index c = 0; c < d; ++c) state(f, c) += phi(k(b, h, summed, f)) * v(b, h, summed, c);
          }
        }
        double norm = 0;
        for (Index f = 0; f < d; ++f) {
          norm += phi(q(b, h, i, f)) * total(f);
          for (Index c = 0; c < d; ++c) out(b, h, i, c) += phi(q(b, h, i, f)) * state(f, c);
        }
        for (Index c = 0; c < d; ++c) out(b, h, i, c) /= norm;
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
    if (count != 3) throw std::runtime_error("usage: linear in.safetensors out.safetensors");
    const qkv::StateDict probe = qkv::io::load_safetensors(arguments[1]);
    qkv::StateDict answer;
    const bool causal = probe.metadata.at("causal") == "1";
    answer.add("out", tensor(linear_attention(read(probe, "q"), read(probe, "k"), read(probe, "v"), causal)));
    qkv::io::save_safetensors(arguments[2], answer);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;  // 3: not yet filled in
  }
}

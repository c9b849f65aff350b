// qkv practice gqa --cpp ; when done: qkv judge --run './gqa {in} {out}' --task gqa
// c++ -std=c++20 -O2 gqa.cc -o gqa $(pkg-config --cflags --libs qkv-io)
//
// Grouped-query attention: several query heads share one head of keys and values. Named in article 003, an extension here.
//
//     x               [B, L, E]       a sequence of L tokens
//     W_q, W_o        [E, E]          y = x W, no biases
//     W_k, W_v        [E, Hkv d]      d = E / H
//     num_heads       H               heads of queries
//     num_kv_heads    Hkv             heads of keys and values; H is a multiple of it
//     returns out [B, L, E]
//
// Neighbours share: with H = 6 and Hkv = 2 the query heads 0, 1, 2 read keys and values 0, the heads 3, 4, 5 read 1. No mask.
// Judged: which query head reads which keys; how heads are cut and joined; the scale.

#include <qkv/io/safetensors.h>
#include <qkv/state_dict.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
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

/// y = x W + b for x [B, T, E], W [E, F], b [F]; without b where it is empty. This one is given.
Array linear(const Array& x, const Array& W, const Array& b) {
  const Index B = x.sizes[0], T = x.sizes[1], E = x.sizes[2], F = W.sizes[1];
  Array y({B, T, F});
  for (Index n = 0; n < B; ++n) {
    for (Index t = 0; t < T; ++t) {
      for (Index f = 0; f < F; ++f) {
        double sum = b.empty() ? 0 : b(f);
        for (Index e = 0; e < E; ++e) sum += x(n, t, e) * W(e, f);
        y(n, t, f) = sum;
      }
    }
  }
  return y;
}

struct Parameters {
  Array W_q, W_k, W_v, W_o;
};

Array gqa(const Array& x, const Parameters& p, Index num_heads, Index num_kv_heads) {
  // solution: projections, attention of each query head on the keys of its group, output projection
  const Index B = x.sizes[0], L = x.sizes[1], E = x.sizes[2], d = E / num_heads, group = num_heads / num_kv_heads;
  const Array q = linear(x, p.W_q, {}), k = linear(x, p.W_k, {}), v = linear(x, p.W_v, {});  // [B, L, E], twice [B, L, Hkv d]
  Array context({B, L, E});
  std::vector<double> weights(L);
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < num_heads; ++h) {
      const Index own = h * d, shared = h / group * d;  // first columns: of the queries, of their keys and values
      for (Index i = 0; i < L; ++i) {
        for (Index j = 0; j < L; ++j) {
          double score = 0;
          for (Index c = 0; c < d; ++c) score += q(b, i, own + c) * k(b, j, shared + c);
          weights[j] = score / std::sqrt(d);
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < L; ++j) {
          for (Index c = 0; c < d; ++c) context(b, i, own + c) += weights[j] / sum * v(b, j, shared + c);
        }
      }
    }
  }
  return linear(context, p.W_o, {});  // [B, L, E]
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
    if (count != 3) throw std::runtime_error("usage: gqa in.safetensors out.safetensors");
    const qkv::StateDict probe = qkv::io::load_safetensors(arguments[1]);
    qkv::StateDict answer;
    const Parameters p{.W_q = read(probe, "W_q"),
                       .W_k = read(probe, "W_k"),  //
                       .W_v = read(probe, "W_v"),
                       .W_o = read(probe, "W_o")};
    const Index heads = std::stoll(probe.metadata.at("heads")), kv_heads = std::stoll(probe.metadata.at("kv_heads"));
    answer.add("out", tensor(gqa(read(probe, "x"), p, heads, kv_heads)));
    qkv::io::save_safetensors(arguments[2], answer);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;  // 3: not yet filled in
  }
}

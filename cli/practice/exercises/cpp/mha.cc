// qkv practice mha --cpp ; when done: qkv judge --run './mha {in} {out}' --task mha
// c++ -std=c++20 -O2 mha.cc -o mha $(pkg-config --cflags --libs qkv-io)
//
// Multi-head attention: H small heads side by side. Articles 001, 002 and 004.
//
//     x                       [B, L, E]       a sequence of L tokens
//     W_q, W_k, W_v, W_o      [E, E]          y = x W + b
//     b_q, b_k, b_v, b_o      [E]
//     num_heads               H               a head has d = E / H columns; head h takes the columns h d to (h + 1) d
//     mask                    [B, 1, L, L]    1: token i may look at token j, in every head. Empty: at all
//     returns out [B, L, E]
//
// Judged: how heads are cut and joined, and which width scales the scores; the mask in every head and every sequence.

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
  Array W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o;
};

Array mha(const Array& x, const Parameters& p, Index num_heads, const Array& mask) {
  // solution: projections, attention of each head on its columns, output projection
  const Index B = x.sizes[0], L = x.sizes[1], E = x.sizes[2], d = E / num_heads;
  const Array q = linear(x, p.W_q, p.b_q), k = linear(x, p.W_k, p.b_k), v = linear(x, p.W_v, p.b_v);  // [B, L, E] each
  constexpr double kHidden = -std::numeric_limits<double>::infinity();  // the score of a key that may not be seen
  Array context({B, L, E});  // head h writes its columns: joined without moving anything
  std::vector<double> weights(L);
  for (Index b = 0; b < B; ++b) {
    for (Index first = 0; first < E; first += d) {  // the first column of a head
      for (Index i = 0; i < L; ++i) {
        for (Index j = 0; j < L; ++j) {
          double score = 0;
          for (Index c = first; c < first + d; ++c) score += q(b, i, c) * k(b, j, c);
          const bool seen = mask.empty() || mask(b, 0, i, j) != 0;
          weights[j] = seen ? score / std::sqrt(d) : kHidden;  // the width of a head, not E
        }
        const double largest = *std::ranges::max_element(weights);
        if (largest == kHidden) continue;  // may look nowhere: zeros
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < L; ++j) {
          for (Index c = first; c < first + d; ++c) context(b, i, c) += weights[j] / sum * v(b, j, c);
        }
      }
    }
  }
  return linear(context, p.W_o, p.b_o);  // [B, L, E]
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
    if (count != 3) throw std::runtime_error("usage: mha in.safetensors out.safetensors");
    const qkv::StateDict probe = qkv::io::load_safetensors(arguments[1]);
    qkv::StateDict answer;
    const Parameters p{.W_q = read(probe, "W_q"),
                       .b_q = read(probe, "b_q"),  //
                       .W_k = read(probe, "W_k"),
                       .b_k = read(probe, "b_k"),  //
                       .W_v = read(probe, "W_v"),
                       .b_v = read(probe, "b_v"),  //
                       .W_o = read(probe, "W_o"),
                       .b_o = read(probe, "b_o")};
    const Index heads = std::stoll(probe.metadata.at("heads"));
    answer.add("out", tensor(mha(read(probe, "x"), p, heads, read(probe, "mask"))));
    qkv::io::save_safetensors(arguments[2], answer);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;  // 3: not yet filled in
  }
}

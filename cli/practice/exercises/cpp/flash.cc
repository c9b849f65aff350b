// qkv practice flash --cpp ; when done: qkv judge --run './flash {in} {out}' --task flash
// c++ -std=c++20 -O2 flash.cc -o flash $(pkg-config --cflags --libs qkv-io)
//
// Attention in blocks of keys with an online softmax: what FlashAttention does. Named in article 003, an extension here.
//
//     q             [B, H, Tq, d]    queries
//     k, v          [B, H, Tk, d]    keys and values
//     block_size    n                keys taken at once; it need not divide Tk, and may be 1 or more than Tk
//     causal        bool             true: query i sees the keys up to i + Tk - Tq
//     returns out [B, H, Tq, d]
//
// The same numbers as plain attention, without an array of Tq x Tk. What is kept for each query from block to block: the
// largest score so far, the sum of exponentials, the unfinished output.
// Judged: several block sizes, blocks in which the maximum grows, the short last block, causal.

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

Array flash(const Array& q, const Array& k, const Array& v, Index block_size, bool causal) {
  // solution: for each query and block: scores, new maximum, rescale what was summed, add
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  Array out({B, H, Tq, d});
  std::vector<double> scores(std::min(block_size, Tk));  // all the memory that a row needs
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        const Index seen = causal ? i + (Tk - Tq) + 1 : Tk;
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (Index begin = 0; begin < seen; begin += block_size) {
          const Index n = std::min(block_size, seen - begin);  // the last block may be short
          double next = largest;
          for (Index j = 0; j < n; ++j) {
            scores[j] = 0;
            for (Index c = 0; c < d; ++c) scores[j] += q(b, h, i, c) * k(b, h, begin + j, c) / std::sqrt(d);
            next = std::max(next, scores[j]);
          }
          const double rescale = std::exp(largest - next);  // sums so far had the old maximum in their exponents
          total *= rescale;
          for (Index c = 0; c < d; ++c) out(b, h, i, c) *= rescale;
          for (Index j = 0; j < n; ++j) {
            const double weight = std::exp(scores[j] - next);
            total += weight;
            for (Index c = 0; c < d; ++c) out(b, h, i, c) += weight * v(b, h, begin + j, c);
          }
          largest = next;
        }
        for (Index c = 0; c < d; ++c) out(b, h, i, c) /= total;  // once, at the end
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
    if (count != 3) throw std::runtime_error("usage: flash in.safetensors out.safetensors");
    const qkv::StateDict probe = qkv::io::load_safetensors(arguments[1]);
    qkv::StateDict answer;
    const Index block_size = std::stoll(probe.metadata.at("block"));
    const bool causal = probe.metadata.at("causal") == "1";
    answer.add("out", tensor(flash(read(probe, "q"), read(probe, "k"), read(probe, "v"), block_size, causal)));
    qkv::io::save_safetensors(arguments[2], answer);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string_view(error.what()).starts_with("fill in") ? 3 : 1;  // 3: not yet filled in
  }
}

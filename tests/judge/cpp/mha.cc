// Multi-head attention with separate projections in plain loops: right.
#include "program.h"

namespace {

/// y[n, columns] = x[n, rows] W[rows, columns] + b
Numbers project(const Numbers& x, const Numbers& weight, const Numbers& bias) {
  const std::size_t columns = bias.size(), rows = weight.size() / columns;
  Numbers y;
  for (std::size_t n = 0; n < x.size() / rows; ++n) {
    for (std::size_t c = 0; c < columns; ++c) {
      double sum = bias[c];
      for (std::size_t r = 0; r < rows; ++r) sum += x[n * rows + r] * weight[r * columns + c];
      y.push_back(sum);
    }
  }
  return y;
}

void mha(const qkv::StateDict& probe, const char* path) {
  const std::vector<qkv::Index> sizes = probe.at("x").sizes;  // [B, L, E]
  const std::size_t batch = sizes[0], length = sizes[1], embed = sizes[2];
  const std::size_t heads = number(probe, "heads"), width = embed / heads;
  const Numbers x = numbers(probe, "x");
  const Numbers q = project(x, numbers(probe, "W_q"), numbers(probe, "b_q"));
  const Numbers k = project(x, numbers(probe, "W_k"), numbers(probe, "b_k"));
  const Numbers v = project(x, numbers(probe, "W_v"), numbers(probe, "b_v"));
  const bool masked = probe.contains("mask");
  const Numbers mask = masked ? numbers(probe, "mask") : Numbers();  // [B, 1, L, L]
  Numbers mixed(q.size(), 0.0);
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t own = (b * length + i) * embed + h * width;
        Numbers row(length);
        for (std::size_t j = 0; j < length; ++j) {
          double dot = 0;
          for (std::size_t c = 0; c < width; ++c) dot += q[own + c] * k[(b * length + j) * embed + h * width + c];
          const bool seen = !masked || mask[(b * length + i) * length + j] != 0;
          row[j] = seen ? dot / std::sqrt(static_cast<double>(width)) : -1e9;
        }
        softmax(row);
        for (std::size_t j = 0; j < length; ++j) {
          for (std::size_t c = 0; c < width; ++c) mixed[own + c] += row[j] * v[(b * length + j) * embed + h * width + c];
        }
      }
    }
  }
  write_answer(path, project(mixed, numbers(probe, "W_o"), numbers(probe, "b_o")), sizes);
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv, mha); }

// Scaled dot-product attention whose scale is forgotten: wrong.
#include "program.h"

static void sdpa(const qkv::StateDict& probe, const char* path) {
  const std::vector<qkv::Index> sizes = probe.at("q").sizes;  // [B, H, Tq, d]
  const qkv::Index queries = sizes[2], width = sizes[3], keys = probe.at("k").sizes[2], value_width = probe.at("v").sizes[3];
  const Numbers q = numbers(probe, "q"), k = numbers(probe, "k"), v = numbers(probe, "v");
  const bool masked = probe.contains("mask");
  const Numbers mask = masked ? numbers(probe, "mask") : Numbers();  // [B, 1, Tq, Tk]
  const double scale = 1;
  Numbers out(static_cast<std::size_t>(sizes[0] * sizes[1] * queries * value_width), 0.0);
  for (qkv::Index bh = 0; bh < sizes[0] * sizes[1]; ++bh) {
    for (qkv::Index i = 0; i < queries; ++i) {
      Numbers row(static_cast<std::size_t>(keys));
      for (qkv::Index j = 0; j < keys; ++j) {
        double dot = 0;
        for (qkv::Index c = 0; c < width; ++c) dot += q[(bh * queries + i) * width + c] * k[(bh * keys + j) * width + c];
        const bool seen = !masked || mask[(bh / sizes[1] * queries + i) * keys + j] != 0;
        row[j] = seen ? dot * scale : -1e9;
      }
      softmax(row);
      for (qkv::Index j = 0; j < keys; ++j) {
        for (qkv::Index c = 0; c < value_width; ++c) {
          out[(bh * queries + i) * value_width + c] += row[j] * v[(bh * keys + j) * value_width + c];
        }
      }
    }
  }
  write_answer(path, out, {sizes[0], sizes[1], queries, value_width});
}

int main(int argc, char** argv) { return run(argc, argv, sdpa); }

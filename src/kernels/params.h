// The table of attention's and layers' kernels that each instruction set exports.
#pragma once

#include "kernels/attention/params.h"
#include "kernels/layers/params.h"

namespace qkv {

/// Adds up `count` words of memory.
using ReadLoop = std::uint64_t (*)(const std::uint64_t* words, Index count);
constexpr int kNumReadLoops = 8;

/// Plain loops of multiply-adds that measure the machine's peak: each runs `rounds` rounds and returns the flops done.
struct PeakKernels {
  double (*fma_f32)(Index rounds, float* sink);
  double (*fma_f64)(Index rounds, double* sink);
  double (*dot_bf16)(Index rounds, float* sink);  // products of bf16 pairs; null where kernels have none
  const ReadLoop* read;                           // [kNumReadLoops]
};

struct KernelTable {
  Kernels<float> f32;
  Kernels<double> f64;
  LayerKernels layers;
  PeakKernels peak;
};

}  // namespace qkv

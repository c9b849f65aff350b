// What `qkv bench` measures: the machine's peaks and the cases. Not: the command itself (cmd_bench.cc).
// Flops count useful work: 4 B H Tq Tk D forward, halved when causal, 2.5 times that backward (Dao 2023, its benchmark).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "qkv/context.h"

namespace qkv::cli {

/// What this machine can do with the chosen threads and instruction set, at best.
struct Peak {
  double fma_f32 = 0, fma_f64 = 0;  ///< GFLOP/s of independent multiply-adds
  double read = 0;                  ///< GB/s of reading memory
};
/// About half a second.
Peak measure_peak(Context& context);

/// How far a result is from the textbook in f64, and how far it may be.
struct Judgement {
  double error = 0, bound = 0;
  bool holds() const { return error <= bound; }  // false for NaN
};
/// error = max |got - exact|; bound = 3 max |naive - exact| + 8 eps `terms`. naive: the textbook in the type of `got`;
/// terms: the largest sum of the sizes of the terms that an element is made of.
template <class T>
Judgement judge(std::span<const T> got, std::span<const T> naive, std::span<const double> exact, double terms);
/// One f32 sum, without a naive form: bound = 8 eps `terms`.
Judgement judge_sum(double got, double exact, double terms);
/// The worse of two, by error / bound.
Judgement worse(const Judgement& a, const Judgement& b);

/// A case with its tensors made.
struct Prepared {
  std::function<void()> run;
  std::function<Judgement()> judge;  ///< after one run
};

enum class Of { kFmaF32, kFmaF64, kBandwidth };

struct BenchCase {
  std::string name;
  bool quick = false;  ///< in --suite quick
  Of of = Of::kFmaF32;
  double work = 0;  ///< flops of a run; bytes read when `of` is the bandwidth
  double goal = 0;  ///< fraction; when goal_ms is set it follows from that
  double goal_ms = 0;
  std::function<Prepared(Context&)> prepare;
};

std::vector<BenchCase> attention_cases();
std::vector<BenchCase> layer_cases();

}  // namespace qkv::cli

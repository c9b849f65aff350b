// Every form of attention on the same weights and input: what it costs, how far it is from the f64 textbook, and
// which forms must give the same numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qkv/context.h"
#include "qkv/types.h"

namespace qkv::cli {

struct FormsSizes {
  Index batch = 2;
  Index length = 256;
  Index embed_dim = 64;
  Index num_heads = 4;
  std::uint64_t seed = 0;
  double memory = 1024.0 * 1024 * 1024;  ///< bytes, for the longest length
};

/// One row of the table. Errors of f32 forms are against f64, those of f64 forms against long double.
struct Form {
  std::string name;
  std::string family;  ///< standard, causal, multi-head, flash, linear, sparse
  std::string type;    ///< "f32", "f64"
  double error = 0;    ///< largest |form - truth|
  /// Largest error / bound over the elements; bound = 2 x error(naive, same type) + 4 eps A, A the form with every term
  /// positive. Right means <= 1.
  double error_over_bound = 0;
  Index parameters = 0;
  double projection_flops = 0;
  double attention_flops = 0;  ///< 2 (D + Dv) per pair that is kept; linear: 4 F Dv per token, and pairs in chunks
  double score_bytes = 0;      ///< naive: the whole [B, H, T, T]; tiled: scratch of every thread that works
  double seconds = 0;          ///< median
  double longest = 0;          ///< tokens with which q, k, v, out and score_bytes fit into the memory; 0: a layer's row
  /// largest |form - softmax attention without a mask|; below 0: it does not approximate that
  double from_softmax = -1;

  double flops() const { return projection_flops + attention_flops; }
};

/// Two forms that must give the same numbers, and whether they did.
struct EqualForms {
  std::string a, b;
  std::string note;  ///< why, or under which condition
  double difference = 0;
  double difference_over_bound = 0;  ///< same bounds as the errors
  bool same_bits = false;

  bool holds() const { return difference_over_bound <= 1; }
};

struct FormsReport {
  FormsSizes sizes;
  double memory = 0;
  std::vector<Form> forms;
  std::vector<EqualForms> equal;

  /// Every form within its bound, and every pair equal.
  bool holds() const;
};

/// Throws OptionError for sizes that do not fit together or that the textbook form cannot do in reasonable time.
FormsReport run_forms(const FormsSizes& sizes, Context& context);

}  // namespace qkv::cli

// The options of `qkv attend` that add to scores by position, or to a row besides its keys: ALiBi, T5's and learned relative
// biases, sinks. Not: a dense bias, which is an option of the tensors (options.h).
#pragma once

#include <optional>
#include <string>

#include "qkv/attention.h"
#include "support/command.h"
#include "support/files.h"

namespace qkv::cli {

struct ModifierOptions {
  std::string sinks, t5, relative;  // .npy files
  std::string alibi;                // "heads", or slopes
  Index t5_max_distance = 128;
  bool t5_past = false;
  std::string align;
  std::string dsinks, dposition;  // .npy files
};

/// Adds them all.
void add_modifier_options(CLI::App& app, ModifierOptions& options);

/// What they mean for tensors of T, with the memory that the attention options borrow.
template <class T>
struct Modifiers {
  Tensor<T> sinks, table;       // [H], [rows, H]; without data: none
  Tensor<T> dsinks, dposition;  // as made by want_gradients

  /// Sets `attention`; `given`: the sinks. Throws UsageError.
  Modifiers(const ModifierOptions& options, const std::optional<AnyTensor>& given, Index num_heads, AttentionOptions& attention);
  /// Asks for the gradients that there are.
  void want_gradients(const AttentionOptions& attention, AttentionGradients<T>& gradients);
};

}  // namespace qkv::cli

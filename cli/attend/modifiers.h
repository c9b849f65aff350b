// What adds to scores by position, or to a row besides its keys: ALiBi, T5's and learned relative biases, sinks; and
// dense biases, with the gradients of all of them.
#pragma once

#include <optional>

#include "attend/options.h"
#include "qkv/attention.h"
#include "qkv/state_dict.h"

namespace qkv::cli {

/// In the type of the call. UsageError when `tensor` has not `rank` axes, or holds no floats.
template <class T> Tensor<T> typed(const std::string& source, const AnyTensor& tensor, int rank, const char* axes);

/// For tensors of T, with the memory that the attention options borrow.
template <class T> struct Modifiers {
  Tensor<T> sinks, table, bias;        // [H], [rows, H], [B|1, H|1, Tq|1, Tk|1]; without data: none
  Tensor<T> dsinks, dposition, dbias;  // as made by want_gradients

  /// Sets `attention`. Throws UsageError.
  Modifiers(const AttendOptions& options, const std::optional<AnyTensor>& given_sinks,
      const std::optional<AnyTensor>& given_bias, Index num_heads, AttentionOptions& attention);
  /// Asks for the gradients that there are.
  void want_gradients(const AttentionOptions& attention, AttentionGradients<T>& gradients);
  /// add(name, tensor) for each of them.
  template <class Add> void each_gradient(const Add& add) const {
    if (dbias.rank() > 0) add("dbias", dbias);
    if (dsinks.rank() > 0) add("dsinks", dsinks);
    if (dposition.rank() > 0) add("dposition", dposition);
  }
};

}  // namespace qkv::cli

#include "attend/modifiers.h"

#include "core/escape.h"
#include "support/files.h"

namespace qkv::cli {

template <class T> Tensor<T> typed(const std::string& source, const AnyTensor& tensor, int rank, const char* axes) {
  if (static_cast<int>(tensor.sizes.size()) != rank)
    throw UsageError(
        source + ": must have " + (rank == 4 ? "four axes " : "the axes ") + axes + ": got " + tensor.shape());
  const bool is_float = tensor.dtype == DType::kF32 || tensor.dtype == DType::kF64 || tensor.dtype == DType::kF16 ||
                        tensor.dtype == DType::kBF16;
  if (!is_float) throw UsageError(source + ": must hold floats: got " + std::string(dtype_name(tensor.dtype)));
  if constexpr (sizeof(T) == sizeof(float)) {
    return to_f32(tensor);
  } else {
    return to_f64(tensor);
  }
}

template <class T> Modifiers<T>::Modifiers(const AttendOptions& options, const std::optional<AnyTensor>& given_sinks,
    const std::optional<AnyTensor>& given_bias, Index num_heads, AttentionOptions& attention) {
  if (given_bias) attention.bias = bias = typed<T>(options.source("bias"), *given_bias, 4, "[B, H, T, D]");
  if (given_sinks) attention.sinks = sinks = typed<T>(options.source("sinks"), *given_sinks, 1, "[H]");
  const int kinds = !options.alibi.empty() + !options.t5.empty() + !options.relative.empty();
  if (kinds > 1) throw UsageError("--alibi, --t5 and --relative exclude one another");
  if (kinds == 0 && !options.file("dposition").empty())
    throw UsageError("--dposition needs --alibi, --t5 or --relative");
  if (kinds == 0 && !options.align.empty()) throw UsageError("--position-align needs --alibi, --t5 or --relative");
  if (!options.file("dsinks").empty() && !given_sinks) throw UsageError("--dsinks needs --sinks");
  const Align align = options.align.empty() ? Align::kSquare : parse_align("--position-align", options.align);
  const auto read_table = [&](const std::string& option, const std::string& path) {
    table = typed<T>(option + " " + escaped(path), load_npy(option, path), 2, "[rows, H]");
    return View<const T, 2>(table);
  };
  if (!options.alibi.empty()) {
    const bool by_heads = options.alibi == "heads";
    attention.position_bias =
        PositionBias::alibi(by_heads ? alibi_slopes(num_heads) : parse_numbers("--alibi", options.alibi), align);
  }
  if (!options.t5.empty()) {
    const View<const T, 2> rows = read_table("--t5", options.t5);
    attention.position_bias = PositionBias::t5(rows, {rows.size(0), options.t5_max_distance, !options.t5_past}, align);
  }
  if (!options.relative.empty())
    attention.position_bias = PositionBias::relative(read_table("--relative", options.relative), align);
}

template <class T>
void Modifiers<T>::want_gradients(const AttentionOptions& attention, AttentionGradients<T>& gradients) {
  if (bias.rank() > 0) gradients.dbias = dbias = Tensor<T>(bias.sizes());
  if (sinks.rank() > 0) gradients.dsinks = dsinks = Tensor<T>(sinks.sizes());
  if (!attention.position_bias.is_none())
    gradients.dposition_bias = dposition = Tensor<T>({attention.position_bias.rows(), attention.position_bias.heads()});
}

template struct Modifiers<float>;
template struct Modifiers<double>;
template Tensor<float> typed(const std::string&, const AnyTensor&, int, const char*);
template Tensor<double> typed(const std::string&, const AnyTensor&, int, const char*);

}  // namespace qkv::cli

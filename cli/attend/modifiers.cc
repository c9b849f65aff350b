#include "attend/modifiers.h"

#include <charconv>

#include "core/escape.h"
#include "support/option_group.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

template <class T>
Tensor<T> floats(std::string_view option, const AnyTensor& tensor, int rank, const char* axes) {
  if (static_cast<int>(tensor.sizes.size()) != rank) {
    throw UsageError(std::string(option) + ": must have the axes " + axes + ": got " + tensor.shape());
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    return to_f32(tensor);
  } else {
    return to_f64(tensor);
  }
}

std::vector<double> slopes_of(const std::string& text, Index num_heads) {
  if (text == "heads") return alibi_slopes(num_heads);
  std::vector<double> slopes;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    double slope = 0;
    const auto [next, error] = std::from_chars(at, end, slope);
    if (error != std::errc() || (next != end && *next != ',')) {
      throw UsageError("--alibi must be numbers separated by commas, such as --alibi=0.5,0.25: got " + escaped(text));
    }
    slopes.push_back(slope);
    if (next == end) return slopes;
    at = next;
  }
}

}  // namespace

void add_modifier_options(CLI::App& app, ModifierOptions& options) {
  const OptionGroup group(app, "Position biases and sinks");
  group.flag("--alibi{heads}", options.alibi, "ALiBi: minus slope times distance; =S,S,... sets the slopes");
  group.file("--t5", options.t5, "T5's relative position bias: table [buckets, H]");
  group.integer("--t5-max-distance", options.t5_max_distance, "Distances from here on share one bucket (default 128)", 1);
  group.flag("--t5-past", options.t5_past, "T5's decoder: later keys share a bucket");
  for (const char* name : {"--t5-max-distance", "--t5-past"}) app.get_option(name)->needs(app.get_option("--t5"));
  group.file("--relative", options.relative, "Learned bias by distance: table [2 R + 1, H]");
  group.value("--position-align", options.align, "ALIGN", "Alignment of positions when Tq != Tk: top-left or bottom-right");
  group.file("--dposition", options.dposition, "Gradient of the table, or of --alibi's slopes [1, H]");
  group.file("--sinks", options.sinks, "Sinks: one extra logit per head [H]");
  group.file("--dsinks", options.dsinks, "Gradient of the sinks");
}

template <class T>
Modifiers<T>::Modifiers(const ModifierOptions& options, const std::optional<AnyTensor>& given, Index num_heads,
                        AttentionOptions& attention) {
  if (given) sinks = floats<T>("--sinks " + escaped(options.sinks), *given, 1, "[H]");
  if (sinks.data() != nullptr) attention.sinks = sinks;
  const int kinds = !options.alibi.empty() + !options.t5.empty() + !options.relative.empty();
  if (kinds > 1) throw UsageError("--alibi, --t5 and --relative exclude one another");
  if (kinds == 0) {
    if (!options.dposition.empty()) throw UsageError("--dposition needs --alibi, --t5 or --relative");
    if (!options.align.empty()) throw UsageError("--position-align needs --alibi, --t5 or --relative");
  }
  if (!options.dsinks.empty() && sinks.data() == nullptr) throw UsageError("--dsinks needs --sinks");
  const Align align = options.align.empty() ? Align::kSquare : parse_align("--position-align", options.align);
  const auto read_table = [&](const char* option, const std::string& path) {
    const std::string place = std::string(option) + " " + escaped(path);
    table = floats<T>(place, load_npy(option, path), 2, "[rows, H]");
    return View<const T, 2>(table);
  };
  if (!options.alibi.empty()) attention.position_bias = PositionBias::alibi(slopes_of(options.alibi, num_heads), align);
  if (!options.t5.empty()) {
    const View<const T, 2> rows = read_table("--t5", options.t5);
    attention.position_bias = PositionBias::t5(rows, {rows.size(0), options.t5_max_distance, !options.t5_past}, align);
  }
  if (!options.relative.empty())
    attention.position_bias = PositionBias::relative(read_table("--relative", options.relative), align);
}

template <class T>
void Modifiers<T>::want_gradients(const AttentionOptions& attention, AttentionGradients<T>& gradients) {
  if (sinks.data() != nullptr) {
    dsinks = Tensor<T>(sinks.sizes());
    gradients.dsinks = dsinks;
  }
  if (!attention.position_bias.is_none()) {
    dposition = Tensor<T>({attention.position_bias.rows(), attention.position_bias.heads()});
    gradients.dposition_bias = dposition;
  }
}

template struct Modifiers<float>;
template struct Modifiers<double>;

}  // namespace qkv::cli

// AttentionMap: what every picture is drawn from, and the options that all pictures share.
// Not: computing weights (attention.h), reading or writing files of weights (io).
// Colours: OKLab, Ottosson 2020, https://bottosson.github.io/posts/oklab/
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::view {

/// The attention of one sequence. Row i of a head is what query i attends to: it sums to 1, or is all 0 or all NaN
/// where every key is masked (EmptyRow). A weight after dropout may exceed 1.
struct AttentionMap {
  Tensor<float> weights;                  // [L, H, Tq, Tk]
  std::vector<std::string> query_tokens;  // Tq labels in UTF-8, or none: rows are numbered
  std::vector<std::string> key_tokens;    // Tk labels in UTF-8, or none: columns are numbered
  std::string title;
  std::vector<std::string> head_names{};  // H names in UTF-8, or none: "head 0", ...

  Index num_layers() const { return weights.size(0); }
  Index num_heads() const { return weights.size(1); }
  Index q_len() const { return weights.size(2); }
  Index kv_len() const { return weights.size(3); }
};

/// A map of one layer [H, Tq, Tk], or of several, copied from a view; of a tensor pass view<3>() or view<4>(). `tokens`
/// labels both axes of self-attention; empty: they are numbered. Throws as check_map.
QKV_API AttentionMap make_map(View<const float, 3> weights,  // [H, Tq, Tk]
    std::vector<std::string> tokens = {}, std::string title = {});
QKV_API AttentionMap make_map(View<const float, 4> weights,  // [L, H, Tq, Tk]
    std::vector<std::string> tokens = {}, std::string title = {});

/// The characters of a UTF-8 text, one label each; a byte that is not UTF-8 is a label of its own.
QKV_API std::vector<std::string> characters(std::string_view text);

/// A token as PNG, SVG and PDF label it, on one line: spaces, ends of lines and what is invisible become visible, bytes
/// that are not UTF-8 \xNN; cut with an ellipsis after 12 characters or 24 columns.
QKV_API std::string picture_label(std::string_view token);
/// A title likewise, of at most 100 characters; spaces stay.
QKV_API std::string picture_title(std::string_view title);

/// Throws ShapeError unless weights is [L, H, Tq, Tk] with L, H >= 1 and each list of labels or names is empty or as
/// long as its axis, and OptionError when a weight is negative or infinite. NaN is valid. Every render function calls
/// it.
QKV_API void check_map(const AttentionMap& map);

/// The weight that gets the last colour. kUnit makes pictures comparable; kMax shows the structure of long rows.
enum class ValueRange { kUnit, kMax };

/// How a weight becomes a colour: kSqrt maps w to sqrt(w / top), so that 1 % is still visible; kLinear maps it to w /
/// top.
enum class ColourScale { kSqrt, kLinear };

/// kLight runs from near white to dark and prints well; kDark from near black to light, for dark screens.
enum class Theme { kLight, kDark };

/// Percentages inside cells: where they fit, or never.
enum class CellNumbers { kWhereTheyFit, kNever };

/// Options of every picture. OptionError for a layer or head that is not there.
struct MapOptions {
  std::vector<Index> layers{};  // which layers, in this order; none means all
  std::vector<Index> heads{};   // which heads of each layer, in this order; none means all
  ValueRange range = ValueRange::kUnit;
  ColourScale scale = ColourScale::kSqrt;
  CellNumbers numbers = CellNumbers::kWhereTheyFit;
  Index columns = 0;  // heads beside one another in PNG, SVG and PDF; 0: as square as their number allows
};

struct Rgb {
  std::uint8_t red = 0, green = 0, blue = 0;
  friend bool operator==(const Rgb&, const Rgb&) = default;
};

/// Number of colours of a map; 240 leave a palette image 16 entries for text, lines and NaN.
inline constexpr int kNumColours = 240;

/// Entry n is the colour at n / 239. In OKLab lightness falls (kLight) or rises (kDark) monotonically, the hue runs
/// from yellow over green to violet, and neighbouring entries are equally far apart.
QKV_API const std::array<Rgb, kNumColours>& colour_map(Theme theme);

/// The colour of a weight that is not a number: outside the hues of the map.
inline constexpr Rgb kNanColour{232, 90, 90};

/// The colour of a weight that is exactly 0, as that of a masked key.
inline constexpr Rgb kZeroColour{222, 222, 229};

/// The entry of `weight`, 0 to 239. Weights above `top` get the last; NaN has none and gives -1; top <= 0 gives 0.
QKV_API int colour_index(float weight, float top, ColourScale scale);

/// The weight that gets the last colour: 1 for kUnit; for kMax the largest weight of the map, 1 when all are 0 or NaN.
QKV_API float top_weight(const AttentionMap& map, ValueRange range);

/// The same of the layers and heads that are drawn.
QKV_API float top_weight(const AttentionMap& map, const MapOptions& options);

/// How one head spreads its attention, over rows without NaN. Shares are means over rows i >= 1 (row 0 of a causal map
/// has no choice); they overlap and need not sum to 1.
struct HeadStatistics {
  // weight on j = i + offset, offset = Tk - Tq: the query's own position when the last query is the last key
  double self = 0;
  double previous = 0;  // weight on the key before that
  double first = 0;     // weight on key 0
  double largest = 0;   // the largest weight of a row
  double entropy = 0;   // nats; 0: each row has one key, ln(n): evenly at n keys
  Index rows = 0;       // rows counted
};

/// OptionError for a layer or head that is not there.
QKV_API HeadStatistics head_statistics(const AttentionMap& map, Index layer, Index head);

}  // namespace qkv::inline v0::view

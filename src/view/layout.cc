// Sizes of still pictures. The numbers were chosen by eye, mainly for 1 to 16 heads and 1 to 64 tokens.
#include "view/layout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

constexpr int kLargestCell = 56;         // room for "100" in large text and a margin
constexpr int kShortestCell = 14;        // of the shorter axis, when the other one is long
constexpr int kEmptyPanel = 112;         // a panel without rows or columns has room to say so
constexpr std::size_t kLabelChars = 12;  // longer tokens end in an ellipsis,
constexpr int kLabelColumns = 24;        // and so do wider ones: 12 characters of Chinese fit, 12 times U+0000 does not
constexpr double kMaxPixels = 48e6;      // of all panels together; longer sequences are pooled
constexpr Index kMaxCells = 4096;        // along one axis of a panel
constexpr Index kMaxPanels = 65'536;     // more are no picture, and a map without rows may name any number of heads

/// Pixels that the longer side of a panel should take, by the number of panels.
int panel_target(std::size_t panels) {
  constexpr std::array<std::pair<std::size_t, int>, 5> kTargets{{{1, 720}, {2, 560}, {4, 480}, {9, 360}, {16, 300}}};
  for (const auto& [most, pixels] : kTargets) {
    if (panels <= most) return pixels;
  }
  return 220;
}

/// Smallest block of positions so that all panels stay within the limits.
Index pool_for(Index rows, Index columns, std::size_t panels) {
  Index pool = std::max<Index>(1, (std::max(rows, columns) + kMaxCells - 1) / kMaxCells);
  const auto pixels = [&](Index p) {
    const Index down = rows / p + 1, across = columns / p + 1;
    return static_cast<double>(panels) * static_cast<double>(down) * static_cast<double>(across);
  };
  while (pixels(pool) > kMaxPixels) ++pool;
  return pool;
}

void size_cells(Layout& out) {
  const int target = panel_target(out.panels.size());
  const auto fitting = [target](const Axis& axis) {
    return static_cast<int>(std::clamp<Index>(target / std::max<Index>(1, axis.num_cells()), 1, kLargestCell));
  };
  const int rows = fitting(out.rows), columns = fitting(out.columns);
  const int common = std::min(rows, columns);  // square cells, except that a few long rows do not become hairlines
  out.rows.cell = std::min(rows, std::max(common, kShortestCell));
  out.columns.cell = std::min(columns, std::max(common, kShortestCell));
}

/// Positions 0, n, 2n, ... with a round n, at least `pixels` apart.
std::vector<Tick> numbered_ticks(const Axis& axis, int pixels) {
  Index step = 1;
  for (Index decade = 1; step * axis.cell < pixels * axis.pool; decade *= 10) {
    for (const Index factor : {1, 2, 5, 10}) {
      step = factor * decade;
      if (step * axis.cell >= pixels * axis.pool) break;
    }
  }
  std::vector<Tick> ticks;
  for (Index position = 0; position < axis.count; position += step)
    ticks.push_back({position, std::to_string(position)});
  return ticks;
}

/// Tokens where each label fits its position, otherwise numbers where they fit.
void label_axis(Axis& axis, const std::vector<std::string>& tokens, bool is_horizontal, const TextWidth& text_width) {
  const bool has_room = axis.cell > kSmallText;  // for a label at every position
  axis.text_size = has_room ? std::clamp(4 * axis.cell / 5, kSmallText, kLargeText) : kLargeText;
  if (!tokens.empty() && axis.pool == 1 && has_room) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      axis.ticks.push_back({static_cast<Index>(i), picture_label(tokens[i])});
    }
  } else {
    const std::string last = std::to_string(std::max<Index>(0, axis.count - 1));
    const int down = has_room ? 5 * axis.text_size / 4 : 3 * axis.text_size / 2;
    const int apart = is_horizontal ? text_width(last, axis.text_size) + kSmallText : down;
    axis.ticks = numbered_ticks(axis, apart);
  }
  int widest = 0;
  for (const Tick& tick : axis.ticks) widest = std::max(widest, text_width(tick.text, axis.text_size));
  axis.upward = is_horizontal && !tokens.empty() && axis.pool == 1 && has_room && widest > axis.cell;
  axis.gutter = is_horizontal && !axis.upward ? axis.text_size : widest;
  if (!axis.ticks.empty()) axis.gutter += kLabelDistance;
}

/// Panels per row: all heads of a layer when there are several layers, otherwise a grid as square and as full as
/// possible.
int grid_width(const Layout& out, Index num_layers, int panel_width, int panel_height) {
  const int count = static_cast<int>(out.panels.size());
  if (panel_width > 3 * panel_height) return 1;
  if (num_layers > 1 && count / num_layers <= 16) return static_cast<int>(count / num_layers);
  if (count <= 3) return count;
  const int square = static_cast<int>(std::ceil(std::sqrt(count)));
  for (int width = square; width <= square + 1; ++width) {
    if (count % width == 0) return width;
  }
  return square;
}

}  // namespace

std::string picture_label(std::string_view token) { return visible_label(token, kLabelChars, kLabelColumns); }

std::string picture_title(std::string_view title) { return visible_line(title, kTitleChars); }

std::vector<Panel> choose_panels(const AttentionMap& map, const MapOptions& options) {
  const auto number = [](const std::vector<Index>& wanted, Index all) {
    return wanted.empty() ? all : std::ssize(wanted);
  };
  const Index num_layers = number(options.layers, map.num_layers()), num_heads = number(options.heads, map.num_heads());
  if (num_heads > 0 && num_layers > kMaxPanels / num_heads) {
    throw OptionError("[choose_panels] at most " + std::to_string(kMaxPanels) +
                      " heads are drawn: choose layers and heads: got " + std::to_string(num_layers) + " layers of " +
                      std::to_string(num_heads));
  }
  const auto chosen = [](const std::vector<Index>& wanted, Index count, const char* what) {
    std::vector<Index> all = wanted;
    if (all.empty()) {
      for (Index i = 0; i < count; ++i) all.push_back(i);
    }
    for (const Index i : all) {
      if (i < 0 || i >= count) {
        throw OptionError(std::string("[choose_panels] ") + what + " must be in 0 .. " + std::to_string(count - 1) +
                          ": got " + std::to_string(i));
      }
    }
    return all;
  };
  const std::vector<Index> heads = chosen(options.heads, map.num_heads(), "a head");
  std::vector<Panel> panels;
  for (const Index layer : chosen(options.layers, map.num_layers(), "a layer")) {
    for (const Index head : heads) {
      const std::string name = map.head_names.empty() ? "head " + std::to_string(head)
                                                      : picture_title(map.head_names[static_cast<std::size_t>(head)]);
      panels.push_back(
          {layer, head, map.num_layers() > 1 ? "layer " + std::to_string(layer) + ", " + name : name, {}, {}, {}});
    }
  }
  return panels;
}

std::span<const float> weights_of(const AttentionMap& map, const Panel& panel) {
  const auto count = static_cast<std::size_t>(map.q_len() * map.kv_len());
  const auto at = static_cast<std::size_t>(panel.layer * map.num_heads() + panel.head);
  return std::span<const float>(map.weights.span()).subspan(at * count, count);
}

Layout lay_out(const AttentionMap& map, const MapOptions& options, const TextWidth& text_width) {
  Layout out;
  if (options.columns < 0)
    throw OptionError("[lay_out] columns must be 0 or more: got " + std::to_string(options.columns));
  out.panels = choose_panels(map, options);
  out.top = top_weight(map, options);
  for (const Panel& panel : out.panels) {
    const std::span<const float> weights = weights_of(map, panel);
    out.has_nan = out.has_nan || std::ranges::any_of(weights, [](float w) { return std::isnan(w); });
    out.has_zero = out.has_zero || std::ranges::any_of(weights, [](float w) { return w == 0; });
  }
  out.rows.count = map.q_len();
  out.columns.count = map.kv_len();
  out.rows.pool = out.columns.pool = pool_for(map.q_len(), map.kv_len(), out.panels.size());
  size_cells(out);
  const bool is_empty = map.q_len() == 0 || map.kv_len() == 0;
  if (!is_empty) {
    label_axis(out.rows, map.query_tokens, false, text_width);
    label_axis(out.columns, map.key_tokens, true, text_width);
  }
  int name_width = 0;
  for (const Panel& panel : out.panels) name_width = std::max(name_width, text_width(panel.name, kLargeText));
  const int panel_width = is_empty ? kEmptyPanel : out.columns.length(),
            panel_height = is_empty ? kEmptyPanel : out.rows.length();
  const int pitch_x = std::max(panel_width, name_width) + kGap, pitch_y = panel_height + kGap + kLineHeight;
  const Index num_layers = options.layers.empty() ? map.num_layers() : static_cast<Index>(options.layers.size());
  const int count = static_cast<int>(out.panels.size());
  const int across = options.columns > 0 ? static_cast<int>(std::min<Index>(options.columns, count))
                                         : grid_width(out, num_layers, panel_width, panel_height);
  const int down = (count + across - 1) / across;

  const int left = kMargin + kLineHeight + out.rows.gutter;  // caption, labels
  const int top = kMargin + (map.title.empty() ? 0 : kLineHeight + kLineHeight / 2) + kLineHeight;
  for (int n = 0; n < count; ++n) {
    Panel& panel = out.panels[static_cast<std::size_t>(n)];
    panel.cells = {left + n % across * pitch_x, top + n / across * pitch_y, panel_width, panel_height};
    panel.has_row_labels = n % across == 0;
    panel.has_key_labels = n + across >= count;
  }
  const int grid_right = left + (across - 1) * pitch_x + std::max(panel_width, name_width);
  const int grid_bottom = top + (down - 1) * pitch_y + panel_height;
  out.bar = {grid_right + kGap, top, kBarWidth, std::clamp(grid_bottom - top, 120, 360)};
  const int bar_bottom = out.bar.y + out.bar.height + (1 + out.has_nan + out.has_zero) * kLineHeight;
  const int bar_text = text_width("100.0%", kLargeText) + kLabelDistance;
  const int note = out.rows.pool > 1 ? kLineHeight : 0;
  out.width = out.bar.x + out.bar.width + bar_text + kMargin;
  out.width = std::max(out.width, 2 * kMargin + text_width(picture_title(map.title), kLargeText));
  out.height = std::max(grid_bottom + out.columns.gutter + kLineHeight + note, bar_bottom) + kMargin;
  return out;
}

}  // namespace qkv::inline v0::view

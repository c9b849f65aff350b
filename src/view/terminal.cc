// Attention maps as lines of text.
#include <algorithm>

#include "qkv/view/pictures.h"
#include "view/cells.h"
#include "view/layout.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

constexpr int kMostLabelColumns = 12;
constexpr int kLeastColumns = 20;
constexpr int kNumberColumns = 4;  // " 100"
constexpr std::string_view kRamp = " .:-=+*#%@";
constexpr std::string_view kReset = "\x1b[0m";

struct Line {
  std::string text;
  int width = 0;  // columns of the terminal

  void add(std::string_view visible, int columns) {
    text += visible;
    width += columns;
  }
  void pad_to(int columns) {
    if (columns > width) add(std::string(static_cast<std::size_t>(columns - width), ' '), columns - width);
  }
};

/// How a panel is drawn: columns per cell, whether a cell holds its number, whether a line holds two rows of cells,
/// weights per cell.
struct Style {
  int cell = 1;
  bool numbers = false;
  bool halves = false;
  Index pool_rows = 1, pool_columns = 1;
};

class Writer {
 public:
  Writer(const AttentionMap& map, const TerminalOptions& options)
      : map_(map), options_(options), top_(top_weight(map, options.map)) {
    query_labels_ = shown(map.query_tokens, map.q_len());
    key_labels_ = shown(map.key_tokens, map.kv_len());
    for (const std::string& label : query_labels_) label_columns_ = std::max(label_columns_, display_width(label));
    style_ = choose_style(std::max(options.columns, kLeastColumns) - label_columns_ - 1);
  }

  std::vector<Line> panel(const Panel& panel) const {
    std::vector<Line> lines(1);
    const std::string name = clipped(panel.name, std::max(options_.columns, kLeastColumns));
    lines.back().add(name, display_width(name));
    if (map_.q_len() == 0 || map_.kv_len() == 0) {
      lines.emplace_back().add(map_.q_len() == 0 ? "no queries" : "no keys", 10);
      return lines;
    }
    lines.push_back(header());
    const Index step = style_.pool_rows * (style_.halves ? 2 : 1);
    for (Index i = 0; i < map_.q_len(); i += step) lines.push_back(row(panel, i));
    return lines;
  }

  /// The legend of colours or characters.
  std::string legend() const {
    const std::string most = significant(100 * static_cast<double>(top_), 3) + "%";
    std::string out;
    if (options_.colour) {
      constexpr int kSteps = 24;
      out = "0% ";
      for (int n = 0; n < kSteps; ++n) out += background(n * (kNumColours - 1) / (kSteps - 1)) + " ";
      out +=
          std::string(kReset) + " " + most + (options_.map.scale == ColourScale::kSqrt ? " (square root)" : "") + "\n";
    } else if (style_.numbers) {
      out = "in percent; . is exactly 0\n";
    } else {
      out = "0% '" + std::string(kRamp) + "' " + most +
            (options_.map.scale == ColourScale::kSqrt ? " (square root)" : "") + "\n";
    }
    if (style_.pool_rows * style_.pool_columns > 1) {
      out += "each cell: the largest of " + std::to_string(style_.pool_rows) + " x " +
             std::to_string(style_.pool_columns) + " weights\n";
    }
    return out;
  }

 private:
  std::vector<std::string> shown(const std::vector<std::string>& tokens, Index count) const {
    std::vector<std::string> out;
    for (Index i = 0; i < count; ++i) {
      const std::string label =
          tokens.empty() ? std::to_string(i) : visible_label(tokens[static_cast<std::size_t>(i)], kMostLabelColumns);
      out.push_back(clipped(label, kMostLabelColumns));
    }
    return out;
  }

  /// At most `columns` columns, and in ASCII if the options say so.
  std::string clipped(const std::string& visible, int columns) const {
    std::string out;
    for (const Character& c : decode_utf8(options_.unicode ? visible : ascii_label(visible))) {
      std::string longer = out;
      append_utf8(longer, c.code);
      if (display_width(longer) > columns) break;
      out = std::move(longer);
    }
    return out;
  }

  Style choose_style(int columns) const {
    const Index keys = map_.kv_len();
    if (keys * kNumberColumns <= columns && options_.map.numbers == CellNumbers::kWhereTheyFit)
      return {kNumberColumns, true, false, 1, 1};
    if (keys * 2 <= columns) return {2, false, false, 1, 1};
    const Index pool = (keys + columns - 1) / columns;
    if (options_.colour && options_.unicode) return {1, false, true, pool, pool};
    return {1, false, false, pool * 2, pool};  // a character is about twice as high as wide
  }

  /// Key labels where each fits over its cell, otherwise positions at a round step.
  Line header() const {
    Line line;
    line.pad_to(label_columns_ + 1);
    const int room = style_.numbers ? style_.cell - 1 : style_.cell;
    const bool fits =
        style_.pool_columns == 1 && std::all_of(key_labels_.begin(), key_labels_.end(),
                                        [room](const std::string& label) { return display_width(label) <= room; });
    if (fits || style_.numbers) {
      for (const std::string& whole : key_labels_) {
        const std::string label = clipped(whole, room);
        const int end = line.width + style_.cell;
        if (style_.numbers) line.pad_to(end - display_width(label));  // over the last digit
        line.add(label, display_width(label));
        line.pad_to(end);
      }
      return line;
    }
    const Index step = style_.pool_columns * (style_.cell == 2 ? 5 : 10);
    for (Index j = 0; j < map_.kv_len(); j += step) {
      line.pad_to(label_columns_ + 1 + static_cast<int>(j / style_.pool_columns) * style_.cell);
      const std::string number = std::to_string(j);
      line.add(number, static_cast<int>(number.size()));
    }
    return line;
  }

  /// The weight shown by the cell that starts at (i, j).
  float largest(const Panel& panel, Index i, Index j) const {
    return largest_weight(map_.weights.view<4>(), panel.layer, panel.head, i, j, style_.pool_rows, style_.pool_columns);
  }

  Rgb colour(int index) const {
    return index < 0 ? kNanColour : colour_map(options_.theme)[static_cast<std::size_t>(index)];
  }

  static std::string paint(std::string_view layer, Rgb c) {
    return "\x1b[" + std::string(layer) + ";2;" + std::to_string(c.red) + ";" + std::to_string(c.green) + ";" +
           std::to_string(c.blue) + "m";
  }
  std::string background(int index) const { return paint("48", colour(index)); }

  Line row(const Panel& panel, Index i) const {
    Line line;
    const std::string& label = query_labels_[static_cast<std::size_t>(i)];
    line.pad_to(label_columns_ - display_width(label));
    line.add(label, display_width(label));
    line.add(" ", 1);
    std::string before;
    for (Index j = 0; j < map_.kv_len(); j += style_.pool_columns) {
      const float w = largest(panel, i, j);
      if (options_.colour) {
        const std::string colours = colours_of(panel, i, j, w);
        if (colours != before) line.text += colours;
        before = colours;
      }
      line.add(content(w), style_.cell);
    }
    if (options_.colour) line.text += kReset;
    return line;
  }

  std::string colours_of(const Panel& panel, Index i, Index j, float w) const {
    const int index = colour_index(w, top_, options_.map.scale);
    if (style_.halves) {
      const Index below = i + style_.pool_rows;
      if (below >= map_.q_len()) return std::string(kReset) + paint("38", colour(index));
      return paint("38", colour(index)) + background(colour_index(largest(panel, below, j), top_, options_.map.scale));
    }
    const Rgb c = colour(index);
    return background(index) + (style_.numbers ? paint("38", is_dark(c) ? Rgb{255, 255, 255} : Rgb{28, 28, 34}) : "");
  }

  std::string content(float w) const {
    if (style_.halves) return "\xE2\x96\x80";  // U+2580, upper half block
    if (style_.numbers) {
      std::string number = w == 0 && options_.colour ? "" : percent_text(w);
      if (number.size() >= kNumberColumns) number = ">99";  // a weight after dropout may be far above 1
      return std::string(kNumberColumns - number.size(), ' ') + number;
    }
    if (options_.colour) return std::string(static_cast<std::size_t>(style_.cell), ' ');
    const int index = colour_index(w, top_, options_.map.scale);
    const std::size_t darkness =
        index <= 0 ? 0 : 1 + static_cast<std::size_t>(index - 1) * (kRamp.size() - 1) / (kNumColours - 1);
    return std::string(static_cast<std::size_t>(style_.cell), index < 0 ? '?' : kRamp[darkness]);
  }

  const AttentionMap& map_;
  const TerminalOptions& options_;
  float top_;
  std::vector<std::string> query_labels_, key_labels_;
  int label_columns_ = 0;
  Style style_;
};

/// Lines of one panel, and the columns of the widest.
struct Block {
  std::vector<Line> lines;
  int width = 0;

  explicit Block(std::vector<Line> all) : lines(std::move(all)) {
    for (const Line& line : lines) width = std::max(width, line.width);
  }
};

constexpr int kGapColumns = 3;

std::string beside(const std::vector<Block>& blocks) {
  std::size_t height = 0;
  for (const Block& block : blocks) height = std::max(height, block.lines.size());
  std::string out;
  for (std::size_t n = 0; n < height; ++n) {
    Line line;
    int begin = 0;
    for (const Block& block : blocks) {
      line.pad_to(begin);
      if (n < block.lines.size()) line.add(block.lines[n].text, block.lines[n].width);
      begin += block.width + kGapColumns;
    }
    out += line.text + "\n";
  }
  return out;
}

}  // namespace

std::string render_terminal(const AttentionMap& map, const TerminalOptions& options) {
  check_map(map);
  const Writer writer(map, options);
  const std::string title = visible_line(map.title, kTitleChars);
  std::string out = title.empty() ? "" : (options.unicode ? title : ascii_label(title)) + "\n";
  std::vector<Block> side_by_side;
  int width = 0;
  for (const Panel& panel : choose_panels(map, options.map)) {
    Block block(writer.panel(panel));
    if (!side_by_side.empty() && width + block.width > options.columns) {
      out += beside(side_by_side);
      side_by_side.clear();
      width = 0;
    }
    width += block.width + kGapColumns;
    side_by_side.push_back(std::move(block));
  }
  return out + beside(side_by_side) + writer.legend();
}

}  // namespace qkv::inline v0::view

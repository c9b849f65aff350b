#include "support/help.h"

namespace qkv::cli {
namespace {

class CalmFormatter : public CLI::Formatter {
 public:
  CalmFormatter() { column_width(30); }

  /// CLI11 shows a flag's default in braces; here the description says it.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (std::size_t open = name.find('{'); open != std::string::npos; open = name.find('{')) {
      const std::size_t close = name.find('}', open);
      name.erase(open, close == std::string::npos ? close : close - open + 1);
    }
    return name;
  }

  /// CLI11 adds what a value is checked for ("N:INT in [1 - 9]"), in its own words; here the description says what matters.
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string opts = CLI::Formatter::make_option_opts(option);
    const std::size_t check = opts.find(':'), end = opts.rfind(']');
    if (check != std::string::npos && end != std::string::npos && check < end) opts.erase(check, end - check + 1);
    return opts;
  }

  /// CLI11 leaves two empty lines between groups.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n")) text.erase(at, 1);
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::Formatter> help_formatter() { return std::make_shared<CalmFormatter>(); }

}  // namespace qkv::cli

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

  /// The value's name and REQUIRED: CLI11 adds checks, needs and excludes in its own words, which are said when they are broken.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return {};
    const std::string type = option->get_type_name();
    return " " + type.substr(0, type.find(':')) + (option->get_expected_max() > 1 && option->get_positional() ? " ..." : "") +
           (option->get_required() ? " REQUIRED" : "");
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

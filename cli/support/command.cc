#include "support/command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/escape.h"
#include "core/sentences.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

/// `text` as a finite number of decimal digits within the rule; CLI11's own reading saturates, wraps negative numbers
/// and reads 010 as octal.
template <class Number> void read(const std::string& name, const std::string& text, const Rule& rule, Number& number) {
  Number read = 0;
  const auto [next, error] = std::from_chars(text.data(), text.data() + text.size(), read);
  const bool whole = error == std::errc() && next == text.data() + text.size();
  constexpr bool kInteger = std::is_integral_v<Number>;
  const auto refuse_unless = [&](bool within, std::uint64_t most, bool bounded) {
    if (whole && within) return;
    throw CLI::ValidationError(
        name + " must be " + (kInteger ? "an integer" : "a number") +
        (rule.negative ? "" : (bounded ? " from " : " of at least ") + std::to_string(rule.least)) +
        (bounded ? " to " + std::to_string(most) : "") + ": got " + escaped(text));
  };
  if constexpr (kInteger) {
    constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<Number>::max());
    const std::uint64_t most = std::min(rule.most, kLargest);
    // else its type's largest says nothing
    const bool bounded = most < kLargest || error == std::errc::result_out_of_range;
    refuse_unless(std::cmp_greater_equal(read, rule.least) && std::cmp_less_equal(read, most), most, bounded);
  } else {
    const bool enough = rule.negative || read >= static_cast<Number>(rule.least);
    const bool bounded = rule.most != Rule().most;
    refuse_unless(
        std::isfinite(read) && enough && (!bounded || read <= static_cast<Number>(rule.most)), rule.most, bounded);
  }
  number = read;
}

void read(const std::string&, const std::string& text, const Rule&, std::string& value) { value = text; }

/// An empty value would read as if the option were not there, which nobody says.
void require_text(const std::string& name, const std::string& type, const std::string& text) {
  if (!text.empty()) return;
  const bool file = type.starts_with("FILE") || type == "DIR";
  throw CLI::ValidationError(
      name + (file ? " needs the name of a file" : " needs a value" + (type.empty() ? "" : ", " + type)) +
      ": got \"\"");
}

template <class Value>
void read(const std::string& name, const std::string& text, const Rule& rule, std::optional<Value>& value) {
  read(name, text, rule, value.emplace());
}

}  // namespace

std::vector<Command>& commands() {
  static std::vector<Command> all;  // made at first use: commands are added while statics are initialised
  return all;
}

void Options::operator()(const std::string& spelled, Target target, const std::string& english, const Rule& rule) {
  const std::string help = said(english);
  const std::size_t space = spelled.find(' ');
  const std::string names = spelled.substr(0, space),
                    type = space == std::string::npos ? "" : spelled.substr(space + 1);
  const std::string name = names.substr(0, names.find_first_of(",{"));
  CLI::Option* option = nullptr;
  std::visit(
      [&](auto* value) {
        using Value = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          option = app_.add_flag(names, *value, help)->disable_flag_override();  // --name=word is refused
        } else if constexpr (std::is_same_v<Value, std::optional<bool>>) {
          option = app_.add_flag_function(
              names, [value](std::int64_t count) { *value = count > 0; }, help);
          option->disable_flag_override()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          const auto take = [name, value, type](const CLI::results_t& words) {
            for (const std::string& word : words) require_text(name, type, word);
            *value = words;
            return true;
          };
          option = app_.add_option(names, take, help)->type_name(type.empty() ? name : type)->type_size(1);
          if (name.starts_with('-')) {
            option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
          } else {
            option->expected(CLI::detail::expected_max_vector_size);
          }
        } else if (names.ends_with('}')) {
          if constexpr (std::is_same_v<Value, std::string>)
            option = app_.add_flag(names, *value, help)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
        } else {
          const auto take = [name, value, rule, type, given = false](const CLI::results_t& words) mutable {
            const bool optional = type.starts_with('[');  // CLI11 writes {} for no value, and forgets what came before
            if (words.size() > 1 || std::exchange(given, true))
              throw CLI::ValidationError(name + " must be given once: got it again");
            const std::string text = words.empty() || (optional && words.back() == "{}") ? "" : words.back();
            constexpr bool kText =
                std::is_same_v<Value, std::string> || std::is_same_v<Value, std::optional<std::string>>;
            if (kText && !optional && rule.among.empty()) require_text(name, type, text);
            if (!rule.among.empty() && std::ranges::find(rule.among, text) == rule.among.end())
              throw CLI::ValidationError(
                  name + " must be one of " + CLI::detail::join(rule.among, ", ") + ": got " + escaped(text));
            read(name, text, rule, *value);
            return true;
          };
          option = app_.add_option(names, take, help)->type_name(type.empty() ? name : type)->type_size(1)->expected(1);
          if (name.starts_with('-')) option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
          if (type.starts_with('[')) option->expected(0, 1)->default_str("")->trigger_on_parse();
        }
      },
      target);
  if (!heading_.empty()) option->group(heading_);
  option->required(rule.required);
  if (!rule.needs.empty()) option->needs(app_.get_option(rule.needs));
  for (const std::string& other : rule.excludes) option->excludes(app_.get_option(other));
}

void Options::compute(ComputeOptions& options, int threads) {
  options.threads = threads;
  (*this)("--threads N", &options.threads, "Threads (default " + (threads == 0 ? "all" : std::to_string(threads)) + ")",
      {.least = 1, .most = 1024});
  (*this)("--isa NAME", &options.isa, "Instruction set: " + isa_names() + " (default: the fastest here)");
  (*this)("--bits NAME", &options.bits,
      "fast, or invariant: a row is the same alone and among others, but 13 times as slow without FMA (default fast)");
}

void Options::footer(const std::string& text) { app_.footer(text + "\n" + app_.get_footer()); }

}  // namespace qkv::cli

// qkv forms: the table of every form on the same weights, and the pairs that must be equal.
// Not: the computation (forms.cc).
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "forms.h"
#include "json.h"
#include "options.h"
#include "text.h"

namespace qkv::cli {
namespace {

struct Options {
  FormsSizes sizes;
  ComputeOptions compute;
  bool json = false;
};

/// "12.6 + 33.6 M": projections and attention in one unit.
std::string flops_text(const Form& form) {
  const char* const units[] = {"", " k", " M", " G", " T"};
  double unit_size = 1;
  std::size_t unit = 0;
  while (std::max(form.projection_flops, form.attention_flops) >= 1000 * unit_size && unit + 1 < std::size(units)) {
    unit_size *= 1000;
    ++unit;
  }
  const std::string attention = fmt::format("{:.3g}{}", form.attention_flops / unit_size, units[unit]);
  return form.projection_flops > 0 ? fmt::format("{:.3g} + {}", form.projection_flops / unit_size, attention) : attention;
}

Json to_json(const FormsReport& report, const Context& context) {
  Json forms = Json::array(), equal = Json::array();
  for (const Form& form : report.forms) {
    forms.push_back({{"name", form.name},
                     {"family", form.family},
                     {"type", form.type},
                     {"error", form.error},
                     {"error_over_bound", form.error_over_bound},
                     {"parameters", form.parameters},
                     {"flops", form.flops()},
                     {"projection_flops", form.projection_flops},
                     {"attention_flops", form.attention_flops},
                     {"score_bytes", form.score_bytes},
                     {"ms", 1e3 * form.seconds}});
  }
  for (const EqualForms& pair : report.equal) {
    equal.push_back({{"a", pair.a},
                     {"b", pair.b},
                     {"note", pair.note},
                     {"difference", pair.difference},
                     {"difference_over_bound", pair.difference_over_bound},
                     {"same_bits", pair.same_bits},
                     {"holds", pair.holds()}});
  }
  const FormsSizes& sizes = report.sizes;
  return {{"batch", sizes.batch}, {"length", sizes.length},       {"embed", sizes.embed_dim},       {"heads", sizes.num_heads},
          {"seed", sizes.seed},   {"threads", context.threads()}, {"isa", isa_name(context.isa())}, {"forms", forms},
          {"equal", equal},       {"holds", report.holds()}};
}

void print_table(const FormsReport& report) {
  const auto line = [](auto... cells) { return fmt::format("{:<20} {:<10} {:>7} {:>6} {:>13} {:>9} {:>8}", cells...); };
  print_line(faint(line("form", "family", "error", "params", "FLOPs", "scores", "time")));
  for (const Form& form : report.forms) {
    print_line(line(form.name, form.family, fmt::format("{:.1e}", form.error), form.parameters, flops_text(form),
                    bytes_text(form.score_bytes), seconds_text(form.seconds)));
    if (!(form.error_over_bound <= 1)) print_line(bold("^ farther from the textbook than rounding explains"));
  }
}

void print_legend() {
  for (const char* line : {"error   largest distance from plain loops in f64 (f64 rows: in long double)",
                           "FLOPs   projections + attention; pairs that the mask drops are not counted",
                           "scores  naive: the whole [B, H, T, T]; all others: the tiles' scratch memory",
                           "naive   the readable textbook loops of this project, not tuned"}) {
    print_line(faint(line));
  }
}

void print_equal(const FormsReport& report) {
  print_line(bold("Must be equal"));
  for (const EqualForms& pair : report.equal) {
    const std::string found = !pair.holds()    ? fmt::format("NO: {:.1e} apart", pair.difference)
                              : pair.same_bits ? std::string("bit for bit")
                                               : fmt::format("{:.1e} apart, {:.0f} % of the bound", pair.difference,
                                                             100 * pair.difference_over_bound);
    print_line(fmt::format("{:<38} {}", pair.a + " = " + pair.b, found) +
               (pair.note.empty() ? "" : faint("  (" + pair.note + ")")));
  }
}

void print_report(const FormsReport& report, const Context& context) {
  const FormsSizes& sizes = report.sizes;
  print_line(bold("Every form of attention, same weights, same input"));
  print_line(
      faint(fmt::format("batch {}, length {}, embed {}, heads {}; {} thread{}, {}", sizes.batch, sizes.length, sizes.embed_dim,
                        sizes.num_heads, context.threads(), context.threads() == 1 ? "" : "s", isa_name(context.isa()))));
  print_line();
  print_table(report);
  print_line();
  print_legend();
  print_line();
  print_equal(report);
  print_line();
  double worst = 0;
  for (const Form& form : report.forms) worst = std::max(worst, form.error_over_bound);
  if (!report.holds()) {
    print_line(bold("Not every form is what it must be: see NO and ^ above."));
    return;
  }
  print_line(fmt::format("Checked: all pairs are equal; every error is within its bound (at most {:.0f} %).", 100 * worst));
  print_line(faint("bound = 2 x error of plain loops in the same type + 4 eps A; A: every term positive"));
}

int run(const Options& options) {
  Context context(options.compute.context());
  const FormsReport report = run_forms(options.sizes, context);
  if (options.json) {
    print_json(to_json(report, context));
  } else {
    print_report(report, context);
  }
  return report.holds() ? 0 : 1;
}

std::function<int()> declare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  FormsSizes& sizes = options->sizes;
  app.add_option("--batch", sizes.batch, "Sequences (default 2)")->type_name("N");
  app.add_option("--length", sizes.length, "Tokens in each (default 256)")->type_name("N");
  app.add_option("--embed", sizes.embed_dim, "Width of a token (default 64)")->type_name("N");
  app.add_option("--heads", sizes.num_heads, "Heads of the multi-head forms; divides --embed (default 4)")->type_name("N");
  app.add_option("--seed", sizes.seed, "Seed of weights and input (default 0)")->type_name("N");
  add_compute_options(app, options->compute, 1);
  add_json_option(app, options->json);
  return [options] { return run(*options); };
}

const bool added = add_command({"forms", "Every form of attention on the same weights: error, cost, and what must be equal",
                                "qkv forms --length 512 --embed 128 --heads 8", declare});

}  // namespace
}  // namespace qkv::cli

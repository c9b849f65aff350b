// qkv forms: the table of every form on the same weights, and the pairs that must be equal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/sentences.h"
#include "forms/forms.h"
#include "support/command.h"
#include "support/json.h"
#include "support/options.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

struct FormsCommandOptions {
  FormsSizes sizes;
  ComputeOptions compute;
  double memory_mib = 1024;
  bool json = false;
};

constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};

/// The unit in which a number has at most three digits before the point: its power of 1000.
int unit_of(double number) {
  int unit = 0;
  for (; number >= 1000 && unit + 1 < static_cast<int>(std::size(kUnits)); number /= 1000) ++unit;
  return unit;
}

std::string count_text(double number) {
  const int unit = unit_of(number);
  return fmt::format("{:.3g}{}", number / std::pow(1000, unit), kUnits[unit]);
}

/// "12.6 + 33.6 M": projections and attention in one unit.
std::string flops_text(double projections, double attention) {
  const int unit = unit_of(std::max(projections, attention));
  const double size = std::pow(1000, unit);
  const std::string text = fmt::format("{:.3g}{}", attention / size, kUnits[unit]);
  return projections > 0 ? fmt::format("{:.3g} + {}", projections / size, text) : text;
}

Json to_json(const FormsReport& report, const Context& context) {
  Json forms = Json::array(), equal = Json::array();
  for (const Form& form : report.forms) {
    forms.push_back({{"name", form.name}, {"family", form.family}, {"type", form.type}, {"error", form.error},
        {"error_over_bound", form.error_over_bound}, {"parameters", form.parameters}, {"flops", form.flops()},
        {"projection_flops", form.projection_flops}, {"attention_flops", form.attention_flops},
        {"score_bytes", form.score_bytes}, {"longest_length", form.longest > 0 ? Json(form.longest) : Json()},
        {"from_softmax", form.from_softmax >= 0 ? Json(form.from_softmax) : Json()}, {"ms", 1e3 * form.seconds}});
  }
  for (const EqualForms& pair : report.equal) {
    equal.push_back({{"a", pair.a}, {"b", pair.b}, {"note", pair.note}, {"difference", pair.difference},
        {"difference_over_bound", pair.difference_over_bound}, {"same_bits", pair.same_bits}, {"holds", pair.holds()}});
  }
  const FormsSizes& sizes = report.sizes;
  return {{"batch", sizes.batch}, {"length", sizes.length}, {"embed", sizes.embed_dim}, {"heads", sizes.num_heads},
      {"seed", sizes.seed}, {"threads", context.threads()}, {"isa", isa_name(context.isa())},
      {"memory_bytes", report.memory}, {"forms", forms}, {"equal", equal}, {"holds", report.holds()}};
}

void print_table(const FormsReport& report) {
  const auto line = [](auto... cells) {
    return fmt::format("{:<20} {:<10} {:>7} {:>6} {:>13} {:>9} {:>10}", cells...);
  };
  print_line(faint(line("form", "family", "error", "params", "FLOPs", "scores", "time")));
  for (const Form& form : report.forms) {
    print_line(line(form.name, form.family, fmt::format("{:.1e}", form.error), form.parameters,
        flops_text(form.projection_flops, form.attention_flops), bytes_text(form.score_bytes),
        seconds_text(form.seconds)));
    if (!(form.error_over_bound <= 1)) print_line(bold("^ farther from the textbook than rounding explains"));
  }
}

/// One row for each kind of attention, as the layer of which it is a part: what differs is attention alone.
void print_comparison(const FormsReport& report) {
  struct Kind {
    const char *name, *form;
  };
  constexpr Kind kinds[] = {{"standard", "naive f32"}, {"flash", "tiled f32"}, {"linear, elu+1", "linear"},
      {"linear, random", "linear features"}, {"sparse, window", "sparse window"}, {"sparse, blocks", "sparse blocks"}};
  const auto line = [](auto... cells) {
    return fmt::format("{:<14} {:>6} {:>14} {:>9} {:>8} {:>10} {:>8} {:>8}", cells...);
  };
  const FormsSizes& sizes = report.sizes;
  const double embed = static_cast<double>(sizes.embed_dim);
  const double parameters = 4 * embed * (embed + 1);
  const double projections = 8 * static_cast<double>(sizes.batch * sizes.length) * embed * embed;
  print_line(bold("Standard, flash, linear, sparse: the same layer, another formula in the middle"));
  print_line(faint(line("kind", "params", "FLOPs", "memory", "longest", "time", "error", "softmax")));
  for (const Kind& kind : kinds) {
    const auto form = std::ranges::find(report.forms, std::string(kind.form), &Form::name);
    if (form == report.forms.end()) continue;
    print_line(line(kind.name, count_text(parameters), flops_text(projections, form->attention_flops),
        bytes_text(form->score_bytes), count_text(form->longest), seconds_text(form->seconds),
        fmt::format("{:.1e}", form->error), fmt::format("{:.1e}", form->from_softmax)));
  }
  for (const char* text : {"params   all in the projections, the same for each: no kind has O(d)",
           "FLOPs    projections + attention; time, memory and error are attention's alone",
           "softmax  distance from softmax attention: linear and sparse compute something else"}) {
    print_line(faint(text));
  }
  print_line(
      faint(fmt::format("longest  tokens whose q, k, v, out and memory fit into {}", bytes_text(report.memory))));
}

void print_legend() {
  for (const char* line : {"error   largest distance from plain loops in f64 (f64 rows: in long double)",
           "FLOPs   projections + attention; pairs that the mask drops are not counted",
           "scores  naive: the whole [B, H, T, T]; all others: scratch memory",
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
    print_line(fmt::format("{:<38} {}", pair.a + " = " + pair.b, said(found)) +
               (pair.note.empty() ? "" : faint("  (" + pair.note + ")")));
  }
}

void print_report(const FormsReport& report, const Context& context) {
  const FormsSizes& sizes = report.sizes;
  print_line(bold("Every form of attention, same weights, same input"));
  print_line(faint(fmt::format("batch {}, length {}, embed {}, heads {}; {} thread{}, {}", sizes.batch, sizes.length,
      sizes.embed_dim, sizes.num_heads, context.threads(), context.threads() == 1 ? "" : "s",
      isa_name(context.isa()))));
  print_line();
  print_table(report);
  print_line();
  print_legend();
  print_line();
  print_comparison(report);
  print_line();
  print_equal(report);
  print_line();
  double worst = 0;
  for (const Form& form : report.forms) worst = std::max(worst, form.error_over_bound);
  if (!report.holds()) {
    print_line(bold("Not every form is what it must be: see NO and ^ above."));
    return;
  }
  print_line(
      fmt::format("Checked: all pairs are equal; every error is within its bound (at most {:.0f} %).", 100 * worst));
  print_line(faint("bound = 2 x error of plain loops in the same type + 4 eps A; A: every term positive"));
}

int run_forms(const FormsCommandOptions& options) {
  Context context(options.compute.context());
  if (!(options.memory_mib > 0)) throw UsageError(fmt::format("--memory must be above 0: got {}", options.memory_mib));
  FormsSizes sizes = options.sizes;
  sizes.memory = options.memory_mib * 1024 * 1024;
  const FormsReport report = run_forms(sizes, context);
  if (options.json) {
    print_json(to_json(report, context));
  } else {
    print_report(report, context);
  }
  return report.holds() ? 0 : 1;
}

void declare_forms(Options& add, FormsCommandOptions& options) {
  FormsSizes& sizes = options.sizes;
  add("--batch N", &sizes.batch, "Sequences (default 2)", {.least = 1});
  add("--length N", &sizes.length, "Tokens in each (default 256)", {.least = 1});
  add("--embed N", &sizes.embed_dim, "Width of a token (default 64)", {.least = 1});
  add("--heads N", &sizes.num_heads, "Heads of the multi-head forms; divides --embed (default 4)", {.least = 1});
  add("--memory X", &options.memory_mib, "Memory in MiB for the column of longest lengths (default 1024)");
  add("--seed N", &sizes.seed, "Seed of weights and input (default 0)");
  add.compute(options.compute, 1);
  add.json(options.json);
}

const bool forms_added =
    add_command({"forms", "Every form of attention on the same weights: error, cost, and what must be equal",
                    "qkv forms --length 128 --embed 128 --heads 8"},
        declare_forms, run_forms);

}  // namespace
}  // namespace qkv::cli

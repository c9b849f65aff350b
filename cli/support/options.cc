#include "support/options.h"

#include "core/cpu.h"
#include "core/escape.h"
#include "support/command.h"
#include "support/integer_option.h"

namespace qkv::cli {
namespace {

/// Every name that this build holds, whether or not this CPU runs it.
std::string isa_names() {
  std::string names;
  for (const IsaCandidate& candidate : isa_candidates())
    names.append(names.empty() ? "" : ", ").append(isa_name(candidate.isa));
  return names;
}

}  // namespace

ContextOptions ComputeOptions::context() const {
  ContextOptions options;
  options.threads = threads;
  if (!isa.empty()) options.isa = parse_isa(isa);
  if (!bits.empty()) options.bits = parse_bits(bits);
  return options;
}

void add_compute_options(CLI::App& app, ComputeOptions& options, int threads) {
  options.threads = threads;
  const std::string usual = threads == 0 ? "all" : std::to_string(threads);
  add_integer(app, "--threads", options.threads, "Threads (default " + usual + ")", 1, 1024);
  app.add_option("--isa", options.isa, "Instruction set: " + isa_names() + " (default: the fastest here)")->type_name("NAME");
  app.add_option("--bits", options.bits, "fast, or invariant: a row is the same alone and among others (default fast)")
      ->type_name("NAME");
}

void add_json_option(CLI::App& app, bool& json) { app.add_flag("--json", json, "One JSON document on standard output"); }

std::vector<Index> parse_indices(std::string_view option, const std::string& text) {
  std::vector<Index> values;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    Index value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (next != end && *next != ',')) {
      throw UsageError(std::string(option) + " must be whole numbers separated by commas, such as 4,2: got " + escaped(text));
    }
    values.push_back(value);
    if (next == end) return values;
    at = next + 1;
  }
}

EmptyRow parse_empty_row(const std::string& text) {
  return named<EmptyRow>("--empty-row", text, {{"zero", EmptyRow::kZero}, {"mean", EmptyRow::kMean}, {"nan", EmptyRow::kNaN}});
}

Align parse_align(std::string_view option, const std::string& text) {
  return named<Align>(option, text,
                      {{"top-left", Align::kTopLeft}, {"bottom-right", Align::kBottomRight}, {"square", Align::kSquare}});
}

MaskAxes parse_mask_axes(const std::string& text) {
  return named<MaskAxes>("--mask-axes", text,
                         {{"bk", MaskAxes::kBk}, {"qk", MaskAxes::kQk}, {"bqk", MaskAxes::kBqk}, {"hqk", MaskAxes::kHqk}});
}

Mask dense_mask(std::string_view option, const Tensor<std::uint8_t>& dense, const std::string& axes, bool keep) {
  const auto made = [&](auto view, auto... named_axes) {
    return keep ? Mask::keep(view, named_axes...) : Mask::drop(view, named_axes...);
  };
  const auto refuse = [&](const std::string& why) -> UsageError {
    return UsageError(std::string(option) + " has the shape " + dense.shape() + ": " + why);
  };
  if (axes.empty()) {
    if (dense.rank() == 4) return made(dense.view<4>());
    throw refuse("give it four axes [B|1, H|1, Tq|1, Tk|1], or name them: --mask-axes bk, qk, bqk or hqk");
  }
  const MaskAxes which = parse_mask_axes(axes);
  const int rank = static_cast<int>(axes.size());
  if (dense.rank() != rank) throw refuse("--mask-axes " + axes + " names " + std::to_string(rank) + " axes");
  if (rank == 2) return made(dense.view<2>(), which);
  return made(dense.view<3>(), which);
}

}  // namespace qkv::cli

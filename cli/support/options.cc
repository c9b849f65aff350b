#include "support/options.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "core/cpu.h"

namespace qkv::cli {

std::string isa_names() {
  std::string names;
  for (const IsaCandidate& candidate : isa_candidates())
    names.append(names.empty() ? "" : ", ").append(isa_name(candidate.isa));
  return names;
}

ContextOptions ComputeOptions::context() const {
  ContextOptions options;
  options.threads = threads;
  if (!isa.empty()) {
    std::vector<std::pair<std::string_view, const IsaCandidate*>> known;
    for (const IsaCandidate& candidate : isa_candidates()) known.emplace_back(isa_name(candidate.isa), &candidate);
    const IsaCandidate& chosen = *named("--isa", isa, known);
    if (!chosen.obstacle.empty()) throw UsageError("--isa " + isa + ": " + chosen.obstacle);
    options.isa = chosen.isa;
  }
  if (!bits.empty())
    options.bits = named<Bits>("--bits", bits, {{"fast", Bits::kFast}, {"invariant", Bits::kInvariant}});
  return options;
}

void check_only_about(std::initializer_list<OnlyAbout> options) {
  for (const OnlyAbout& one : options) {
    if (one.given && !one.allowed)
      throw UsageError(std::string(one.option) + " is about " + one.what + ": leave it out");
  }
}

std::vector<Index> parse_indices(std::string_view option, const std::string& text) {
  std::vector<Index> values;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();;) {
    Index value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (next != end && *next != ','))
      throw UsageError(
          std::string(option) + " must be whole numbers separated by commas, such as 4,2: got " + escaped(text));
    values.push_back(value);
    if (next == end) return values;
    at = next + 1;
  }
}

lm::HeadSet parse_heads(std::string_view option, const std::string& text, const lm::AttentionLMConfig& model) {
  lm::HeadSet heads;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();;) {
    lm::HeadIndex one;
    auto read = std::from_chars(at, end, one.layer);
    const bool pair = read.ec == std::errc() && read.ptr != end && *read.ptr == ':';
    if (pair) read = std::from_chars(read.ptr + 1, end, one.head);
    if (!pair || read.ec != std::errc() || (read.ptr != end && *read.ptr != ','))
      throw UsageError(std::string(option) + " must be LAYER:HEAD, both counted from 0, several separated by commas, " +
                       "such as 0:1,1:0: got " + escaped(text));
    if (one.layer < 0 || one.layer >= model.num_layers || one.head < 0 || one.head >= model.num_heads)
      throw UsageError(std::string(option) + ": the model has " + std::to_string(model.num_layers) + " layers of " +
                       std::to_string(model.num_heads) + " heads, counted from 0: got head " +
                       std::to_string(one.head) + " of layer " + std::to_string(one.layer));
    heads.push_back(one);
    if (read.ptr == end) return heads;
    at = read.ptr + 1;
  }
}

EmptyRow parse_empty_row(const std::string& text) {
  return named<EmptyRow>(
      "--empty-row", text, {{"zero", EmptyRow::kZero}, {"mean", EmptyRow::kMean}, {"nan", EmptyRow::kNaN}});
}

Align parse_align(std::string_view option, const std::string& text) {
  return named<Align>(
      option, text, {{"top-left", Align::kTopLeft}, {"bottom-right", Align::kBottomRight}, {"square", Align::kSquare}});
}

void DenseMaskOptions::add_to(Options& add) {
  add("--keep FILE", &keep, "Non-zero: may attend; [B|1, H|1, Tq|1, Tk|1], or fewer axes that --mask-axes names");
  add("--drop FILE", &drop, "Non-zero: may not attend");
  add("--mask-axes AXES", &axes, "Axes of a smaller mask: bk, qk, bqk, hqk");
}

void DenseMaskOptions::check(bool any) const {
  if (!axes.empty() && !any) throw UsageError("--mask-axes needs --keep or --drop");
}

Mask dense_mask(std::string_view option, const Tensor<std::uint8_t>& dense, const std::string& axes, bool keep) {
  const auto made = [&](auto view, auto... named_axes) {
    return keep ? Mask::keep(view, named_axes...) : Mask::drop(view, named_axes...);
  };
  const auto refuse = [&](const std::string& why) {
    return UsageError(std::string(option) + " has the shape " + dense.shape() + ": " + why);
  };
  if (axes.empty()) {
    if (dense.rank() == 4) return made(dense.view<4>());
    throw refuse("give it four axes [B|1, H|1, Tq|1, Tk|1], or name them: --mask-axes bk, qk, bqk or hqk");
  }
  const auto which = named<MaskAxes>("--mask-axes", axes,
      {{"bk", MaskAxes::kBk}, {"qk", MaskAxes::kQk}, {"bqk", MaskAxes::kBqk}, {"hqk", MaskAxes::kHqk}});
  const int rank = static_cast<int>(axes.size());
  if (dense.rank() != rank) throw refuse("--mask-axes " + axes + " names " + std::to_string(rank) + " axes");
  if (rank == 2) return made(dense.view<2>(), which);
  return made(dense.view<3>(), which);
}

RotaryChoice parse_rotary(const std::string& text) {
  RotaryChoice choice;
  RotaryOptions& o = choice.options;
  const auto number = [](const std::string& key, const std::string& value) {
    double read = 0;
    const auto [next, error] = std::from_chars(value.data(), value.data() + value.size(), read);
    if (error != std::errc() || next != value.data() + value.size() || !std::isfinite(read))
      throw UsageError("--rope " + key + " must be a number: got " + escaped(value));
    return read;
  };
  const auto whole = [&](const std::string& key, const std::string& value) {
    const double read = number(key, value);
    if (read != std::floor(read) || std::abs(read) > 0x1p53)
      throw UsageError("--rope " + key + " must be a whole number: got " + escaped(value));
    return static_cast<Index>(read);
  };
  const auto scaling = [](const std::string& value) {
    return named<RotaryScaling>("--rope scaling", value,
        {{"none", RotaryScaling::kNone}, {"linear", RotaryScaling::kLinear}, {"ntk", RotaryScaling::kNtk},
            {"yarn", RotaryScaling::kYarn}, {"llama3", RotaryScaling::kLlama3}});
  };
  const auto layout = [](const std::string& value) {
    return named<RotaryLayout>(
        "--rope layout", value, {{"half", RotaryLayout::kHalfSplit}, {"interleaved", RotaryLayout::kInterleaved}});
  };
  using Key = const std::string&;
  const std::vector<std::pair<std::string_view, std::function<void(Key, Key)>>> keys{
      {"base", [&](Key key, Key value) { o.base = number(key, value); }},
      {"dim", [&](Key key, Key value) { o.rotary_dim = whole(key, value); }},
      {"layout", [&](Key, Key value) { o.layout = layout(value); }},
      {"offset", [&](Key key, Key value) { choice.positions.offset = whole(key, value); }},
      {"scaling", [&](Key, Key value) { o.scaling = scaling(value); }},
      {"factor", [&](Key key, Key value) { o.factor = number(key, value); }},
      {"context", [&](Key key, Key value) { o.original_context = whole(key, value); }},
      {"beta-fast", [&](Key key, Key value) { o.beta_fast = number(key, value); }},
      {"beta-slow", [&](Key key, Key value) { o.beta_slow = number(key, value); }},
      {"attention-factor", [&](Key key, Key value) { o.attention_factor = number(key, value); }},
      {"low", [&](Key key, Key value) { o.low_frequency = number(key, value); }},
      {"high", [&](Key key, Key value) { o.high_frequency = number(key, value); }}};
  std::map<std::string, std::string> given;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at), key = part.substr(0, part.find('='));
    if (key.size() == part.size())
      throw UsageError("--rope takes KEY=VALUE pairs separated by commas: got " + escaped(part));
    std::string names;
    bool known = false;
    for (const auto& [name, set] : keys) {
      names.append(names.empty() ? "" : ", ").append(name);
      if (name != key) continue;
      known = true;
      const std::string value = part.substr(key.size() + 1);
      set(key, value);
      if (!given.emplace(key, value).second) throw UsageError("--rope takes each key once: got a second " + key);
    }
    if (!known) throw UsageError("--rope knows " + names + ": got " + escaped(key));
    at = end + 1;
  }
  given.emplace("scaling", "none");
  for (const auto& [key, scalings] :
      {std::pair("factor", "linear, ntk, yarn or llama3"), {"context", "yarn or llama3"}, {"beta-fast", "yarn"},
          {"beta-slow", "yarn"}, {"attention-factor", "yarn"}, {"low", "llama3"}, {"high", "llama3"}}) {
    if (given.contains(key) && std::string_view(scalings).find(given["scaling"]) == std::string_view::npos)
      throw UsageError(std::string("--rope ") + key + " is for scaling=" + scalings +
                       ": got scaling=" + given["scaling"] + ": name one, or leave " + key + " out");
  }
  if ((o.scaling == RotaryScaling::kYarn || o.scaling == RotaryScaling::kLlama3) && o.original_context < 1)
    throw UsageError("--rope scaling=" + given["scaling"] + " needs context=N, the length in training: got " +
                     std::to_string(o.original_context));
  return choice;
}

}  // namespace qkv::cli

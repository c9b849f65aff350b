#include "forms/forms.h"

#include <chrono>
#include <cmath>
#include <functional>

#include "core/random.h"
#include "forms/rows.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

/// With larger sizes the textbook's loops take minutes.
constexpr double kMostProducts = 4e9;

void check_sizes(const FormsSizes& sizes) {
  const auto text = [](Index n) { return std::to_string(n); };
  if (sizes.batch < 1 || sizes.length < 1 || sizes.embed_dim < 1 || sizes.num_heads < 1) {
    throw OptionError("[forms] --batch, --length, --embed and --heads must be at least 1: got " + text(sizes.batch) + ", " +
                      text(sizes.length) + ", " + text(sizes.embed_dim) + ", " + text(sizes.num_heads));
  }
  if (sizes.embed_dim % sizes.num_heads != 0) {
    throw OptionError("[forms] --heads must divide --embed: got " + text(sizes.num_heads) + " and " + text(sizes.embed_dim));
  }
  const double rows = static_cast<double>(sizes.batch) * static_cast<double>(sizes.length);
  const double embed = static_cast<double>(sizes.embed_dim);
  const double products = rows * embed * (static_cast<double>(sizes.length) + 4 * embed);
  if (products > kMostProducts) {
    throw OptionError(
        "[forms] batch * length * embed * (length + 4 embed) must be at most 4e9, since every form is compared with plain "
        "loops: got batch " +
        text(sizes.batch) + ", length " + text(sizes.length) + ", embed " + text(sizes.embed_dim) +
        " (qkv bench times large sizes)");
  }
}

/// The entries of `all` (names of v4) that a form has.
StateDict parameters_of(const StateDict& all, bool biases, bool output) {
  StateDict some;
  for (const auto& entry : all.entries()) {
    if (!biases && entry.name.ends_with(".bias")) continue;
    if (!output && entry.name.starts_with("output_proj")) continue;
    some.add(entry.name, entry.tensor.clone());
  }
  return some;
}

/// Runs forms and pairs of them, and fills the report.
class Comparison {
 public:
  Comparison(const FormsSizes& sizes, Context& context) : sizes_(sizes), context_(context), x_(draw_input(sizes)) {
    report_.sizes = sizes;
    report_.memory = sizes.memory;
  }

  FormsReport run() && {
    const nn::SelfAttentionV4 v4({.embed_dim = sizes_.embed_dim, .seed = sizes_.seed});
    const StateDict all = v4.state_dict();
    layers(all);
    attention_alone<float, double>(all);
    attention_alone<double, long double>(all);
    other_formulas(all);
    return std::move(report_);
  }

 private:
  static Tensor<float> draw_input(const FormsSizes& sizes) {
    Tensor<float> x({sizes.batch * sizes.length, sizes.embed_dim});
    Random random(sizes.seed, 1);
    for (float& value : x.span()) value = static_cast<float>(random.normal());
    return x;
  }

  View<const float, 3> input() const { return {x_.data(), {sizes_.batch, sizes_.length, sizes_.embed_dim}}; }  // [B, T, E]

  void layers(const StateDict& all) {
    const Index heads = sizes_.num_heads;
    const std::string many = "mha, " + std::to_string(heads) + (heads == 1 ? " head" : " heads");
    const StateDict no_output = parameters_of(all, true, false), no_bias = parameters_of(all, false, true);

    // V1 and V2, V3 and V4: through the conversions that a user calls.
    nn::SelfAttentionV1 v1({.embed_dim = sizes_.embed_dim});
    v1.load_state_dict(no_output);
    nn::SelfAttentionV4 v4({.embed_dim = sizes_.embed_dim});
    v4.load_state_dict(all);
    const Truth<double> plain = truth_of(x_, textbook(no_output, 1, false), sizes_.batch);
    const Tensor<float> of_v1 = layer("v1", "standard", v1, plain);
    const Tensor<float> of_v2 = layer("v2", "standard", nn::to_v2(v1), plain);
    const Tensor<float> of_self = layer("self-attention", "standard", *nn::load_layer("self-attention", no_output), plain);
    equal("v1", of_v1, "v2", of_v2, plain, "v2 without output_proj");
    equal("v1", of_v1, "self-attention", of_self, plain, "d_k = embed");

    const Truth<double> projected = truth_of(x_, textbook(all, 1, false), sizes_.batch);
    const Tensor<float> of_v2_output = layer("v2 + output_proj", "standard", *nn::load_layer("v2", all), projected);
    const Tensor<float> of_v3 = layer("v3", "standard", nn::to_v3(v4), projected);
    const Tensor<float> of_v4 = layer("v4", "standard", v4, projected);
    const Tensor<float> of_one = layer("mha, one head", "multi-head", *nn::load_layer("mha", all, {.num_heads = 1}), projected);
    equal("v3", of_v3, "v4", of_v4, projected, "outside training");
    equal("v2 + output_proj", of_v2_output, "v3", of_v3, projected, "outside training, no mask");
    equal("mha, one head", of_one, "v4", of_v4, projected, "");

    const Truth<double> causal = truth_of(x_, textbook(no_bias, 1, true), sizes_.batch);
    const Tensor<float> of_causal =
        layer("v4 causal, no biases", "causal", *nn::load_layer("v4", no_bias, {.causal = true}), causal);
    const Tensor<float> of_single = layer("single-head", "causal", *nn::load_layer("single-head", no_bias), causal);
    equal("single-head", of_single, "v4 causal, no biases", of_causal, causal, "");

    const auto mha = [&](bool masked) { return nn::load_layer("mha", all, {.num_heads = heads, .causal = masked}); };
    layer(many, "multi-head", *mha(false), truth_of(x_, textbook(all, heads, false), sizes_.batch));
    layer(many + ", causal", "causal", *mha(true), truth_of(x_, textbook(all, heads, true), sizes_.batch));
  }

  /// Adds the row of a layer and returns its output [B, T, E].
  Tensor<float> layer(std::string name, std::string family, const nn::Layer& form, const Truth<double>& truth) {
    const auto& attention = dynamic_cast<const nn::AttentionLayer&>(form);
    const nn::ForwardOptions options{.context = &context_};
    Tensor<float> out({sizes_.batch, sizes_.length, form.output_dim()});
    nn::Saved saved;
    Form row{.name = std::move(name), .family = std::move(family), .type = "f32"};
    measure_row(row, out, truth, nullptr, [&] { form.forward_into(input(), out, options, &saved); });
    row.parameters = form.parameter_count();
    const double rows = static_cast<double>(sizes_.batch * sizes_.length), width = static_cast<double>(sizes_.embed_dim);
    row.projection_flops = 2 * rows * width * width * (attention.has_output_projection() ? 4 : 3);
    Tensor<float> projected(saved.projected.clone());
    projected.reshape({sizes_.batch * sizes_.length, 3 * sizes_.embed_dim});
    cost_of_tiles(row, projected, form.num_heads(), saved.options);
    report_.forms.push_back(std::move(row));
    return out;
  }

  /// Adds linear and sparse attention on the q, k, v of the multi-head layer.
  void other_formulas(const StateDict& all) {
    const TextbookLayer layer = textbook(all, sizes_.num_heads, false);
    const Tensor<float> projected = textbook_linear(x_, layer.in_weight, layer.in_bias, kSame);  // [B*T, 3E]
    const Tensor<double> wide = converted<double>(projected);
    const auto heads = [&](int part) { return part_as_heads(wide, sizes_.batch, sizes_.num_heads, part); };
    const Tensor<double> softmax =
        reference::attention_forward<double>(heads(0), heads(1), heads(2), textbook_options<double>(false)).out;
    const AloneInput input{sizes_, projected, softmax};
    for (Form& form : report_.forms) {
      // These compute softmax attention itself: how far they are from it is their error.
      const bool plain = form.family == "standard" || form.family == "flash";
      if (plain && form.type == "f32" && form.parameters == 0 && form.longest > 0 &&
          form.name.find("causal") == std::string::npos) {
        form.from_softmax = form.error;
      }
    }
    add_linear_forms(report_, input, context_);
    add_sparse_forms(report_, input, context_);
  }

  /// Attention without projections, in T: the textbook's loops against the tiles, with and without the causal mask.
  template <class T, class Wide>
  void attention_alone(const StateDict& all) {
    const std::string type = sizeof(T) == 4 ? "f32" : "f64";
    const TextbookLayer layer = textbook(all, sizes_.num_heads, false);
    const Tensor<T> projected = textbook_linear(converted<T>(x_), layer.in_weight, layer.in_bias, kSame);  // [B*T, 3E]
    const Tensor<Wide> wide = converted<Wide>(projected);
    Tensor<double> positive = converted<double>(projected);
    for (double& value : positive.span()) value = std::abs(value);
    const auto heads = [&](const auto& rows, int part) { return part_as_heads(rows, sizes_.batch, sizes_.num_heads, part); };
    for (const bool causal : {false, true}) {
      const std::string masked = causal ? ", causal" : "";
      auto exact =
          reference::attention_forward<Wide>(heads(wide, 0), heads(wide, 1), heads(wide, 2), textbook_options<Wide>(causal));
      const auto naive_forward = [&] {
        return reference::attention_forward<T>(heads(projected, 0), heads(projected, 1), heads(projected, 2),
                                               textbook_options<T>(causal));
      };
      const Tensor<T> naive = naive_forward().out;
      const Tensor<double> a = attention_magnitude(exact.weights, heads(positive, 0), heads(positive, 1), heads(positive, 2));
      const Truth<Wide> truth(std::move(exact.out), naive, a);

      AttentionOptions options;
      if (causal) options.mask = Mask::causal();
      Tensor<T> tiled(naive.sizes());
      const auto tiled_forward = [&] {
        attention_forward(heads(projected, 0), heads(projected, 1), heads(projected, 2), {.out = tiled}, options, context_);
      };
      tiled_forward();

      Form row{.name = "naive " + type + masked, .family = causal ? "causal" : "standard", .type = type};
      cost_of_tiles(row, projected, sizes_.num_heads, options);
      const double pairs =
          static_cast<double>(sizes_.batch * sizes_.num_heads * sizes_.length) * static_cast<double>(sizes_.length);
      Form tiles = row;
      tiles.name = "tiled " + type + masked;
      tiles.family = "flash";
      row.score_bytes = pairs * sizeof(T);
      const double heads_each = static_cast<double>(sizes_.batch * sizes_.num_heads), tensors = 4 * sizeof(T) * tensor_row();
      row.longest = longest_length(report_.memory, heads_each * sizeof(T), tensors, 0);
      tiles.longest = longest_length(report_.memory, 0, tensors, tiles.score_bytes);
      measure_row(row, naive, truth, nullptr, naive_forward);
      measure_row(tiles, tiled, truth, nullptr, tiled_forward);
      report_.forms.push_back(std::move(row));
      report_.forms.push_back(std::move(tiles));
      equal("naive " + type + masked, naive, "tiled " + type + masked, tiled, truth, "");
    }
  }

  /// Numbers of one token of all sequences.
  double tensor_row() const { return static_cast<double>(sizes_.batch * sizes_.embed_dim); }

  template <class T>
  void cost_of_tiles(Form& row, const Tensor<T>& projected, Index num_heads, const AttentionOptions& options) {
    const auto heads = [&](int part) { return part_as_heads(projected, sizes_.batch, num_heads, part); };
    const AttentionPlan plan = attention_plan(heads(0), heads(1), heads(2), options, context_);
    row.attention_flops = plan.forward_flops;
    const Index workers = std::min<Index>(plan.threads, plan.work_items);
    row.score_bytes = static_cast<double>(plan.forward_scratch_bytes) * static_cast<double>(workers);
  }

  template <class T, class Wide>
  void equal(std::string a, const Tensor<T>& of_a, std::string b, const Tensor<T>& of_b, const Truth<Wide>& truth,
             std::string note) {
    report_.equal.push_back(compare(std::move(a), of_a, std::move(b), of_b, truth, std::move(note)));
  }

  FormsSizes sizes_;
  Context& context_;
  Tensor<float> x_;  // [B*T, E]
  FormsReport report_;
};

}  // namespace

/// Median of at least 3 and at most 25 calls, about 60 ms in all.
double median_seconds(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 3 || (times.size() < 25 && total < 0.06)) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += times.back();
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

double longest_length(double memory, double square, double each, double fixed) {
  const double rest = memory - fixed;
  if (rest <= 0) return 0;
  if (square == 0) return std::floor(rest / each);
  return std::floor((std::sqrt(each * each + 4 * square * rest) - each) / (2 * square));
}

bool FormsReport::holds() const {
  return std::ranges::all_of(forms, [](const Form& form) { return form.error_over_bound <= 1; }) &&
         std::ranges::all_of(equal, [](const EqualForms& pair) { return pair.holds(); });
}

FormsReport run_forms(const FormsSizes& sizes, Context& context) {
  check_sizes(sizes);
  return Comparison(sizes, context).run();
}

}  // namespace qkv::cli

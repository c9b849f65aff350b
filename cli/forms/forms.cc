#include "forms/forms.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <map>

#include "core/random.h"
#include "forms/rows.h"
#include "qkv/attention.h"
#include "qkv/block_map.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

/// With larger sizes the textbook's loops take minutes.
constexpr double kMostProducts = 4e9;

void check_sizes(const FormsSizes& sizes) {
  const auto text = [](Index n) { return std::to_string(n); };
  if (sizes.batch < 1 || sizes.length < 1 || sizes.embed_dim < 1 || sizes.num_heads < 1) {
    throw OptionError("[forms] --batch, --length, --embed and --heads must be at least 1: got " + text(sizes.batch) +
                      ", " + text(sizes.length) + ", " + text(sizes.embed_dim) + ", " + text(sizes.num_heads));
  }
  if (sizes.embed_dim % sizes.num_heads != 0) {
    throw OptionError(
        "[forms] --heads must divide --embed: got " + text(sizes.num_heads) + " and " + text(sizes.embed_dim));
  }
  const double rows = static_cast<double>(sizes.batch) * static_cast<double>(sizes.length);
  const double embed = static_cast<double>(sizes.embed_dim);
  const double products = rows * embed * (static_cast<double>(sizes.length) + 4 * embed);
  if (products > kMostProducts) {
    throw OptionError(
        "[forms] batch * length * embed * (length + 4 embed) must be at most 4e9, since every form is compared with "
        "plain loops: got batch " +
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
    attention_alone(all);
    return std::move(report_);
  }

 private:
  static Tensor<float> draw_input(const FormsSizes& sizes) {
    Tensor<float> x({sizes.batch * sizes.length, sizes.embed_dim});
    Random random(sizes.seed, 1);
    for (float& value : x.span()) value = static_cast<float>(random.normal());
    return x;
  }

  View<const float, 3> input() const {
    return {x_.data(), {sizes_.batch, sizes_.length, sizes_.embed_dim}};
  }  // [B, T, E]

  /// V1 and V2, V3 and V4: through the conversions that a user calls.
  void layers(const StateDict& all) {
    const Index heads = sizes_.num_heads;
    const std::string many = "mha, " + std::to_string(heads) + (heads == 1 ? " head" : " heads");
    const StateDict no_output = parameters_of(all, true, false), no_bias = parameters_of(all, false, true);
    nn::SelfAttentionV1 v1({.embed_dim = sizes_.embed_dim});
    v1.load_state_dict(no_output);
    nn::SelfAttentionV4 v4({.embed_dim = sizes_.embed_dim});
    v4.load_state_dict(all);
    const auto truth = [&](const StateDict& state, Index count, bool causal) {
      return truth_of(x_, textbook(state, count, causal), sizes_.batch);
    };
    const auto load = [](const char* name, const StateDict& state, Index count = 0, bool causal = false) {
      return nn::load_layer(name, state, {.num_heads = count, .causal = causal});
    };
    std::map<std::string, Tensor<float>> outs;
    const auto add = [&](const char* family, const Truth<double>& of,
                         const std::vector<std::pair<std::string, const nn::Layer*>>& forms) {
      for (const auto& [name, form] : forms) outs[name] = layer(name, family, *form, of);
    };
    const auto same = [&](const char* a, const char* b, const Truth<double>& of, const char* note) {
      equal(a, outs.at(a), b, outs.at(b), of, note);
    };
    const Truth<double> plain = truth(no_output, 1, false), projected = truth(all, 1, false),
                        causal = truth(no_bias, 1, true);
    const auto v2 = nn::to_v2(v1);
    const auto self = load("self-attention", no_output), v2_output = load("v2", all), one = load("mha", all, 1);
    const auto v3 = nn::to_v3(v4);
    const auto v4_causal = nn::load_layer("v4", no_bias, {.causal = true}),
               single = nn::load_layer("single-head", no_bias);
    add("standard", plain, {{"v1", &v1}, {"v2", &v2}, {"self-attention", &*self}});
    same("v1", "v2", plain, "v2 without output_proj");
    same("v1", "self-attention", plain, "d_k = embed");
    add("standard", projected, {{"v2 + output_proj", &*v2_output}, {"v3", &v3}, {"v4", &v4}});
    add("multi-head", projected, {{"mha, one head", &*one}});
    same("v3", "v4", projected, "outside training");
    same("v2 + output_proj", "v3", projected, "outside training, no mask");
    same("mha, one head", "v4", projected, "");
    add("causal", causal, {{"v4 causal, no biases", &*v4_causal}, {"single-head", &*single}});
    same("single-head", "v4 causal, no biases", causal, "");
    add("multi-head", truth(all, heads, false), {{many, &*load("mha", all, heads)}});
    add("causal", truth(all, heads, true), {{many + ", causal", &*load("mha", all, heads, true)}});
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
    const double rows = static_cast<double>(sizes_.batch * sizes_.length),
                 width = static_cast<double>(sizes_.embed_dim);
    row.projection_flops = 2 * rows * width * width * (attention.has_output_projection() ? 4 : 3);
    Tensor<float> projected(saved.projected.clone());
    projected.reshape({sizes_.batch * sizes_.length, 3 * sizes_.embed_dim});
    cost_of_tiles(row, projected, form.num_heads(), saved.options);
    report_.forms.push_back(std::move(row));
    return out;
  }

  /// Attention on the q, k, v of the multi-head layer: softmax in both types, linear, sparse.
  void attention_alone(const StateDict& all) {
    const TextbookLayer layer = textbook(all, sizes_.num_heads, false);
    const Tensor<float> projected = textbook_linear(x_, layer.in_weight, layer.in_bias, kSame);  // [B*T, 3E]
    const Tensor<double> wide = textbook_linear(converted<double>(x_), layer.in_weight, layer.in_bias, kSame);
    const Keep everything, before = [](Index, Index, Index i, Index j) { return j <= i; };
    Tensor<double> softmax =
        add<float, double>(projected, {"naive f32", "standard"}, {"tiled f32", "flash"}, {}, everything);
    for (Form& form : report_.forms) {  // how far these are from softmax attention is their error
      if (form.name == "naive f32" || form.name == "tiled f32") form.from_softmax = form.error;
    }
    add<float, double>(
        projected, {"naive f32, causal", "causal"}, {"tiled f32, causal", "flash"}, Mask::causal(), before);
    add<double, long double>(wide, {"naive f64", "standard"}, {"tiled f64", "flash"}, {}, everything);
    add<double, long double>(
        wide, {"naive f64, causal", "causal"}, {"tiled f64, causal", "flash"}, Mask::causal(), before);
    const AloneInput input{sizes_, projected, softmax};
    add_linear_forms(report_, input, context_);
    const Index length = sizes_.length, reach = std::max<Index>(1, length / 16),
                block = std::clamp<Index>(length / 8, 1, 64);
    add<float, double>(
        projected, {}, {"sparse window", "sparse"}, Mask::window(reach, reach),
        [reach](Index, Index, Index i, Index j) { return std::abs(i - j) <= reach; }, &input);
    const auto near = [block](Index, Index, Index i, Index j) {
      return std::abs(i / block - j / block) <= 1 || i < block || j < block;
    };
    const BlockMap map =
        block_map(Mask::mask_mod(near), {.q_len = length, .kv_len = length, .q_block = block, .kv_block = block});
    add<float, double>(projected, {}, {"sparse blocks", "sparse"}, Mask::blocks(map), near, &input);
  }

  struct Name {
    std::string name, family;
  };
  using Keep = reference::Keep;

  /// The textbook's loops (unless without a name) against the tiles, in T. Returns the exact output.
  template <class T, class Wide> Tensor<Wide> add(const Tensor<T>& projected, const Name& loops, const Name& tiles,
      const Mask& mask, const Keep& keep, const AloneInput* unmasked = nullptr) {
    const auto heads = [&](const auto& rows, int part) {
      return part_as_heads(rows, sizes_.batch, sizes_.num_heads, part);
    };
    const auto forward_in = [&]<class N>(const Tensor<N>& rows) {
      reference::Options<N> options;
      options.keep = keep;
      return reference::attention_forward<N>(heads(rows, 0), heads(rows, 1), heads(rows, 2), options);
    };
    Tensor<double> positive = converted<double>(projected);
    for (double& value : positive.span()) value = std::abs(value);
    auto exact = forward_in(converted<Wide>(projected));
    const Tensor<T> naive = forward_in(projected).out;
    const Tensor<double> a =
        attention_magnitude(exact.weights, heads(positive, 0), heads(positive, 1), heads(positive, 2));
    const Truth<Wide> truth(exact.out.clone(), naive, a);
    const AttentionOptions options{.mask = mask};
    Tensor<T> tiled(naive.sizes());
    const auto tiled_forward = [&] {
      attention_forward(
          heads(projected, 0), heads(projected, 1), heads(projected, 2), {.out = tiled}, options, context_);
    };
    tiled_forward();

    Form row{.name = tiles.name, .family = tiles.family, .type = sizeof(T) == 4 ? "f32" : "f64"};
    cost_of_tiles(row, projected, sizes_.num_heads, options);
    const double pairs = static_cast<double>(sizes_.batch * sizes_.num_heads), tensors = 4 * sizeof(T) * tensor_row();
    row.longest = longest_length(report_.memory, 0, tensors, row.score_bytes);
    if (!loops.name.empty()) {
      Form plain = row;
      plain.name = loops.name, plain.family = loops.family;
      plain.score_bytes = pairs * sizeof(T) * static_cast<double>(sizes_.length) * static_cast<double>(sizes_.length);
      plain.longest = longest_length(report_.memory, pairs * sizeof(T), tensors, 0);
      measure_row(plain, naive, truth, nullptr, [&] { forward_in(projected); });
      report_.forms.push_back(std::move(plain));
      equal(loops.name, naive, tiles.name, tiled, truth, "");
    }
    measure_row(row, tiled, truth, unmasked, tiled_forward);
    report_.forms.push_back(std::move(row));
    return std::move(exact.out);
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

  template <class T, class Wide> void equal(std::string a, const Tensor<T>& of_a, std::string b, const Tensor<T>& of_b,
      const Truth<Wide>& truth, std::string note) {
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

// qkv explain: one small example's way through a multi-head layer, the wrong split beside the right one, the NumPy example of
// article 003, and what a fixed weight cannot do. Not: the computation (explain*.cc).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "explain/print.h"
#include "support/command.h"
#include "support/options.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

struct ExplainCommandOptions {
  ComputeOptions compute;
  bool json = false, backward = false;
};

void print_walk(const LayerWalk& walk) {
  const auto four = [](const Tensor<float>& x) { return x.shape(); };
  const Index heads = walk.num_heads;
  print_line(bold("A multi-head layer, step by step: out = softmax(q k^T / sqrt(d)) v, then W_o"));
  print_line(
      wrapped("B = 1 sequence, L = 3 tokens of D = 4 numbers, H = 2 heads of d = D / H = 2. Parameters are whole numbers, so "
              "each step can be done by hand; W_q changes nothing (q = x)."));
  print_step(1, "x            [B, L, D]", walk.x.shape(), "the input, one row a token");
  print(beside({matrix("x", walk.tokens, walk.x, 3), matrix("W_k", {}, View<const float, 2>(walk.w_k), 3),
                matrix("W_v", {}, View<const float, 2>(walk.w_v), 3), matrix("W_o", {}, View<const float, 2>(walk.w_o), 3)}));
  print_step(2, "q, k, v      [B, L, D]", walk.q.shape(), "q = x W_q^T, k = x W_k^T, v = x W_v^T");
  print(
      beside({matrix("q", walk.tokens, walk.q, 3), matrix("k", walk.tokens, walk.k, 3), matrix("v", walk.tokens, walk.v, 3)}));
  const View<const float, 4> q = split_heads(View<const float, 3>(walk.q), heads);  // [1, H, L, d]
  print_step(3, "view         [B, L, H, d]", q.transposed(1, 2).shape(), "the last axis is cut; nothing moves");
  for (Index i = 0; i < q.size(2); ++i) {
    std::string line = fmt::format("  q of {:<5}", walk.tokens[static_cast<std::size_t>(i)]);
    for (Index h = 0; h < heads; ++h) line += fmt::format("  head {}: {:.0f} {:.0f}", h, q(0, h, i, 0), q(0, h, i, 1));
    print_line(line);
  }
  print_step(4, "transpose    [B, H, L, d]", q.shape(), "heads first: each head has every token");
  print_heads(walk.tokens, q, 3);
  print_step(5, "q k^T        [B, H, L, L]", four(walk.products), "row: query; column: key");
  print_heads(walk.tokens, walk.products, 3);
  print_step(6, "scores       [B, H, L, L]", four(walk.scores), "divided by sqrt(d) = 1.41");
  print_heads(walk.tokens, walk.scores, 6);
  print_step(7, "weights      [B, H, L, L]", four(walk.weights), "softmax of each row");
  print_heads(walk.tokens, walk.weights, 6);
  const View<const float, 4> attended = split_heads(View<const float, 3>(walk.merged), heads);
  print_step(8, "weights v    [B, H, L, d]", attended.shape(), "each row a mixture of the rows of v");
  print_heads(walk.tokens, attended, 6);
  print_step(9, "joined       [B, L, D]", walk.merged.shape(), "transposed back: heads side by side");
  print(beside({matrix("joined", walk.tokens, walk.merged, 6), matrix("out = joined W_o^T", walk.tokens, walk.out, 6)}, 6));
  print_line();
  print_claims(walk.claims);
}

/// The rows of one head, each with whose features lie there: "row 1:  I.2=2  I.3=1".
Lines rows_of(const HeadSplit& split, const LayerWalk& walk, Index h) {
  const View<const Index, 4> token = split.token, feature = split.feature;
  const View<const float, 4> q = split.q;
  Lines lines = {fmt::format("head {}", h)};
  for (Index i = 0; i < q.size(2); ++i) {
    std::string line = fmt::format("  row {} ", i);
    for (Index n = 0; n < q.size(3); ++n) {
      const std::string& owner = walk.tokens[static_cast<std::size_t>(token(0, h, i, n))];
      line += fmt::format("{:>9}", fmt::format("{}.{}={:.0f}", owner, feature(0, h, i, n), q(0, h, i, n)));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

void print_split(const HeadSplit& split, const LayerWalk& walk) {
  print(beside({rows_of(split, walk, 0), rows_of(split, walk, 1)}, 6));
  const Lines labels = {"row 0", "row 1", "row 2"};
  print_line(faint("  resulting weights"));
  print_heads(labels, split.weights, 6);
}

void print_splits(const SplitComparison& splits, const LayerWalk& walk) {
  print_line(bold("The wrong split beside the right one"));
  print_line(wrapped("q again, 12 numbers in memory, token after token. blue.2=0 reads: feature 2 of \"blue\", which is 0."));
  print_line();
  print_line(bold("right") + "  view(B, L, H, d), then transpose(1, 2)");
  print_split(splits.right, walk);
  print_line();
  print_line(bold("wrong") + "  view(B, H, L, d) at once");
  print_split(splits.wrong, walk);
  print_line();
  print_claims(splits.claims);
}

void print_numpy(const NumpyExample& example) {
  print_line(bold("Five tokens of eight numbers: the NumPy example of article 003 (docs/articles.md)"));
  print_line();
  Lines plain = {"weights"}, causal = {"causal weights"};
  for (Index i = 0; i < example.weights.size(2); ++i) {
    plain.push_back(row_text(example.weights, i));
    causal.push_back(row_text(example.causal_weights, i));
  }
  print(beside({plain, causal}));
  print_line();
  print_claims(example.claims);
}

void print_words(const WordsExample& example) {
  print_line(bold("Why not a fixed weight for each position?"));
  print_line(wrapped(fmt::format("\"{}\" and \"{}\": in percent, what the fourth position takes of each word.",
                                 fmt::join(example.blue_words, " "), fmt::join(example.red_words, " "))));
  print_line();
  const auto row = [&](const std::string& name, const Tensor<float>& weights) {
    std::string line = fmt::format("{:<22}", name);
    for (Index j = 0; j < weights.size(1); ++j) {
      line += fmt::format("{:>9.0f}", 100 * weights.data()[example.position * weights.size(1) + j]);
    }
    return line;
  };
  print_line(faint(fmt::format("{:<22}{:>9}{:>9}{:>9}{:>9}{:>9}", "", "I", "like", "the", "blue/red", "sky")));
  for (const MixtureOfWords& mixture : example.mixtures) {
    print_line(row(mixture.name + ", blue", mixture.blue));
    print_line(row(mixture.name + ", red", mixture.red));
  }
  print_line();
  print_claims(example.claims);
}

Json to_json(const HeadSplit& split) {
  return {{"token", nested(split.token)},
          {"feature", nested(split.feature)},
          {"q", nested(split.q)},
          {"weights", nested(split.weights)},
          {"out", nested(split.out)}};
}

Json to_json(const LayerWalk& walk) {
  const auto heads = [&](const Tensor<float>& x) { return split_heads(View<const float, 3>(x), walk.num_heads); };
  const auto q = heads(walk.q);
  return {{"tokens", walk.tokens},
          {"shapes",
           {{"x", walk.x.sizes()},
            {"view", q.transposed(1, 2).sizes()},
            {"heads", q.sizes()},
            {"scores", walk.scores.sizes()},
            {"weights", walk.weights.sizes()},
            {"attended", heads(walk.merged).sizes()},
            {"out", walk.out.sizes()}}},
          {"parameters",
           {{"W_q", nested(walk.w_q)}, {"W_k", nested(walk.w_k)}, {"W_v", nested(walk.w_v)}, {"W_o", nested(walk.w_o)}}},
          {"x", nested(walk.x)},
          {"q", nested(walk.q)},
          {"k", nested(walk.k)},
          {"v", nested(walk.v)},
          {"q_heads", nested(q)},
          {"products", nested(walk.products)},
          {"scores", nested(walk.scores)},
          {"weights", nested(walk.weights)},
          {"attended", nested(heads(walk.merged))},
          {"joined", nested(walk.merged)},
          {"out", nested(walk.out)},
          {"claims", to_json(walk.claims)}};
}

Json to_json(const NumpyExample& example) {
  const auto matrix_of = [](const Tensor<double>& x) {
    return nested(View<const double, 2>(x.data(), {x.size(2), x.size(3)}));
  };
  return {{"q", matrix_of(example.q)},
          {"k", matrix_of(example.k)},
          {"v", matrix_of(example.v)},
          {"weights", matrix_of(example.weights)},
          {"causal_weights", matrix_of(example.causal_weights)},
          {"out", matrix_of(example.out)},
          {"causal_out", matrix_of(example.causal_out)},
          {"article", {{"first_row", example.printed_row}, {"second_causal_row", example.printed_causal_row}}},
          {"claims", to_json(example.claims)}};
}

Json to_json(const WordsExample& example) {
  Json mixtures = Json::array();
  for (const MixtureOfWords& mixture : example.mixtures) {
    mixtures.push_back({{"name", mixture.name}, {"blue", nested(mixture.blue)}, {"red", nested(mixture.red)}});
  }
  return {{"blue", example.blue_words},
          {"red", example.red_words},
          {"position", example.position},
          {"mixtures", mixtures},
          {"claims", to_json(example.claims)}};
}

int run_explain(const ExplainCommandOptions& options) {
  Context context(options.compute.context());
  const LayerWalk walk = walk_layer(context);
  if (options.backward) {
    const BackwardWalk back = walk_backward(walk, context);
    const bool holds = all_hold(back.claims);
    if (options.json) {
      print_json({{"layer", to_json(walk)}, {"backward", to_json(back)}, {"holds", holds}});
    } else {
      print_backward(walk, back);
    }
    return holds ? 0 : 1;
  }
  const SplitComparison splits = compare_splits(walk, context);
  const NumpyExample numpy = numpy_example(context);
  const WordsExample words = words_example(context);
  const bool holds = all_hold(walk.claims) && all_hold(splits.claims) && all_hold(numpy.claims) && all_hold(words.claims);
  if (options.json) {
    print_json({{"layer", to_json(walk)},
                {"split",
                 {{"right", to_json(splits.right)},
                  {"wrong", to_json(splits.wrong)},
                  {"moved", splits.moved},
                  {"claims", to_json(splits.claims)}}},
                {"numpy", to_json(numpy)},
                {"words", to_json(words)},
                {"holds", holds}});
    return holds ? 0 : 1;
  }
  const std::string rule = faint(std::string(72, '-'));
  print_words(words);
  print_line("\n" + rule + "\n");
  print_numpy(numpy);
  print_line("\n" + rule + "\n");
  print_walk(walk);
  print_line("\n" + rule + "\n");
  print_splits(splits, walk);
  return holds ? 0 : 1;
}

std::function<int()> declare_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainCommandOptions>();
  add_compute_options(app, options->compute, 1);
  app.add_flag("--backward", options->backward, "The backward pass of the layer by hand, with its lines of NumPy");
  add_json_option(app, options->json);
  return [options] { return run_explain(*options); };
}

const bool explain_added = add_command(
    {"explain", "Small examples with every shape and number", "qkv explain\n  qkv explain --backward", declare_explain});

}  // namespace
}  // namespace qkv::cli

// qkv explain: small examples with all their numbers, as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/escape.h"
#include "core/sentences.h"
#include "explain/explain.h"
#include "support/command.h"
#include "support/options.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

struct ExplainOptions {
  ComputeOptions compute;
  bool json = false, backward = false;
};

constexpr const char* kMixtures[] = {"average", "fixed-weights", "attention"};

/// "[1, 3, 4]"
std::string shape_text(const Array& x) { return fmt::format("[{}]", fmt::join(x.shape, ", ")); }

/// A matrix with a label before each row; whole numbers without decimals, others with two; no "-0".
Lines matrix(const std::string& title, const Lines& labels, const Array& x) {
  const bool whole = std::ranges::all_of(x.data, [](judge::Number n) { return n.value == std::floor(n.value); });
  std::size_t label_width = 0;
  Lines lines = {said(title)}, names;
  for (const std::string& label : labels) {
    names.push_back(said(label));
    label_width = std::max(label_width, columns_of(names.back()));
  }
  for (Index i = 0; i < x.size(-2); ++i) {
    std::string line = fmt::format("  {:<{}} ", names.empty() ? "" : names[static_cast<std::size_t>(i)], label_width);
    for (Index j = 0; j < x.size(-1); ++j) {
      const double rounded = std::round(x[i * x.size(-1) + j].value * 100) / 100;
      line += fmt::format("{:>{}.{}f}", rounded == 0 ? 0 : rounded, whole ? 3 : 6, whole ? 0 : 2);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

/// [n, rows, columns] as n matrices.
std::vector<Lines> matrices(const Array& x, const std::string& title, const Lines& titles, const Lines& labels) {
  std::vector<Lines> all;
  for (Index n = 0; n < x.size(0); ++n)
    all.push_back(matrix(title + titles[static_cast<std::size_t>(n)], labels, slice(x, 0, n, n + 1)));
  return all;
}

}  // namespace

void print_arrays(const Example& example, const std::vector<std::vector<Shown>>& lines) {
  static const Lines heads{"head 0", "head 1"};
  for (const std::vector<Shown>& line : lines) {
    std::vector<Lines> columns;
    for (const Shown& one : line) {
      Array x = example[one.array];
      while (x.rank() > 2 && x.size(0) == 1) x = reshape(x, {x.shape.begin() + 1, x.shape.end()});
      const Lines labels = one.rows == Rows::kPlain ? Lines() : one.rows == Rows::kHeads ? heads : tokens();
      if (x.rank() == 2) {
        columns.push_back(matrix(one.title, labels, x));
      } else if (one.rows == Rows::kHeads) {
        columns = matrices(x, one.title + " ", tokens(), labels);
      } else {
        if (!one.title.empty()) print_line(faint("  " + one.title));
        columns = matrices(x, "", heads, labels);
      }
    }
    print(beside(columns, 6));
  }
}

namespace {

void print_steps(const Example& example) {
  for (int number = 0; const ExampleStep& step : example.steps) {
    const bool numbered = !step.shape_of.empty();
    print_line();
    print_line(numbered
                   ? bold(fmt::format("{}  {:<25} {:<13}", ++number, step.name, shape_text(example[step.shape_of]))) +
                         faint(step.note)
                   : step.name);
    print_arrays(example, step.shown);
    for (const std::string& code : step.code) print_line(faint("  >>> " + code));
  }
  print_line();
  print_claims(example.claims);
}

void print_split(const Example& splits) {
  print_line(bold("The wrong split beside the right one"));
  print_line(
      wrapped("q again, 12 numbers in memory, token after token. blue.2=0 reads: feature 2 of \"blue\", which is 0."));
  const Lines titles{"head 0", "head 1"}, rows{"row 0", "row 1", "row 2"};
  for (const auto& [name, how] :
      {std::pair("right", "  view(B, L, H, d), then transpose(1, 2)"), {"wrong", "  view(B, H, L, d) at once"}}) {
    const auto of = [&](const char* what) -> const Array& { return splits[std::string(name) + "." + what]; };
    const Array &token = of("token"), &feature = of("feature"), &q = of("q"), &weights = of("weights");
    std::vector<Lines> columns;
    for (Index n = 0; n < q.count(); ++n) {
      if (n % (q.count() / 2) == 0) columns.push_back({said(titles[columns.size()])});
      if (n % q.size(3) == 0) columns.back().push_back(said(fmt::format("  row {} ", columns.back().size() - 1)));
      columns.back().back() +=
          fmt::format("{:>9}", fmt::format("{}.{:.0f}={:.0f}", tokens()[static_cast<std::size_t>(token[n].value)],
                                   feature[n].value, q[n].value));
    }
    print_line();
    print_line(bold(name) + said(how));
    print(beside(columns, 6));
    print_line(faint("  resulting weights"));
    print(beside(matrices(reshape(weights, {2, 3, 3}), "", titles, rows), 6));
  }
  print_line();
  print_claims(splits.claims);
}

void print_numpy(const Example& example) {
  print_line(bold("Five tokens of eight numbers: the NumPy example of article 003 (docs/articles.md)"));
  print_line();
  Lines plain = {"weights"}, causal = {"causal weights"};
  for (Index i = 0; i < example["weights"].size(0); ++i) {
    plain.push_back(row_text(example["weights"], i));
    causal.push_back(row_text(example["causal_weights"], i));
  }
  print(beside({plain, causal}));
  print_line();
  print_claims(example.claims);
}

void print_words(const Example& example) {
  print_line(bold("Why not a fixed weight for each position?"));
  print_line(wrapped(
      "\"I like the blue sky\" and \"I like the red sky\": in percent, what the fourth position gets of each word."));
  print_line();
  print_line(faint(fmt::format("{:<22}{:>9}{:>9}{:>9}{:>9}{:>9}", "", "I", "like", "the", "blue/red", "sky")));
  for (const std::string name : kMixtures) {
    for (const std::string colour : {"blue", "red"}) {
      std::string line = fmt::format("{:<22}", name + ", " + colour);
      const Array& weights = example[name + "." + colour];
      for (Index j = 0; j < 5; ++j) line += fmt::format("{:>9.0f}", 100 * weights[Index{3} * 5 + j].value);
      print_line(line);
    }
  }
  print_line();
  print_claims(example.claims);
}

/// Every array by its name, "right.q" as an object in an object; code and claims.
Json to_json(const Example& example) {
  Json document, shapes;
  for (const auto& [name, array] : example.arrays) {
    const std::size_t point = name.find('.');
    Json& in = point == std::string::npos ? document : document[name.substr(0, point)];
    in[name.substr(point == std::string::npos ? 0 : point + 1)] = nested(array);
    if (!example.steps.empty()) shapes[name] = array.shape;
  }
  if (!shapes.is_null()) document["shapes"] = shapes;
  std::string numpy;
  for (const ExampleStep& step : example.steps) {
    for (const std::string& line : step.code) numpy += line + "\n";
  }
  if (!numpy.empty()) document["numpy"] = numpy;
  document["claims"] = to_json(example.claims);
  return document;
}

Json layer_json(const Example& layer) {
  Json document = to_json(layer);
  document["tokens"] = tokens();
  for (const char* name : {"W_q", "W_k", "W_v", "W_o"}) document["parameters"][name] = nested(layer[name]);
  document["shapes"]["heads"] = layer["q_heads"].shape;
  return document;
}

Json words_json(const Example& words) {
  Json mixtures = Json::array();
  for (const std::string name : kMixtures)
    mixtures.push_back(
        {{"name", name}, {"blue", nested(words[name + ".blue"])}, {"red", nested(words[name + ".red"])}});
  return {{"blue", {"I", "like", "the", "blue", "sky"}}, {"red", {"I", "like", "the", "red", "sky"}}, {"position", 3},
      {"mixtures", mixtures}, {"claims", to_json(words.claims)}};
}

int run_explain(const ExplainOptions& options) {
  Context context(options.compute.context());
  const Example layer = walk_layer(context);
  Json document{{"layer", layer_json(layer)}};
  bool holds = all_hold(layer.claims);
  const auto add = [&](const char* name, const Example& example, const Json& json) {
    holds &= all_hold(example.claims);
    document[name] = json;
  };
  const std::string rule = faint(std::string(72, '-'));
  if (options.backward) {
    const Example back = walk_backward(layer, context);
    add("backward", back, to_json(back));
    if (!options.json) {
      print_line(bold("Back through the multi-head layer, step by step"));
      print_line(
          wrapped("The layer of qkv explain: L = 3 tokens, H = 2 heads of d = 2. dY stands for the gradient of a loss "
                  "with respect to Y. Each step undoes one step of the forward pass, last first. After >>> the same in "
                  "NumPy: paste all of these lines in their order."));
      print_steps(back);
    }
  } else {
    const Example splits = compare_splits(layer), numpy = numpy_example(), words = words_example(context);
    Json split = to_json(splits), figures = to_json(numpy);
    split["moved"] = static_cast<Index>(splits["moved"][0].value);
    for (const char* name : {"first_row", "second_causal_row"}) {
      figures["article"][name] = figures[name][0];
      figures.erase(name);
    }
    add("split", splits, split);
    add("numpy", numpy, figures);
    add("words", words, words_json(words));
    if (!options.json) {
      print_words(words);
      print_line("\n" + rule + "\n");
      print_numpy(numpy);
      print_line("\n" + rule + "\n");
      print_line(bold("A multi-head layer, step by step: out = softmax(q k^T / sqrt(d)) v, then W_o"));
      print_line(
          wrapped("B = 1 sequence, L = 3 tokens of D = 4 numbers, H = 2 heads of d = D / H = 2. Parameters are whole "
                  "numbers, so each step can be done by hand; W_q changes nothing (q = x)."));
      print_steps(layer);
      print_line("\n" + rule + "\n");
      print_split(splits);
    }
  }
  document["holds"] = holds;
  if (options.json) print_json(document);
  return holds ? 0 : 1;
}

void declare_explain(Options& add, ExplainOptions& options) {
  add.compute(options.compute, 1);
  add("--backward", &options.backward, "The backward pass of the layer by hand, with its lines of NumPy");
  add.json(options.json);
}

const bool explain_added =
    add_command({"explain", "Small examples with every shape and number", "qkv explain\n  qkv explain --backward"},
        declare_explain, run_explain);

}  // namespace
}  // namespace qkv::cli

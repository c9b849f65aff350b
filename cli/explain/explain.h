// Small examples, computed and checked: a multi-head layer step by step and back again, the wrong split beside the
// right one, the NumPy example of article 003, and why a fixed weight is not attention.
#pragma once

#include <string>
#include <vector>

#include "judge/textbook.h"
#include "qkv/context.h"
#include "support/claim.h"

namespace qkv::cli {

using judge::Array;
using Lines = std::vector<std::string>;

/// The label before the rows of a matrix.
enum class Rows {
  kPlain,
  kTokens,
  kHeads  ///< of an array [L, H, d]: a matrix for each token
};

struct Shown {
  std::string title, array;
  Rows rows = Rows::kTokens;
};

/// One step of an example: its formula, the arrays it makes, the same in NumPy.
struct ExampleStep {
  std::string name, shape_of, note;
  std::vector<std::vector<Shown>> shown{};  ///< lines of arrays side by side
  Lines code{};
};

struct Example {
  judge::Arrays arrays;
  std::vector<ExampleStep> steps;
  std::vector<Claim> claims;

  const Array& operator[](const std::string& name) const { return arrays.find(name)->second; }
};

/// Three tokens: "I", "like", "blue".
const Lines& tokens();

/// Two heads over three tokens, with whole numbers as parameters. W_* [E, E]; x q k v joined out [1, L, E];
/// view [1, L, H, d];
/// *_heads attended [1, H, L, d]; products scores weights [1, H, L, L].
Example walk_layer(Context& context);
/// Back through the same layer: dout [L, E]; dO dV dQ dK [H, L, d]; P dP dS [H, L, L]; delta [H, L, 1]; J [L, L]; dW_*
/// dx.
Example walk_backward(const Example& layer, Context& context);
/// q cut into heads by view and transpose, right.*, and by view alone, wrong.*: token feature q weights [1, H, L, .],
/// out [1, L, E]; moved [1]: how many numbers lie elsewhere.
Example compare_splits(const Example& layer);
/// Article 003's 5 tokens of 8 numbers: q k v out causal_out [5, 8], weights causal_weights [5, 5]; the article's
/// first_row and second_causal_row [5].
Example numpy_example();
/// Weight of word j in what position i gets, in two sentences of five words: average.blue, ... [5, 5].
Example words_example(Context& context);

/// Prints arrays of an example, those of a line side by side.
void print_arrays(const Example& example, const std::vector<std::vector<Shown>>& lines);
/// "[0.22 0.14 0.15 0.22 0.27]": a row of a matrix.
std::string row_text(const Array& matrix, Index row);

}  // namespace qkv::cli

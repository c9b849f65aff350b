// Small examples, computed and checked: a multi-head layer step by step and back again, the NumPy example of article 003, and
// why a fixed weight is not attention. Not: printing (cmd_explain.cc, print.h).
#pragma once

#include <string>
#include <vector>

#include "qkv/context.h"
#include "qkv/state_dict.h"
#include "qkv/tensor.h"
#include "support/claim.h"

namespace qkv::cli {

/// Two heads over three tokens, with whole numbers as parameters, so that every step can be done by hand.
struct LayerWalk {
  std::vector<std::string> tokens;   // L
  Tensor<float> w_q, w_k, w_v, w_o;  // [E, E]
  Tensor<float> x, q, k, v;          // [1, L, E]
  Tensor<float> products;            // [1, H, L, L]: q . k before the scale
  Tensor<float> scores, weights;     // [1, H, L, L]
  Tensor<float> merged, out;         // [1, L, E], before and after W_o
  Index num_heads = 2;
  std::vector<Claim> claims;
};
LayerWalk walk_layer(Context& context);
/// Its matrices under the names of a state dict.
StateDict parameters_of(const LayerWalk& walk);

/// Back through the same layer: the gradient of each of its steps, in f64.
struct BackwardWalk {
  Tensor<double> dout;                          // [L, E], whole numbers
  Tensor<double> d_heads;                       // [H, L, d]: of each head's output
  Tensor<double> weights, dp, ds;               // [H, L, L]: P, and the gradients of P and of the scores
  Tensor<double> delta;                         // [H, L, 1]: rowsum(P * dP)
  Tensor<double> jacobian;                      // [L, L]: d P[0, 0, :] / d S[0, 0, :]
  Tensor<double> dq, dk, dv;                    // [H, L, d]
  Tensor<double> dw_q, dw_k, dw_v, dw_o;        // [E, E]
  Tensor<double> dx;                            // [L, E]
  std::vector<std::vector<std::string>> numpy;  ///< the same as lines of NumPy: the forward pass, then each step
  std::vector<Claim> claims;
};
BackwardWalk walk_backward(const LayerWalk& walk, Context& context);

/// The same q, k, v cut into heads in one of two ways.
struct HeadSplit {
  Tensor<Index> token, feature;  // [1, H, L, d]: whose number lies there
  Tensor<float> q, weights;      // [1, H, L, d], [1, H, L, L]
  Tensor<float> out;             // [1, L, E] after W_o, heads joined the way they were cut
};
struct SplitComparison {
  HeadSplit right;  ///< view as [B, L, H, d], then transpose
  HeadSplit wrong;  ///< view as [B, H, L, d] at once
  Index moved = 0;  ///< numbers of q that lie elsewhere
  std::vector<Claim> claims;
};
SplitComparison compare_splits(const LayerWalk& walk, Context& context);

/// Article 003's 5 tokens of 8 numbers, as its code draws them.
struct NumpyExample {
  Tensor<double> q, k, v;                               // [1, 1, 5, 8]
  Tensor<double> weights, causal_weights;               // [1, 1, 5, 5]
  Tensor<double> out, causal_out;                       // [1, 1, 5, 8]
  std::vector<double> printed_row, printed_causal_row;  ///< first row, second causal row, as the article prints them
  std::vector<Claim> claims;
};
NumpyExample numpy_example(Context& context);

/// "[0.22 0.14 0.15 0.22 0.27]"
std::string row_text(const View<const double, 4>& weights, Index row);

/// How two sentences that differ in one word are mixed, by averaging, by fixed weights, by attention.
struct MixtureOfWords {
  std::string name;
  Tensor<float> blue, red;  // [T, T]: weight of word j in what position i gets, measured for each sentence
};
struct WordsExample {
  std::vector<std::string> blue_words, red_words;
  std::vector<MixtureOfWords> mixtures;
  Index position = 3;  ///< of the word that differs
  std::vector<Claim> claims;
};
WordsExample words_example(Context& context);

}  // namespace qkv::cli

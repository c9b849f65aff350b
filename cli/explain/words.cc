// Five words, twice, with one word changed: how averaging, fixed weights and attention respond.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/random.h"
#include "explain/explain.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

constexpr Index kEmbed = 8;

/// One random vector for each word, the same in both sentences: [1, T, E].
Tensor<float> embedded(const std::vector<std::string>& words, const std::map<std::string, std::vector<float>>& vectors) {
  Tensor<float> x({1, static_cast<Index>(words.size()), kEmbed});
  float* next = x.data();
  for (const std::string& word : words) next = std::ranges::copy(vectors.at(word), next).out;
  return x;
}

/// Weight of word j in what position i gets: d y[i] / d x[j], which is that weight where y is a weighted sum of x.
Tensor<float> mixture_by_gradient(nn::Layer& layer, const Tensor<float>& x, Context& context) {
  const Index length = x.size(1);
  Tensor<float> weights({length, length});
  for (Index i = 0; i < length; ++i) {
    nn::Saved saved;
    layer.forward(x, {.context = &context}, &saved);
    Tensor<float> dy(x.sizes());
    dy.data()[i * x.size(2)] = 1;
    const Tensor<float> dx = layer.backward(dy, saved, context);
    for (Index j = 0; j < length; ++j) weights.data()[i * length + j] = dx.data()[j * x.size(2)];
  }
  return weights;
}

Tensor<float> attention_weights_of(const nn::Layer& layer, const Tensor<float>& x, Context& context) {
  Tensor<float> weights;
  layer.forward(x, {.weights = &weights, .context = &context});
  weights.reshape({x.size(1), x.size(1)});
  return weights;
}

/// q, k and v of unit variance, as the article's scale assumes: N(0, 1/E).
StateDict drawn_projections(Random& random) {
  StateDict state;
  for (const char* name : {"query_proj.weight", "key_proj.weight", "value_proj.weight"}) {
    Tensor<float> weight({kEmbed, kEmbed});
    for (float& value : weight.span()) value = static_cast<float>(random.normal() / std::sqrt(static_cast<double>(kEmbed)));
    state.add(name, any_tensor(weight));
  }
  return state;
}

double largest_difference(const MixtureOfWords& mixture) {
  double largest = 0;
  for (Index n = 0; n < mixture.blue.count(); ++n) {
    largest = std::max(largest, static_cast<double>(std::abs(mixture.blue.data()[n] - mixture.red.data()[n])));
  }
  return largest;
}

}  // namespace

WordsExample words_example(Context& context) {
  WordsExample example;
  example.blue_words = {"I", "like", "the", "blue", "sky"};
  example.red_words = {"I", "like", "the", "red", "sky"};
  Random random(3);
  std::map<std::string, std::vector<float>> vectors;
  for (const char* word : {"I", "like", "the", "blue", "red", "sky"}) {
    std::vector<float>& vector = vectors[word];
    for (Index n = 0; n < kEmbed; ++n) vector.push_back(static_cast<float>(random.normal()));
  }
  const Tensor<float> blue = embedded(example.blue_words, vectors), red = embedded(example.red_words, vectors);

  nn::AveragePooling average;
  example.mixtures.push_back(
      {"average", mixture_by_gradient(average, blue, context), mixture_by_gradient(average, red, context)});

  nn::FixedWeights fixed({.length = 5});
  const std::vector<nn::Parameter> learned = fixed.parameters();
  std::ranges::copy(std::array{1.0F, 2.0F, 1.0F, 2.0F, 4.0F},
                    learned[0].value.begin());  // whatever training would make of them
  example.mixtures.push_back(
      {"fixed-weights", mixture_by_gradient(fixed, blue, context), mixture_by_gradient(fixed, red, context)});

  const auto attention = nn::load_layer("v1", drawn_projections(random));
  example.mixtures.push_back(
      {"attention", attention_weights_of(*attention, blue, context), attention_weights_of(*attention, red, context)});

  const double of_average = largest_difference(example.mixtures[0]), of_fixed = largest_difference(example.mixtures[1]);
  const double of_attention = largest_difference(example.mixtures[2]);
  example.claims = {
      {"Averaging and fixed weights mix both sentences with the very same weights: a fixed weight cannot tell \"blue\" from "
       "\"red\".",
       of_average == 0 && of_fixed == 0,
       fmt::format("weights differ by {:.1g} (average) and {:.1g} (fixed weights)", of_average, of_fixed)},
      {"Attention can: its weights follow from the words themselves.", of_attention > 0.05,
       fmt::format(
           "weights differ by up to {:.0f} points of 100; nothing here is trained, so they differ, but mean nothing yet",
           100 * of_attention)}};
  return example;
}

}  // namespace qkv::cli

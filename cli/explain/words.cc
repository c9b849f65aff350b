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

/// Weight of word j in what position i gets: d y[i] / d x[j], which is that weight where y is a weighted sum of x.
Array mixture_by_gradient(nn::Layer& layer, const Tensor<float>& x, Context& context) {
  const Index length = x.size(1);
  Array weights({length, length});
  for (Index i = 0; i < length; ++i) {
    nn::Saved saved;
    layer.forward(x, {.context = &context}, &saved);
    Tensor<float> dy(x.sizes());
    dy.data()[i * kEmbed] = 1;
    const Tensor<float> dx = layer.backward(dy, saved, context);
    for (Index j = 0; j < length; ++j) weights[i * length + j] = static_cast<double>(dx.data()[j * kEmbed]);
  }
  return weights;
}

Array attention_weights(nn::Layer& layer, const Tensor<float>& x, Context& context) {
  Tensor<float> weights;
  layer.forward(x, {.weights = &weights, .context = &context});
  return reshape(judge::to_array(any_tensor(weights)), {x.size(1), x.size(1)});
}

}  // namespace

Example words_example(Context& context) {
  Random random(3);
  std::map<std::string, std::vector<float>> vectors;  // one for each word, the same in both sentences
  for (const char* word : {"I", "like", "the", "blue", "red", "sky"}) {
    for (Index n = 0; n < kEmbed; ++n) vectors[word].push_back(static_cast<float>(random.normal()));
  }
  StateDict projections;  // q, k and v of unit variance, as the article's scale assumes: N(0, 1/E)
  for (const char* name : {"query_proj.weight", "key_proj.weight", "value_proj.weight"}) {
    Tensor<float> weight({kEmbed, kEmbed});
    for (float& value : weight.span())
      value = static_cast<float>(random.normal() / std::sqrt(static_cast<double>(kEmbed)));
    projections.add(name, any_tensor(weight));
  }
  nn::AveragePooling average;
  nn::FixedWeights fixed({.length = 5});
  std::ranges::copy(std::array{1.0F, 2.0F, 1.0F, 2.0F, 4.0F},
      fixed.parameters()[0].value.begin());  // whatever training makes of them
  const auto attention = nn::load_layer("v1", projections);

  Example example;
  for (const char* colour : {"blue", "red"}) {
    Tensor<float> x({1, 5, kEmbed});
    float* next = x.data();
    for (const char* word : {"I", "like", "the", colour, "sky"}) next = std::ranges::copy(vectors.at(word), next).out;
    const std::string ending = std::string(".") + colour;
    example.arrays["average" + ending] = mixture_by_gradient(average, x, context);
    example.arrays["fixed-weights" + ending] = mixture_by_gradient(fixed, x, context);
    example.arrays["attention" + ending] = attention_weights(*attention, x, context);
  }
  const auto differ = [&](const std::string& name) {
    return largest(example[name + ".blue"] - example[name + ".red"]);
  };
  example.claims = {{"Averaging and fixed weights mix both sentences with the very same weights: a fixed weight cannot "
                     "tell \"blue\" from \"red\".",
                        differ("average") == 0 && differ("fixed-weights") == 0,
                        fmt::format("weights differ by {:.1g} (average) and {:.1g} (fixed weights)", differ("average"),
                            differ("fixed-weights"))},
      {"Attention can: its weights follow from the words themselves.", differ("attention") > 0.05,
          fmt::format("weights differ by up to {:.0f} points of 100; nothing here is trained, so they differ, but mean "
                      "nothing yet",
              100 * differ("attention"))}};
  return example;
}

}  // namespace qkv::cli

// backward: gradients of attention by hand, of the function and of a layer with one head. The layer's arrays start with "layer.".
#include <algorithm>
#include <cmath>
#include <string>

#include "judge/probes.h"
#include "judge/tasks/derivative.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

void given_step(Work& work) {
  for (const char* name : {"q", "k", "v"}) work[name] = work.probe.at(name);
  work["dvalues"] = work.probe.at("dout");
  work["causal"] = Array({1}, work.causal ? 1 : 0);
}

/// Left out where the probe is for the function alone.
void layer_project_step(Work& work) {
  if (!work.probe.has("x")) return;
  const Array& x = work.probe.at("x");
  for (const std::string name : {"q", "k", "v"}) work["layer." + name] = linear(x, work.probe.at("W_" + name));
  work["layer.causal"] = Array({1}, 0);
}

void layer_output(Work& work, const std::string& p) {
  const Array &dout = work.probe.at("dout_layer"), &weight = work.probe.at("W_o");
  work["dW_o"] = weight_gradient(work.at(p + "values"), dout);
  work[p + "dvalues"] = matmul(dout, transpose(weight));
}

void layer_weights(Work& work, const std::string& p) {
  for (const std::string name : {"q", "k", "v"})
    work["dW_" + name] = weight_gradient(work.probe.at("x"), work.at(p + "d" + name));
}

void layer_input(Work& work, const std::string& p) {
  Array dx(work.probe.at("x").shape);
  for (const std::string name : {"q", "k", "v"})
    dx = dx + matmul(work.at(p + "d" + name), transpose(work.probe.at("W_" + name)));
  work["dx"] = std::move(dx);
}

Textbook backward_textbook() {
  const std::string layer = "layer.";
  Textbook out{{"given", given_step}};
  append(out, derivative_forward(kDerivative, ""));
  append(out, derivative_backward(kDerivative, ""));
  append(out, {{"layer project", layer_project_step}});
  append(out, derivative_forward(kLayerDerivative, layer));
  append(out, {{"layer output", prefixed(layer, layer_output)}});
  append(out, derivative_backward(kLayerDerivative, layer));
  append(out, {{"layer weights", prefixed(layer, layer_weights)}, {"layer input", prefixed(layer, layer_input)}});
  return out;
}

std::vector<Probe> backward_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const auto make = [&](std::string_view name, Index batch, Index queries, Index keys, bool causal, double spread = 2) {
    Probe probe = start_probe("backward", name, "forward", s);
    probe.metadata["causal"] = causal ? "1" : "0";
    probe.inputs["q"] = draw.array({batch, s.heads, queries, s.head_dim}, spread);
    probe.inputs["k"] = draw.array({batch, s.heads, keys, s.head_dim});
    probe.inputs["v"] = draw.array({batch, s.heads, keys, s.head_dim});
    probe.inputs["dout"] = draw.array({batch, s.heads, queries, s.head_dim});
    const double unit = 1 / std::sqrt(static_cast<double>(s.embed));
    probe.inputs["x"] = draw.array({batch, queries, s.embed});
    for (const char* weight : {"W_q", "W_k", "W_v", "W_o"}) {
      probe.inputs[weight] = draw.array({s.embed, s.embed}, (weight[2] == 'q' ? spread : 1) * unit);
    }
    probe.inputs["dout_layer"] = draw.array({batch, queries, s.embed});
    return probe;
  };
  const Index length = s.length, more = std::max(s.memory, s.length + 2);
  std::vector<Probe> probes;
  probes.push_back(make("plain", s.batch, length, length, false));
  probes.push_back(make("causal", s.batch, length, length, true));
  probes.push_back(make("more keys than queries", s.batch, length, more, false));
  probes.push_back(make("causal, more keys than queries", s.batch, length, more, true));
  probes.push_back(make("large scores", s.batch, length, length, false, 1000));
  probes.push_back(make("one token", s.batch, 1, 1, false));
  probes.push_back(make("another batch", s.batch + 2, length + 1, length + 1, false));
  return probes;
}

}  // namespace

Task backward_task() {
  return {.name = "backward",
          .title = "gradients by hand",
          .teaches = "The derivative of softmax and of the products around it: what autograd does, in a dozen lines.",
          .article = "none",
          .functions = {"attention_backward", "layer_backward"},
          .classes = {},
          .arguments = {{"q", "B H T d"},
                        {"k", "B H S d"},
                        {"v", "B H S d"},
                        {"dout", "B H T d"},
                        {"x", "B L E", true},
                        {"W_q", "E E", true},
                        {"W_k", "E E", true},
                        {"W_v", "E E", true},
                        {"W_o", "E E", true},
                        {"dout_layer", "B L E", true}},
          .parts = {"backward", "derivative"},
          .sizes = {},
          .textbook = backward_textbook(),
          .answers = {"dq", "dk", "dv", "dx", "dW_q", "dW_k", "dW_v", "dW_o"},
          .probes = backward_probes};
}

}  // namespace qkv::judge

// cache: token by token with a state of keys and values. A round of the textbook is a call.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "judge/probes.h"
#include "judge/tasks/steps.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

/// "3,1,1": how many tokens each call gets.
std::vector<Index> calls_of(const Probe& probe) {
  const std::string text = probe.text("steps");
  const Index length = probe.at("x").size(1);
  std::vector<Index> calls;
  Index total = 0;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const Index tokens = std::strtoll(at, &end, 10);
    if (end == at || tokens < 1 || tokens > length - total) {
      total = -1;
      break;
    }
    calls.push_back(tokens);
    total += tokens;
    at = *end == ',' ? end + 1 : end;
  }
  if (total != length || calls.empty()) {
    throw OptionError("[judge] metadata 'steps' of a cache probe: positive numbers with sum " + std::to_string(length) +
                      " (x has as many tokens), separated by commas: got '" + text + "'");
  }
  return calls;
}

/// The tokens of this call.
void tokens_step(Work& work) {
  const std::vector<Index> calls = calls_of(work.probe);
  work.rounds = static_cast<Index>(calls.size());
  const Index width = work.at("W_q").size(1);
  if (work.heads < 1 || work.kv_heads != work.heads || width % work.heads != 0) {
    throw OptionError("[judge] metadata 'heads' of a cache probe: a divisor of " + std::to_string(width) +
                      ", W_q's width: got " + work.probe.text("heads"));
  }
  Index begin = 0;
  for (Index call = 0; call < work.round; ++call) begin += calls[static_cast<std::size_t>(call)];
  work["x"] = slice(work.at("x"), 1, begin, begin + calls[static_cast<std::size_t>(work.round)]);
  work["memory"] = work.at("x");
}

/// k, v [B, H, all tokens so far, d]; past_k, past_v: what the state will hold.
void append_step(Work& work) {
  for (const char* name : {"k", "v"}) {
    Array& past = work[std::string("past_") + name];
    if (work.round > 0) work[name] = concat({past, work.at(name)}, 2);
    past = work.at(name);
  }
}

void join_step(Work& work) {
  Array& all = work["joined"];
  all = work.round == 0 ? work.at("out") : concat({all, work.at("out")}, 1);
  work["out"] = all;
}

Textbook cache_textbook() {
  return {{"parameters", parameters_step}, {"tokens", tokens_step}, {"project", project_step},
          {"split", split_step},           {"append", append_step}, {"see so far", see_step},
          {"scores", scores_step},         {"scale", scale_step},   {"mask", mask_step},
          {"softmax", softmax_step},       {"empty", empty_step},   {"mix", mix_step},
          {"merge", merge_step},           {"output", output_step}, {"join", join_step}};
}

std::string ones(Index n) {
  std::string text = "1";
  for (Index i = 1; i < n; ++i) text += ",1";
  return text;
}

std::vector<Probe> cache_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const auto make = [&](std::string_view name, Index batch, Index length, const std::string& steps, double spread = 2) {
    Probe probe = start_probe("cache", name, "steps", s);
    probe.metadata["causal"] = "1";
    probe.metadata["kv_heads"] = probe.metadata["heads"];
    probe.metadata["steps"] = steps;
    const double unit = 1 / std::sqrt(static_cast<double>(s.embed));
    const Index width = s.heads * s.head_dim;
    probe.inputs["x"] = draw.array({batch, length, s.embed});
    probe.inputs["W_q"] = draw.array({s.embed, width}, spread * unit);
    for (const char* weight : {"W_k", "W_v"}) probe.inputs[weight] = draw.array({s.embed, width}, unit);
    probe.inputs["W_o"] = draw.array({width, s.embed}, unit);
    return probe;
  };
  const Index length = std::max<Index>(s.length, 5);
  std::vector<Probe> probes;
  probes.push_back(make("plain", s.batch, length, std::to_string(length - 2) + ",1,1"));
  probes.push_back(make("token by token", s.batch, length, ones(length)));
  probes.push_back(make("all at once", s.batch, length, std::to_string(length)));
  probes.push_back(make("several tokens after some", s.batch, length, "2," + std::to_string(length - 2)));
  probes.push_back(make("two calls of two tokens, one of three", 1, 7, "2,2,3"));
  probes.push_back(make("large scores", s.batch, length, "2,1," + std::to_string(length - 3), 1000));
  probes.push_back(make("one token", s.batch, 1, "1"));
  probes.push_back(make("another batch", s.batch + 2, length + 1, "1,3," + ones(length - 3)));
  return probes;
}

}  // namespace

Task cache_task() {
  return {
      .name = "cache",
      .title = "token by token",
      .teaches = "A state of keys and values, so that each new token costs one row: calls one after another equal the whole.",
      .article = "003 (an extension)",
      .functions = {"cached_attention"},
      .classes = {"CachedAttention"},
      .arguments = {{"x", "B L E"}, {"W_q", "E P"}, {"W_k", "E P"}, {"W_v", "E P"}, {"W_o", "P E"}},
      // No "layer": its windows and masks count from the first key of a call.
      .parts = {"cache", "projection", "heads", "scores", "causal", "softmax", "values", "output"},
      .sizes = {},
      .textbook = cache_textbook(),
      .answers = {"out"},
      .probes = cache_probes};
}

}  // namespace qkv::judge

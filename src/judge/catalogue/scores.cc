// Scores and their scale.
#include <cmath>

#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

double width(const Work& work) { return static_cast<double>(work.at("q").size(-1)); }

/// scores * factor(work) instead of the scale.
Edit scaled(std::function<double(const Work&)> factor) {
  return instead("scale",
                 [factor = std::move(factor)](Work& work) { work["scores"] = work.at("scores") * Number(factor(work)); });
}

Entry scale(std::string_view id, std::string_view says, std::vector<std::string_view> parts,
            std::function<double(const Work&)> factor) {
  return Entry(
             id, says,
             "Let q and k have d independent numbers of variance 1. What is the variance of their product, and what brings it "
             "back to 1?",
             "scale", std::move(parts), scaled(std::move(factor)))
      .in("scale");
}

/// From 1/30 to 30 times the right scale, both signs.
std::vector<double> scales(const Probe& probe) {
  std::vector<double> out;
  const double d = probe.has("q") ? static_cast<double>(probe.at("q").size(-1)) : 8;
  for (const double sign : {-1.0, 1.0}) {
    for (int i = -20; i <= 20; ++i) out.push_back(sign * std::exp(sign * 0.17 * i) / std::sqrt(d));
  }
  return out;  // ascending: -large .. -small, small .. large
}

}  // namespace

std::vector<Entry> score_entries() {
  return {
      scale("no-scale", "The scores are not divided by sqrt(d).", {"scores"}, [](const Work&) { return 1.0; }),
      scale("scale-sqrt-embed", "The scores are divided by sqrt(E), the model's width; a head is d wide, so sqrt(d).",
            {"heads", "narrow"},
            [](const Work& work) {
              need(work.has("x"));
              return 1 / std::sqrt(static_cast<double>(work.at("x").size(-1)));
            }),
      scale("scale-1-over-d", "The scores are divided by d, not by sqrt(d).", {"scores"},
            [](const Work& work) { return 1 / width(work); }),
      scale("scale-twice", "The scores are divided by sqrt(d) twice.", {"scores"},
            [](const Work& work) { return 1 / width(work); }),
      scale("scale-multiplied", "The scores are multiplied by sqrt(d); they are divided by it.", {"scores"},
            [](const Work& work) { return std::sqrt(width(work)); }),
      scale("scale-negative", "The scale has the wrong sign: what fits best gets the least weight.", {"scores"},
            [](const Work& work) { return -1 / std::sqrt(width(work)); }),
      scale("scale-sqrt-length", "The scores are divided by the root of the number of keys, not of d.", {"scores"},
            [](const Work& work) { return 1 / std::sqrt(static_cast<double>(work.at("k").size(2))); }),
      scale("scale-sqrt-length", "The scores are divided by the root of the number of queries, not of d.", {"scores"},
            [](const Work& work) { return 1 / std::sqrt(static_cast<double>(work.at("q").size(2))); }),
      scale("scale-sqrt-heads", "The scores are divided by the root of the number of heads, not of d.", {"heads", "function"},
            [](const Work& work) { return 1 / std::sqrt(static_cast<double>(work.heads)); }),
      Entry("scale-other", "The scores are multiplied by {}; the scale is 1/sqrt(d).",
            "Let q and k have d independent numbers of variance 1. What is the variance of their product, and what brings "
            "it back to 1?",
            "scale", {"scores"}, [](double factor) { return Edits{scaled([factor](const Work&) { return factor; })}; })
          .in("scale")
          .fitted_to(scales),
      Entry("scores-transposed", "The scores are transposed: k q^T instead of q k^T, so that rows are keys.",
            "Which axis of the scores belongs to the queries?", "scores", {"scores"},
            after("scores", becomes("scores", transposed_square))),
      Entry("absolute-scores", "The scores lose their sign before the softmax.",
            "What weight should a key get that points away from the query?", "scores", {"scores"},
            after("scale", becomes("scores", [](const Array& a) { return map(a, [](Number s) { return fabs(s); }); }))),
      Entry("squared-scores", "The scores are squared before the softmax.",
            "What weight should a key get that points away from the query?", "scores", {"scores"},
            after("scale", becomes("scores", [](const Array& a) { return a * a; }))),
      Entry("tanh-scores", "The scores go through tanh before the softmax.",
            "How large can a score become, and what does softmax make of that?", "scores", {"scores"},
            after("scale", becomes("scores", [](const Array& a) { return map(a, [](Number s) { return tanh(s); }); }))),
      Entry("keys-normalised", "Queries and keys are divided by their length first: cosines instead of products.",
            "What does a longer key change?", "scores", {"scores"},
            before("scores",
                   [](Work& work) {
                     for (const char* name : {"q", "k"}) {
                       const Array squares = sum(work.at(name) * work.at(name), -1);
                       work[name] = zip(work.at(name), squares, [](Number x, Number s) {
                         return x / Number(std::sqrt(s.value), 0.5 * s.error / std::sqrt(s.value));
                       });
                     }
                   })),
  };
}

}  // namespace qkv::judge

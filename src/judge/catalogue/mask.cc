// Masks, causal masks, what hidden scores become, and what a row gives that sees nothing.
#include <cmath>
#include <limits>
#include <utility>

#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<std::string_view> kHides = {"mask", "causal"};

/// visible(b, h, i, j) from the right one.
Edit seen(std::function<double(const Array& visible, Index b, Index h, Index i, Index j)> rule) {
  return after("see", [rule = std::move(rule)](Work& work) {
    const Array old = work.at("visible");
    Array& now = work["visible"];
    Index at = 0;
    for (Index b = 0; b < old.size(0); ++b) {
      for (Index h = 0; h < old.size(1); ++h) {
        for (Index i = 0; i < old.size(2); ++i) {
          for (Index j = 0; j < old.size(3); ++j) now[at++] = rule(old, b, h, i, j);
        }
      }
    }
  });
}

double at(const Array& a, Index b, Index h, Index i, Index j) {
  return a[((b * a.size(1) + h) * a.size(2) + i) * a.size(3) + j].value;
}

/// The causal rule replaced by another one of (query, key, keys - queries); a mask of the probe still counts.
Edit causal_by(std::function<bool(Index i, Index j, Index shift)> rule) {
  return instead("see", [rule = std::move(rule)](Work& work) {
    const bool causal = std::exchange(work.causal, false);
    see_step(work);
    work.causal = causal;
    Array& visible = work["visible"];
    const Index queries = visible.size(2), keys = visible.size(3);
    for (Index n = 0; n < visible.count(); ++n) {
      if (!rule(n / keys % queries, n % keys, keys - queries)) visible[n] = 0;
    }
  });
}

/// The same where a call asks for a causal mask: linear attention's does not always.
Edit causal_asked_by(const std::function<bool(Index i, Index j, Index shift)>& rule) {
  return instead("see", [step = causal_by(rule).step](Work& work) { work.causal ? step(work) : see_step(work); });
}

Edit filled(double fill) {
  return instead("mask", [fill](Work& work) { fill_hidden(work, fill); });
}
Edit keep_empty() {
  return instead("empty", [](Work&) {});
}
Edits filled_and_kept(double fill) { return {filled(fill), keep_empty()}; }

std::vector<double> windows(const Probe& probe) {
  std::vector<double> out;
  const Index length = probe.has("q") ? probe.at("q").size(2) : probe.at("x").size(1);
  for (Index w = 1; w < std::max<Index>(length, 5); ++w) out.push_back(static_cast<double>(w));
  return out;
}

Entry causal(std::string_view id, std::string_view says, const std::function<bool(Index, Index, Index)>& rule) {
  return Entry(id, says, "Draw the mask for four tokens: which of the sixteen entries are hidden?", "mask", {"causal"},
               causal_asked_by(rule))
      .in("causal");
}

Entry unasked(std::function<bool(Index, Index, Index)> rule) {
  return Entry("causal-unasked", "A causal mask is applied that this task does not ask for.",
               "Change the last token. Does the first output change?", "mask", {"bidirectional"}, causal_by(std::move(rule)))
      .in("causal");
}

/// A convention that whoever calls the code has met already.
Entry said(std::string_view id, std::string_view says, std::string_view part) {
  return Entry(id, says, "", "mask", {part}, Edits{}).given_of("said");
}

Entry masked(std::string_view id, std::string_view says, std::string_view hint, Edits edits) {
  return Entry(id, says, hint, "mask", {"mask"}, std::move(edits)).in("see");
}

}  // namespace

std::vector<Entry> mask_entries() {
  return {
      // A row that sees nothing has no right answer: each of these is in use.
      Entry("empty-row-nan", "A row that sees no key gives NaN (hidden scores are -inf).", "", "mask", kHides,
            filled_and_kept(-kInfinity))
          .convention_of("empty row"),
      Entry("empty-row-mean",
            "A row that sees no key gives the mean of all values (hidden scores are a large negative number).", "", "mask",
            kHides, filled_and_kept(-1e9))
          .convention_of("empty row"),
      Entry("empty-row-unmasked",
            "A row that sees no key is computed as if nothing were hidden (a large negative number is added to hidden scores).",
            "", "mask", kHides,
            Edits{instead("mask",
                          [](Work& work) {
                            const Array nothing = sum(work.at("visible"), -1);
                            const Array scores = work.at("scores");
                            mask_step(work);
                            Array& hidden = work["scores"];
                            const Index keys = scores.size(-1);
                            for (Index n = 0; n < scores.count(); ++n) {
                              if (nothing[n / keys].value == 0) hidden[n] = scores[n];
                            }
                          }),
                  keep_empty()})
          .convention_of("empty row"),
      Entry("causal-top-left",
            "With more keys than queries, query i sees keys 0 to i (top-left); qkv lets the last query see the last key "
            "(bottom-right).",
            "", "mask", {"corner"}, causal_asked_by([](Index i, Index j, Index) { return j <= i; }))
          .convention_of("corner"),

      said("mask-true-hides", "True in the mask means hidden, as its name says; here 1 usually means seen.", "mask"),
      said("mask-added", "The mask is a bias of 0 and -inf that is added to the scores.", "mask"),
      said("weights-first", "The weights are returned first and the output second; most callers expect the output first.",
           "softmax"),

      masked("no-mask", "The mask is never used.", "Hide everything but one key. What should the output be?",
             {instead("see",
                      [](Work& work) {
                        work["visible"] =
                            Array({work.at("q").size(0), work.at("q").size(1), work.at("q").size(2), work.at("k").size(2)}, 1);
                      })}),
      masked("mask-polarity", "The mask is inverted: what may be seen is hidden, and what is hidden is seen.",
             "Does 1 (True) mean see or hide here?",
             {seen([](const Array& v, Index b, Index h, Index i, Index j) { return 1 - at(v, b, h, i, j); })}),
      masked("mask-on-queries", "The mask is applied along the queries: it belongs on the keys (the last axis of the scores).",
             "Which axis of the scores belongs to the keys?",
             {after("see",
                    [](Work& work) {
                      if (!work.probe.has("mask")) return;
                      need(work.at("visible").size(2) == work.at("visible").size(3));
                      work["visible"] = transpose(work.at("visible"));
                    })}),
      masked("mask-first-of-batch", "Every sequence of the batch gets the mask of the first one.",
             "Two sequences of different lengths: is the right one padded?",
             {seen([](const Array& v, Index, Index h, Index i, Index j) { return at(v, 0, h, i, j); })}),
      masked("mask-last-of-batch", "Every sequence of the batch gets the mask of the last one.",
             "Two sequences of different lengths: is the right one padded?",
             {seen([](const Array& v, Index, Index h, Index i, Index j) { return at(v, v.size(0) - 1, h, i, j); })}),
      Entry("mask-first-head-only", "Only the first head is masked.", "Print the weights of the last head at a hidden key.",
            "mask", {"mask", "causal"}, seen([](const Array& v, Index b, Index h, Index i, Index j) {
              need(v.size(1) > 1);
              return h == 0 ? at(v, b, h, i, j) : 1.0;
            }))
          .in("see"),
      masked("mask-first-query-only", "Every query gets the mask of the first query.", "Do two queries see different keys?",
             {seen([](const Array& v, Index b, Index h, Index, Index j) { return at(v, b, h, 0, j); })}),

      causal("causal-off-by-one",
             "The causal mask hides the token itself: query i sees only keys before i. It may see key i too.",
             [](Index i, Index j, Index shift) { return j < i + shift; }),
      causal("causal-sees-next", "The causal mask is one too wide: query i sees key i + 1, the token it should predict.",
             [](Index i, Index j, Index shift) { return j <= i + 1 + shift; }),
      causal("causal-flipped", "The causal mask is flipped: query i sees itself and the future, not the past.",
             [](Index i, Index j, Index shift) { return j >= i + shift; }),
      causal("no-causal", "There is no causal mask: every token sees the future.", [](Index, Index, Index) { return true; }),
      unasked([](Index i, Index j, Index) { return j <= i; }),
      unasked([](Index i, Index j, Index shift) { return j <= i + shift; }),
      Entry("window-of-few", "Each query sees the last {} keys only.", "Is the first token seen by the last one?", "mask",
            {"causal"},
            [](double w) {
              return Edits{causal_asked_by(
                  [w](Index i, Index j, Index shift) { return j <= i + shift && static_cast<double>(i + shift - j) < w; })};
            })
          .in("causal")
          .tried(windows),
      Entry("window-of-few", "Each query sees only keys less than {} positions away.", "Is the first token seen by the last one?",
            "mask", {"bidirectional"},
            [](double w) {
              return Edits{
                  causal_by([w](Index i, Index j, Index shift) { return std::fabs(static_cast<double>(i + shift - j)) < w; })};
            })
          .in("causal")
          .tried(windows),

      Entry("fill-zero", "Hidden scores become 0: softmax still gives them weight. They should become -inf.", "What is exp(0)?",
            "mask", kHides, filled_and_kept(0))
          .in("fill")
          .fixing_empty_rows(),
      Entry("mask-multiplies-scores",
            "The scores are multiplied by the mask: hidden ones become 0, and softmax still gives them weight.",
            "What is exp(0)?", "mask", kHides, filled_and_kept(0))
          .in("fill")
          .fixing_empty_rows(),
      Entry("fill-small",
            "Hidden scores become 1e-9, a small number: softmax still gives them weight. A large negative one is meant "
            "(-1e9, -inf).",
            "What is exp(1e-9)?", "mask", kHides, filled_and_kept(1e-9))
          .in("fill")
          .fixing_empty_rows(),
      Entry("fill-small",
            "Hidden scores become -1e-9, a small number: softmax still gives them weight. A large negative one is meant "
            "(-1e9, -inf).",
            "What is exp(-1e-9)?", "mask", kHides, filled_and_kept(-1e-9))
          .in("fill")
          .fixing_empty_rows(),
      Entry("mask-added-as-is",
            "The mask of 0 and 1 is added to the scores: hidden keys keep their weight, less a factor e. Add 0 and -inf.",
            "By how much does the weight of a hidden key change?", "mask", {"mask"},
            Edits{instead("mask", [](Work& work) { work["scores"] = work.at("scores") + work.at("visible"); }), keep_empty()})
          .in("fill")
          .fixing_empty_rows(),
      Entry("fill-other", "Hidden scores become {}: too close to real scores, so that hidden keys keep some weight.",
            "How small must a score be for its weight to vanish beside any other?", "mask", kHides,
            [](double fill) { return filled_and_kept(fill); })
          .in("fill")
          .fitted_to([](const Probe&) {
            std::vector<double> fills;
            for (const double large : {-5000.0, -2000.0, -1000.0, -500.0, -100.0}) fills.push_back(large);
            for (double f = -60; f <= 20; f += 4) fills.push_back(f);
            return fills;
          })
          .fixing_empty_rows(),
      Entry("mask-after-softmax", "The mask is applied after the softmax: the rows no longer sum to 1.",
            "Add up a row of the weights.", "mask", kHides,
            Edits{instead("mask", [](Work&) {}),
                  after("softmax", [](Work& work) { work["weights"] = work.at("weights") * work.at("visible"); })})
          .in("fill"),
      Entry("mask-after-softmax-renormalised",
            "The mask is applied after the softmax and the rows are divided by what is left: where a hidden score is far "
            "larger, nothing is "
            "left, and 0/0 is NaN.",
            "What if the hidden score is 2,000 larger than every other?", "mask", kHides,
            Edits{instead("mask", [](Work&) {}),
                  after("softmax", [](Work& work) { work["weights"] = over_row_sum(work.at("weights") * work.at("visible")); }),
                  keep_empty()})
          .in("fill"),
  };
}

}  // namespace qkv::judge

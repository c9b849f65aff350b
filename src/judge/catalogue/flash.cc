// Tiled online softmax: the running maximum, the running sum, what is rescaled and divided, which tiles are read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Array quotient(const Array& a, const Array& b) {
  return zip(a, b, [](Number x, Number y) { return x / y; });
}

Edit sum_without_factor() {
  return instead("sum", [](Work& work) { work["sum"] = work.at("sum") + sum(work.at("weights"), -1); });
}
Edit mix_without_factor() {
  return instead("mix tile",
                 [](Work& work) { work["unscaled"] = work.at("unscaled") + matmul(work.at("weights"), work.at("v")); });
}

/// The maximum of each tile alone, under which its exponentials are taken.
Edit own_maximum() {
  return before("maximum", [](Work& work) { work["maximum"] = Array(work.at("maximum").shape, -kInfinity); });
}

Number one_for_zero(Number factor) { return factor.value == 0 ? Number(1) : factor; }

/// What was summed up before is forgotten.
Edit forgotten() {
  return before("maximum", [](Work& work) {
    for (const char* name : {"sum", "unscaled"}) work[name] = Array(work.at(name).shape);
    work["maximum"] = Array(work.at("maximum").shape, -kInfinity);
  });
}

/// Hidden scores as a large negative number: a tile of which a row sees nothing then counts under its own maximum.
Edit finite_fill() {
  return instead("mask", [](Work& work) { fill_hidden(work, -1e30); });
}

/// What sums and outputs of tiles become, each tile's softmax being complete in itself.
Edits tiles_alone(bool averaged) {
  return {own_maximum(), instead("sum", [](Work& work) { work["sum"] = sum(work.at("weights"), -1); }),
          instead("mix tile",
                  [](Work& work) {
                    const Array mixed = matmul(work.at("weights"), work.at("v"));
                    // A tile of which a row sees nothing adds nothing.
                    work["unscaled"] = work.at("unscaled") + zip(mixed, work.at("sum"), [](Number o, Number total) {
                                         return total.value > 0 ? o / total : Number(0);
                                       });
                  }),
          instead("divide", [averaged](Work& work) {
            work["out"] = averaged ? work.at("unscaled") * Number(1 / static_cast<double>(work.rounds)) : work.at("unscaled");
          })};
}

/// visible [B, H, T, keys of the tile] by (query, key in the tile, first key of the tile, keys - queries, keys of the tile).
Edit sees(std::function<bool(Index i, Index j, Index first, Index shift, Index block)> rule) {
  return instead("see tile", [rule = std::move(rule)](Work& work) {
    const Array& q = work.at("q");
    const Index queries = q.size(2), keys = work.at("k").size(2), shift = work.probe.at("k").size(2) - queries;
    const auto first = static_cast<Index>(work.at("first")[0].value);
    Array visible({q.size(0), q.size(1), queries, keys}, 1);
    for (Index n = 0; work.causal && n < visible.count(); ++n) {
      if (!rule(n / keys % queries, n % keys, first, shift, work.probe.integer("block"))) visible[n] = 0;
    }
    work["visible"] = std::move(visible);
  });
}

Entry flash(std::string_view id, std::string_view says, std::string_view hint, Edits edits, std::string_view group = {}) {
  return Entry(id, says, hint, "blocks", {"flash"}, std::move(edits)).in(group);
}

Entry causal(std::string_view id, std::string_view says, std::function<bool(Index, Index, Index, Index, Index)> rule) {
  return Entry(id, says, "Draw the mask of the second tile for six queries and blocks of two keys.", "mask", {"flash"},
               sees(std::move(rule)))
      .in("causal");
}

/// The last block ends with the last key, which the last query sees.
Entry diagonal_missing(Edits more) {
  more.push_back(instead("see tile", [](Work& work) {
    const Array& q = work.at("q");
    const Index queries = q.size(2), keys = work.at("k").size(2), shift = work.probe.at("k").size(2) - queries;
    const Index last = static_cast<Index>(work.at("first")[0].value) + keys - 1;
    Array visible({q.size(0), q.size(1), queries, keys}, 1);
    for (Index n = 0; work.causal && n < visible.count(); ++n) visible[n] = last <= n / keys % queries + shift ? 1 : 0;
    work["visible"] = std::move(visible);
  }));
  Entry entry =
      causal("flash-diagonal-block-missing",
             "The causal mask hides every block that is not wholly in the past: a query's last keys are missing.", {});
  entry.edits = [more = std::move(more)](double) { return more; };
  return entry;
}

constexpr std::string_view kGrown =
    "A later tile holds a larger maximum. What was summed up before it was divided by e to the old one: what now?";
constexpr std::string_view kTiles = "Seven keys in blocks of three: which keys are read, tile by tile?";

}  // namespace

std::vector<Entry> flash_entries() {
  Entry top_left = causal("causal-top-left",
                          "With more keys than queries, query i sees keys 0 to i (top-left); qkv lets the last query see the "
                          "last key (bottom-right).",
                          [](Index i, Index j, Index first, Index, Index) { return first + j <= i; });
  top_left.convention = true;
  top_left.hint = "";
  top_left.group = "corner";
  return {
      std::move(top_left),
      flash("flash-sum-not-rescaled", "The running sum is not rescaled when a tile brings a larger maximum.", kGrown,
            {sum_without_factor()}),
      flash("flash-output-not-rescaled", "The running output is not rescaled when a tile brings a larger maximum.", kGrown,
            {mix_without_factor()}),
      flash("flash-maximum-not-carried",
            "Each tile subtracts its own maximum, and nothing is rescaled: exponentials under different maxima are added up.",
            kGrown, {own_maximum(), sum_without_factor(), mix_without_factor()}, "maximum"),
      flash("flash-maximum-from-zero",
            "The running maximum begins at 0, not at -inf: where every score is far below 0 all exponentials vanish, and 0/0 "
            "is NaN.",
            "What if every score of a row is -2,000?",
            {after("maximum",
                   [](Work& work) { work["largest"] = map(work.at("largest"), [](Number m) { return max(m, Number(0)); }); })},
            "maximum"),
      flash("flash-factor-squared", "What was summed up before is rescaled twice when the maximum grows.", kGrown,
            {after("rescale", [](Work& work) { work["factor"] = work.at("factor") * work.at("factor"); })}),
      flash("flash-new-tile-rescaled", "The new tile is rescaled by the factor that belongs to what was summed up before.",
            kGrown,
            {instead("sum",
                     [](Work& work) {
                       const Array own = sum(work.at("weights"), -1);
                       work["sum"] = work.round == 0 ? own : work.at("sum") + own * work.at("factor");
                     }),
             instead("mix tile",
                     [](Work& work) {
                       const Array own = matmul(work.at("weights"), work.at("v"));
                       work["unscaled"] = work.round == 0 ? own : work.at("unscaled") + own * work.at("factor");
                     })},
            "maximum"),
      flash("flash-new-tile-rescaled", "The new tile is rescaled by the factor that belongs to what was summed up before.",
            kGrown,
            // A factor of 0, that of the first tile, is not used.
            {instead("sum",
                     [](Work& work) {
                       work["sum"] = work.at("sum") + sum(work.at("weights"), -1) * map(work.at("factor"), one_for_zero);
                     }),
             instead("mix tile",
                     [](Work& work) {
                       work["unscaled"] = work.at("unscaled") +
                                          matmul(work.at("weights"), work.at("v")) * map(work.at("factor"), one_for_zero);
                     })},
            "maximum"),
      flash("flash-not-divided", "The output is never divided by the sum of the exponentials.",
            "Let all values be 1. What should the output be?",
            {instead("divide", [](Work& work) { work["out"] = work.at("unscaled"); })}, "divide"),
      flash("flash-divided-per-block",
            "The running output is divided by the running sum after every tile, and once is enough: after the last one.",
            "Let all values be 1, and follow the output from tile to tile.",
            {after("mix tile", [](Work& work) { work["unscaled"] = quotient(work.at("unscaled"), work.at("sum")); }),
             instead("divide", [](Work& work) { work["out"] = work.at("unscaled"); })},
            "divide"),
      flash("flash-divided-twice", "The output is divided by the sum of the exponentials twice.",
            "Let all values be 1. What should the output be?",
            {after("divide", [](Work& work) { work["out"] = quotient(work.at("out"), work.at("sum")); })}, "divide"),
      flash("flash-divided-by-maximum",
            "The output is divided by the maximum of the scores; it is divided by the sum of the exponentials.",
            "Let all values be 1. What should the output be?",
            {instead("divide", [](Work& work) { work["out"] = quotient(work.at("unscaled"), work.at("largest")); })}, "divide"),
      flash("flash-blocks-added", "Each tile gets a softmax of its own, and their outputs are added up.", kGrown,
            tiles_alone(false), "divide"),
      flash("flash-blocks-averaged", "Each tile gets a softmax of its own, and their outputs are averaged.", kGrown,
            tiles_alone(true), "divide"),
      flash("flash-last-block-short", "Keys after the last full block are never read.", kTiles,
            {after("tile",
                   [](Work& work) {
                     const Index keys = work.probe.at("k").size(2), block = work.probe.integer("block");
                     work.rounds = std::max<Index>(1, keys / block);
                     if (keys < block) {
                       for (const char* name : {"k", "v"}) work[name] = slice(work.at(name), 2, 0, 0);
                     }
                   })},
            "tiles"),
      flash("flash-last-block-padded",
            "The last block is filled up with zeros, and these count in the sum: a score of 0 is not a hidden key.", kTiles,
            {after("tile",
                   [](Work& work) {
                     const Index missing = work.probe.integer("block") - work.at("k").size(2);
                     if (missing == 0) return;
                     for (const char* name : {"k", "v"}) {
                       Shape shape = work.at(name).shape;
                       shape[2] = missing;
                       work[name] = concat({work.at(name), Array(shape)}, 2);
                     }
                   })},
            "tiles"),
      flash("flash-first-block-only", "Only the first block of keys is read.", kTiles,
            {after("tile", [](Work& work) { work.rounds = 1; })}, "tiles"),
      flash("flash-last-block-only",
            "Only the last block counts: what was summed up before is multiplied by 0 or written over, as when the running "
            "maximum "
            "is never carried on.",
            kGrown, {forgotten()}, "maximum"),
      flash("flash-last-block-only",
            "Only the last block counts: what was summed up before is multiplied by 0 or written over, as when the running "
            "maximum "
            "is never carried on.",
            kGrown, {finite_fill(), forgotten()}, "maximum"),
      flash("flash-last-block-only",
            "Only the last block counts: what was summed up before is multiplied by 0 or written over, as when the running "
            "maximum "
            "is never carried on.",
            kGrown, {after("rescale", [](Work& work) { work["factor"] = Array(work.at("factor").shape); })}, "maximum"),
      flash("flash-maximum-not-carried",
            "Each tile subtracts its own maximum, and nothing is rescaled: exponentials under different maxima are added up.",
            kGrown, {finite_fill(), own_maximum(), sum_without_factor(), mix_without_factor()}, "maximum"),
      flash("flash-last-block-short", "Keys after the last full block are never read.", kTiles,
            {after("tile",
                   [](Work& work) {
                     work.rounds = std::max<Index>(1, work.probe.at("k").size(2) / work.probe.integer("block"));
                   })},
            "tiles"),
      flash("flash-blocks-overlap", "Neighbouring blocks share a key: it counts twice.", kTiles,
            {after("tile",
                   [](Work& work) {
                     const Index keys = work.probe.at("k").size(2);
                     const auto first = static_cast<Index>(work.at("first")[0].value);
                     const Index end = first + work.at("k").size(2);
                     if (end == keys) return;
                     for (const char* name : {"k", "v"}) work[name] = slice(work.probe.at(name), 2, first, end + 1);
                   })},
            "tiles"),
      flash("flash-blocks-overlap", "Each block begins with the key that ended the block before it: that key counts twice.",
            kTiles,
            {after("tile",
                   [](Work& work) {
                     const auto first = static_cast<Index>(work.at("first")[0].value);
                     if (first == 0) return;
                     const Index end = first + work.at("k").size(2);
                     for (const char* name : {"k", "v"}) work[name] = slice(work.probe.at(name), 2, first - 1, end);
                     work["first"] = Array({1}, static_cast<double>(first - 1));
                   })},
            "tiles"),
      flash("no-max-subtraction", "The maximum is not subtracted before exp: large scores overflow, and inf/inf is NaN.",
            "What is exp(1000)? And exp(1000)/exp(1000)?",
            {instead("rescale", [](Work& work) { work["factor"] = Array(work.at("maximum").shape, 1); }),
             instead("exponentials",
                     [](Work& work) { work["weights"] = map(work.at("scores"), [](Number s) { return exp(s); }); })},
            "maximum"),
      causal("flash-causal-per-block",
             "The causal mask counts keys from the start of each block; it counts them from the first key of all.",
             [](Index i, Index j, Index, Index shift, Index) { return j <= i + shift; }),
      causal("flash-causal-per-block",
             "The causal mask counts keys from the start of each block; it counts them from the first key of all.",
             [](Index i, Index j, Index, Index, Index) { return j <= i; }),
      causal("flash-causal-by-block", "The causal mask hides whole blocks only: inside its last block a query sees the future.",
             [](Index i, Index, Index first, Index shift, Index) { return first <= i + shift; }),
      causal("flash-diagonal-block-missing",
             "The causal mask hides every block that is not wholly in the past: a query's last keys are missing.",
             [](Index i, Index, Index first, Index shift, Index block) { return first + block - 1 <= i + shift; }),
      diagonal_missing({}),
      diagonal_missing({finite_fill()}),
      causal("no-causal", "There is no causal mask: every token sees the future.",
             [](Index, Index, Index, Index, Index) { return true; }),
      causal("causal-off-by-one",
             "The causal mask hides the token itself: query i sees only keys before i. It may see key i too.",
             [](Index i, Index j, Index first, Index shift, Index) { return first + j < i + shift; }),
      causal("causal-sees-next", "The causal mask is one too wide: query i sees key i + 1, the token it should predict.",
             [](Index i, Index j, Index first, Index shift, Index) { return first + j <= i + 1 + shift; }),
      causal("causal-flipped", "The causal mask is flipped: query i sees itself and the future, not the past.",
             [](Index i, Index j, Index first, Index shift, Index) { return first + j >= i + shift; }),
  };
}

}  // namespace qkv::judge

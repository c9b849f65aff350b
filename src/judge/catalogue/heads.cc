// Heads: how features are split into heads, how heads share keys, how they are merged.
#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

/// [B, L, H d] -> [B, H, L, d] by a reshape alone: rows of one token end up in several heads.
Array reshaped(const Array& x, Index heads) { return reshape(x, {x.size(0), heads, x.size(1), x.size(2) / heads}); }
/// Head h takes the features h, h + H, h + 2 H, ...
Array interleaved(const Array& x, Index heads) {
  return permute(reshape(x, {x.size(0), x.size(1), x.size(2) / heads, heads}), {0, 3, 1, 2});
}

template <class Split>
Edit split_by(Split split) {
  return instead("split", [split](Work& work) {
    work["q"] = split(work.at("q"), work.heads);
    work["k"] = split(work.at("k"), work.kv_heads);
    work["v"] = split(work.at("v"), work.kv_heads);
  });
}

Edit merge_by_reshape() {
  return instead("merge", [](Work& work) {
    const Array& values = work.at("values");
    work["merged"] = reshape(values, {values.size(0), values.size(2), values.size(1) * values.size(3)});
  });
}

/// [B, H, L, d] -> [B, L, d H]: d first, then heads.
Edit merge_interleaved() {
  return instead("merge", [](Work& work) {
    const Array values = permute(work.at("values"), {0, 2, 3, 1});
    work["merged"] = reshape(values, {values.size(0), values.size(1), values.size(2) * values.size(3)});
  });
}

/// One head as wide as all.
Edit one_head() {
  return before("split", [](Work& work) { need(work.heads == work.kv_heads), work.heads = work.kv_heads = 1; });
}

Edit grouped_by(std::function<Index(Index head, Index heads, Index kv_heads)> kv_head) {
  return instead("group", [kv_head = std::move(kv_head)](Work& work) {
    std::vector<Index> from(static_cast<std::size_t>(work.heads));
    for (std::size_t h = 0; h < from.size(); ++h) from[h] = kv_head(static_cast<Index>(h), work.heads, work.kv_heads);
    work["k"] = take(work.at("k"), 1, from);
    work["v"] = take(work.at("v"), 1, from);
  });
}

Array mean_of_heads(const Array& x) { return take(mean(x, 1), 1, std::vector<Index>(static_cast<std::size_t>(x.size(1)), 0)); }

}  // namespace

std::vector<Entry> head_entries() {
  return {
      {.id = "merged-by-head",
       .says = "The merged projection holds q, k and v of each head side by side, not all q, then all k, then all v.",
       .hint = "",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(Edits{}),
       .convention = true,
       .given = true,
       .group = "said"},
      {.id = "weights-averaged",
       .says = "The weights that are returned are the mean over the heads.",
       .hint = "",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(Edits{}),
       .convention = true,
       .given = true,
       .group = "said"},
      {.id = "split-without-transpose",
       .says = "The heads are split with view(B, H, L, d) alone: each head gets other tokens' features. view(B, L, H, d), then "
               "transpose(1, 2).",
       .hint = "Where does feature 0 of token 1 lie after the split?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(split_by(reshaped)),
       .group = "split"},
      {.id = "merge-without-transpose",
       .says = "The heads are merged with view(B, L, E) alone: tokens and heads are mixed. transpose(1, 2) comes first.",
       .hint = "Which head does feature 0 of token 1 of the merged array come from?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(merge_by_reshape()),
       .group = "merge"},
      {.id = "split-and-merge-without-transpose",
       .says = "Heads are split and merged by view alone, without transpose: each head attends over pieces of several tokens.",
       .hint = "Where does feature 0 of token 1 lie after the split?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(Edits{split_by(reshaped), merge_by_reshape()}),
       .group = "split"},
      {.id = "heads-interleaved",
       .says = "Head h takes every H-th feature (view(B, L, d, H)); it should take d neighbouring features (view(B, L, H, d)).",
       .hint = "Which features belong to head 0?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(split_by(interleaved)),
       .group = "split"},
      {.id = "heads-interleaved",
       .says = "Head h takes every H-th feature (view(B, L, d, H)); it should take d neighbouring features (view(B, L, H, d)).",
       .hint = "Which features belong to head 0?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(Edits{split_by(interleaved), merge_interleaved()}),
       .group = "split"},
      {.id = "merge-interleaved",
       .says = "The merged features are ordered d first, then heads; each head's d features belong side by side.",
       .hint = "Which features of the merged array belong to head 0?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(merge_interleaved()),
       .group = "merge"},
      {.id = "heads-not-split",
       .says = "The heads are never split: one head as wide as the model attends, scaled by the width of a head.",
       .hint = "How many attention maps do you compute for one sequence?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(Edits{one_head(), after("scale",
                                               [](Work& work) {
                                                 const Index heads = work.probe.integer("heads", 1);
                                                 work["scores"] =
                                                     work.at("scores") * Number(std::sqrt(static_cast<double>(heads)));
                                               })}),
       .group = "split"},
      {.id = "heads-not-split",
       .says = "The heads are never split: one head as wide as the model attends.",
       .hint = "How many attention maps do you compute for one sequence?",
       .term = "heads",
       .parts = {"heads"},
       .edits = always(one_head()),
       .group = "split"},
      {.id = "weights-mean-of-heads",
       .says = "All heads use the mean of the heads' weights; each head has its own.",
       .hint = "Print the weights of two heads: are they equal?",
       .term = "heads",
       .parts = {"heads", "function"},
       .edits = always(before("mix", [](Work& work) { work["weights"] = mean_of_heads(work.at("weights")); }))},
      {.id = "scores-mean-of-heads",
       .says = "All heads use the mean of the heads' scores; each head has its own.",
       .hint = "Print the weights of two heads: are they equal?",
       .term = "heads",
       .parts = {"heads", "function"},
       .edits = always(before("mask", [](Work& work) { work["scores"] = mean_of_heads(work.at("scores")); }))},
      {.id = "heads-averaged",
       .says = "The outputs of the heads are averaged; they belong side by side.",
       .hint = "How wide is what the heads give together?",
       .term = "heads",
       .parts = {"heads", "function"},
       .edits = always(after("mix", [](Work& work) { work["values"] = mean_of_heads(work.at("values")); }))},
      {.id = "heads-reversed",
       .says = "The heads are merged in reverse order.",
       .hint = "Which features of the merged array belong to head 0?",
       .term = "heads",
       .parts = {"heads", "function"},
       .edits = always(after("mix",
                             [](Work& work) {
                               std::vector<Index> back;
                               for (Index h = work.at("values").size(1); h-- > 0;) back.push_back(h);
                               work["values"] = take(work.at("values"), 1, back);
                             }))},
      {.id = "gqa-heads-interleaved",
       .says = "Query head h reads key/value head h mod Hkv; it should read h / (H / Hkv): neighbouring heads share one.",
       .hint = "repeat or repeat_interleave?",
       .term = "heads",
       .parts = {"grouped"},
       .edits = always(grouped_by([](Index h, Index, Index kv_heads) { return h % kv_heads; })),
       .group = "group"},
      {.id = "gqa-first-group-only",
       .says = "Every query head reads key/value head 0; the others are never used.",
       .hint = "Which columns of W_k get a gradient?",
       .term = "heads",
       .parts = {"grouped"},
       .edits = always(grouped_by([](Index, Index, Index) { return Index{0}; })),
       .group = "group"},
      {.id = "gqa-groups-reversed",
       .says = "The groups read the key/value heads in reverse order.",
       .hint = "Which key/value head does query head 0 read?",
       .term = "heads",
       .parts = {"grouped"},
       .edits = always(grouped_by([](Index h, Index heads, Index kv_heads) { return kv_heads - 1 - h / (heads / kv_heads); })),
       .group = "group"},
      {.id = "gqa-mean-of-groups",
       .says = "Every query head reads the mean of the key/value heads.",
       .hint = "What is shared inside a group, and what between groups?",
       .term = "heads",
       .parts = {"grouped"},
       .edits = always(Edits{before("group",
                                    [](Work& work) {
                                      work["k"] = mean_of_heads(work.at("k"));
                                      work["v"] = mean_of_heads(work.at("v"));
                                    })}),
       .group = "group"},
  };
}

}  // namespace qkv::judge

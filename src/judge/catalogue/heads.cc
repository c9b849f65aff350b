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
      Entry("merged-by-head",
            "The merged projection holds q, k and v of each head side by side, not all q, then all k, then all v.", "", "heads",
            {"heads"}, Edits{})
          .given_of("said"),
      Entry("weights-averaged", "The weights that are returned are the mean over the heads.", "", "heads", {"heads"}, Edits{})
          .given_of("said"),
      Entry("split-without-transpose",
            "The heads are split with view(B, H, L, d) alone: each head gets other tokens' features. view(B, L, H, d), then "
            "transpose(1, 2).",
            "Where does feature 0 of token 1 lie after the split?", "heads", {"heads"}, split_by(reshaped))
          .in("split"),
      Entry("merge-without-transpose",
            "The heads are merged with view(B, L, E) alone: tokens and heads are mixed. transpose(1, 2) comes first.",
            "Which head does feature 0 of token 1 of the merged array come from?", "heads", {"heads"}, merge_by_reshape())
          .in("merge"),
      Entry("split-and-merge-without-transpose",
            "Heads are split and merged by view alone, without transpose: each head attends over pieces of several tokens.",
            "Where does feature 0 of token 1 lie after the split?", "heads", {"heads"},
            Edits{split_by(reshaped), merge_by_reshape()})
          .in("split"),
      Entry("heads-interleaved",
            "Head h takes every H-th feature (view(B, L, d, H)); it should take d neighbouring features (view(B, L, H, d)).",
            "Which features belong to head 0?", "heads", {"heads"}, split_by(interleaved))
          .in("split"),
      Entry("heads-interleaved",
            "Head h takes every H-th feature (view(B, L, d, H)); it should take d neighbouring features (view(B, L, H, d)).",
            "Which features belong to head 0?", "heads", {"heads"}, Edits{split_by(interleaved), merge_interleaved()})
          .in("split"),
      Entry("merge-interleaved",
            "The merged features are ordered d first, then heads; each head's d features belong side by side.",
            "Which features of the merged array belong to head 0?", "heads", {"heads"}, merge_interleaved())
          .in("merge"),
      Entry("heads-not-split",
            "The heads are never split: one head as wide as the model attends, scaled by the width of a head.",
            "How many attention maps do you compute for one sequence?", "heads", {"heads"},
            Edits{one_head(), after("scale",
                                    [](Work& work) {
                                      const Index heads = work.probe.integer("heads", 1);
                                      work["scores"] = work.at("scores") * Number(std::sqrt(static_cast<double>(heads)));
                                    })})
          .in("split"),
      Entry("heads-not-split", "The heads are never split: one head as wide as the model attends.",
            "How many attention maps do you compute for one sequence?", "heads", {"heads"}, one_head())
          .in("split"),
      Entry("weights-mean-of-heads", "All heads use the mean of the heads' weights; each head has its own.",
            "Print the weights of two heads: are they equal?", "heads", {"heads", "function"},
            before("mix", becomes("weights", mean_of_heads))),
      Entry("scores-mean-of-heads", "All heads use the mean of the heads' scores; each head has its own.",
            "Print the weights of two heads: are they equal?", "heads", {"heads", "function"},
            before("mask", becomes("scores", mean_of_heads))),
      Entry("heads-averaged", "The outputs of the heads are averaged; they belong side by side.",
            "How wide is what the heads give together?", "heads", {"heads", "function"},
            after("mix", becomes("values", mean_of_heads))),
      Entry("heads-reversed", "The heads are merged in reverse order.", "Which features of the merged array belong to head 0?",
            "heads", {"heads", "function"},
            after("mix",
                  [](Work& work) {
                    std::vector<Index> back;
                    for (Index h = work.at("values").size(1); h-- > 0;) back.push_back(h);
                    work["values"] = take(work.at("values"), 1, back);
                  })),
      Entry("gqa-heads-interleaved",
            "Query head h reads key/value head h mod Hkv; it should read h / (H / Hkv): neighbouring heads share one.",
            "repeat or repeat_interleave?", "heads", {"grouped"},
            grouped_by([](Index h, Index, Index kv_heads) { return h % kv_heads; }))
          .in("group"),
      Entry("gqa-first-group-only", "Every query head reads key/value head 0; the others are never used.",
            "Which columns of W_k get a gradient?", "heads", {"grouped"},
            grouped_by([](Index, Index, Index) { return Index{0}; }))
          .in("group"),
      Entry("gqa-groups-reversed", "The groups read the key/value heads in reverse order.",
            "Which key/value head does query head 0 read?", "heads", {"grouped"},
            grouped_by([](Index h, Index heads, Index kv_heads) { return kv_heads - 1 - h / (heads / kv_heads); }))
          .in("group"),
      Entry("gqa-mean-of-groups", "Every query head reads the mean of the key/value heads.",
            "What is shared inside a group, and what between groups?", "heads", {"grouped"},
            before("group", both(becomes("k", mean_of_heads), becomes("v", mean_of_heads))))
          .in("group"),
  };
}

}  // namespace qkv::judge

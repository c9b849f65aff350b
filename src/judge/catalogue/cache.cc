// A state of keys and values between calls: what is appended, where, and what the mask makes of it.
#include <string>
#include <utility>

#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

/// visible [B, H, T, S] by a rule of (query of this call, key of the state, keys - queries, calls before).
Edit sees(std::function<bool(Index i, Index j, Index past, Index round)> rule) {
  return instead("see so far", [rule = std::move(rule)](Work& work) {
    const Array& q = work.at("q");
    const Index queries = q.size(2), keys = work.at("k").size(2);
    Array visible({q.size(0), q.size(1), queries, keys});
    for (Index n = 0; n < visible.count(); ++n)
      visible[n] = rule(n / keys % queries, n % keys, keys - queries, work.round) ? 1 : 0;
    work["visible"] = std::move(visible);
  });
}

/// k and v of the call and the state after it, from those of the state and of the call. In the first call there is no state.
struct Appended {
  Array seen, kept;
};
Edit appends(std::function<Appended(const Array& past, const Array& now)> rule) {
  return instead("append", [rule = std::move(rule)](Work& work) {
    for (const std::string name : {"k", "v"}) {
      Array& past = work["past_" + name];
      const Appended all = work.round == 0 ? Appended{work.at(name), work.at(name)} : rule(past, work.at(name));
      work[name] = all.seen;
      past = all.kept;
    }
  });
}

Entry cache(std::string_view id, std::string_view says, std::string_view hint, Edits edits) {
  return Entry(id, says, hint, "state", {"cache"}, std::move(edits)).in("cache");
}

Entry causal(std::string_view id, std::string_view says, std::function<bool(Index, Index, Index, Index)> rule) {
  return Entry(id, says, "Three tokens come after two: draw the mask, three rows of five entries.", "mask", {"cache"},
               sees(std::move(rule)))
      .in("causal");
}

}  // namespace

std::vector<Entry> cache_entries() {
  return {
      Entry("inputs-changed", "The call changes its own input in place: whoever uses that array afterwards gets other numbers.",
            "Print q before and after a call.", "state", {"layer", "function", "linear"}, Edits{})
          .shown(Shows::kTwice),
      Entry("state-left-behind", "A second call with the same input gives another output: the first left something behind.",
            "What does forward write to self?", "state", {"layer", "function", "linear"}, Edits{})
          .shown(Shows::kTwice),
      causal("cache-position-not-advanced",
             "Every call counts its tokens from position 0: query i of a call sees keys 0 to i only, as if nothing had come "
             "before.",
             [](Index i, Index j, Index, Index) { return j <= i; }),
      cache("cache-past-not-prepended",
            "A call sees its own tokens only: the keys and values of earlier calls are not put in front.",
            "How many keys does the last token see?", {appends([](const Array&, const Array& now) {
              return Appended{now, now};
            })}),
      cache("cache-keys-values-exchanged",
            "Keys and values are exchanged on the way through the state: old keys come back as values.",
            "In which order does the state hold its two arrays, and in which order are they read?",
            {before("append", [](Work& work) { std::swap(work["past_k"], work["past_v"]); })}),
      cache("cache-appended-in-front",
            "New keys and values are put in front of the old ones: the causal mask then hides the wrong tokens. They belong "
            "behind.",
            "Which key is last, and which query may see it?", {appends([](const Array& past, const Array& now) {
              const Array all = concat({now, past}, 2);
              return Appended{all, all};
            })}),
      cache("cache-overwritten", "New keys and values overwrite the first ones of the state; they belong behind the last one.",
            "At which row of the state is the second call's first key written?",
            {appends([](const Array& past, const Array& now) {
               const Index kept = past.size(2) - now.size(2);
               const Array all = kept > 0 ? concat({now, slice(past, 2, now.size(2), past.size(2))}, 2) : now;
               return Appended{all, all};
             }),
             sees([](Index i, Index j, Index past, Index) { return past > 0 || j <= i; })}),
      cache("cache-overwritten", "New keys and values overwrite the first ones of the state; they belong behind the last one.",
            "At which row of the state is the second call's first key written?",
            {appends([](const Array& past, const Array& now) {
              // The state is as long as it should be: what nobody wrote is 0.
              const Array longer = concat({past, now * Number(0)}, 2),
                          all = concat({now, slice(longer, 2, now.size(2), longer.size(2))}, 2);
              return Appended{all, all};
            })}),
      causal("cache-no-causal-in-prefill", "The first call has no causal mask: its tokens see the future.",
             [](Index i, Index j, Index past, Index round) { return round == 0 || j <= i + past; }),
      causal("cache-no-causal-after-prefill",
             "Calls after the first have no causal mask: where one gets several tokens, they see the future.",
             [](Index i, Index j, Index past, Index round) { return round > 0 || j <= i + past; }),
      causal("cache-past-causal-only", "Tokens of a call do not see one another: each sees the state and itself only.",
             [](Index i, Index j, Index past, Index) { return j < past || j == i + past; }),
      causal("no-causal", "There is no causal mask: every token sees the future.",
             [](Index, Index, Index, Index) { return true; }),
      causal("causal-off-by-one",
             "The causal mask hides the token itself: query i sees only keys before i. It may see key i too.",
             [](Index i, Index j, Index past, Index) { return j < i + past; }),
      causal("causal-sees-next", "The causal mask is one too wide: query i sees key i + 1, the token it should predict.",
             [](Index i, Index j, Index past, Index) { return j <= i + 1 + past; }),
      causal("causal-flipped", "The causal mask is flipped: query i sees itself and the future, not the past.",
             [](Index i, Index j, Index past, Index) { return j >= i + past; }),
      cache("cache-last-token-missing",
            "After the first call the newest keys are not seen: a call reads the state, and appends only then.",
            "Does the last token see itself?",
            {appends([](const Array& past, const Array& now) {
               return Appended{past, concat({past, now}, 2)};
             }),
             sees([](Index i, Index j, Index past, Index round) { return round > 0 || j <= i + past; })}),
      cache("cache-last-token-missing", "The newest key and value are left out of the state: later calls never see them.",
            "How many keys does the state hold after the third call?",
            {after("append",
                   [](Work& work) {
                     for (const char* name : {"past_k", "past_v"}) {
                       const Array& all = work.at(name);
                       work[name] = slice(all, 2, 0, all.size(2) - 1);
                     }
                   })}),
      cache("cache-first-token-missing", "The first key and value of the state are not read.",
            "Does the last token see the first?", {appends([](const Array& past, const Array& now) {
              const Array all = concat({past, now}, 2);
              return Appended{slice(all, 2, 1, all.size(2)), all};
            })}),
      cache("cache-not-grown",
            "The state stays what the first call made of it: later tokens are seen by themselves and then forgotten.",
            "How many keys does the state hold after the third call?", {appends([](const Array& past, const Array& now) {
              return Appended{concat({past, now}, 2), past};
            })}),
      cache("cache-keeps-last-call",
            "The state keeps the keys and values of the last call alone; everything earlier is forgotten.",
            "How many keys does the state hold after the third call?", {appends([](const Array& past, const Array& now) {
              return Appended{concat({past, now}, 2), now};
            })}),
  };
}

}  // namespace qkv::judge

// Rotary positions: which columns are a pair, by which angle it is turned, and what is turned.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "judge/entry_edits.h"
#include "judge/tasks/rotary_steps.h"

namespace qkv::judge {
namespace {

Edit exponents_by(std::function<double(double two_i_over_d)> rule) {
  return instead("angles", [rule = std::move(rule)](Work& work) {
    std::vector<double> exponents = rotary_exponents(work.at("x").size(-1));
    for (double& e : exponents) e = rule(e);
    work["angles"] = rotary_angles(work.at("positions"), work.at("base")[0].value, exponents);
  });
}

/// Turns x, q and k by another rule of (x, columns' angles, interleaved).
Edits turns(const std::function<Array(const Array&, const Array&, bool)>& rule) {
  return {
      instead("turn", [rule](Work& work) { work["turned"] = rule(work.at("x"), work.at("columns"), interleaved_pairs(work)); }),
      instead("turn q k", [rule](Work& work) {
        for (const char* name : {"q", "k"}) work[name] = rule(work.at(name), work.at("columns"), interleaved_pairs(work));
      })};
}

Edit turns_only(std::vector<const char*> names) {
  return instead("turn q k", [names = std::move(names)](Work& work) {
    for (const char* name : names) work[name] = turned(work.at(name), work.at("columns"), interleaved_pairs(work));
  });
}

Edit positions_by(std::function<double(double position, Index place)> rule) {
  return before("angles", [rule = std::move(rule)](Work& work) {
    Array& positions = work["positions"];
    for (Index t = 0; t < positions.count(); ++t) positions[t] = rule(positions[t].value, t);
  });
}

/// x [B, H, T, d], head h turned as position h.
Array turned_by_head(const Work& work, const Array& x) {
  Array heads({x.size(1)});
  for (Index h = 0; h < heads.count(); ++h) heads[h] = static_cast<double>(h);
  const Array angles = rotary_angles(heads, work.at("base")[0].value, rotary_exponents(x.size(-1)));
  const bool interleaved = interleaved_pairs(work);
  return permute(turned(permute(x, {0, 2, 1, 3}), spread_angles(angles, interleaved), interleaved), {0, 2, 1, 3});
}

/// Columns 0, 2, 4 ... first, then 1, 3, 5 ...
Array gathered(const Array& x) {
  std::vector<Index> from;
  for (Index first = 0; first < 2; ++first) {
    for (Index c = first; c < x.size(-1); c += 2) from.push_back(c);
  }
  return take(x, -1, from);
}

/// The stages of rope_attention that repeat those of rope.
std::string_view again(std::string_view stage) {
  return stage == "pairs" ? "pairs q k" : stage == "angles" ? "angles q k" : stage == "spread" ? "spread q k" : stage;
}

/// Edits of rope alone, of rope_attention alone: two functions are written apart, or one calls the other.
Edits of_rope(const Edits& edits) {
  Edits out;
  std::ranges::copy_if(edits, std::back_inserter(out),
                       [](const Edit& edit) { return again(edit.stage) != edit.stage || edit.stage == "turn"; });
  return out;
}
Edits of_attention(const Edits& edits) {
  Edits out;
  for (const Edit& edit : edits) {
    if (edit.stage != "turn") out.push_back({edit.where, again(edit.stage), edit.step});
  }
  return out;
}
Edits of_both(const Edits& edits) {
  Edits out = of_rope(edits);
  const Edits more = of_attention(edits);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

/// The entry for both functions, and for one of them where it has something to edit.
void add(std::vector<Entry>& entries, const Entry& entry) {
  const Edits all = of_both(entry.edits(1));
  for (Edits (*part)(const Edits&) : {of_both, of_rope, of_attention}) {
    const Edits some = part(entry.edits(1));
    if (part != of_both && (entry.convention || some.empty() || some.size() == all.size())) continue;
    // Attention sees differences of positions alone, and turns of the same angle not at all.
    if (part == of_attention && (entry.id == "rope-positions-from-one" || entry.id == "rope-positions-per-head")) continue;
    entries.push_back(entry);
    entries.back().edits = [part, edits = entry.edits](double number) { return part(edits(number)); };
  }
}

Entry rope(std::string_view id, std::string_view says, std::string_view hint, Edits edits, std::string_view group = {}) {
  return Entry(id, says, hint, "positions", {"rope"}, std::move(edits)).in(group);
}

constexpr std::string_view kPair = "Turn the vector 1, 2, 3, ..., d by position 1 and mark which two numbers changed together.";
constexpr std::string_view kAngle = "By which angle does the last pair turn at position 1? And the first?";
constexpr std::string_view kWhat =
    "Add 10 to all positions. Does the output change? Then let all positions be 10: what should be left?";

}  // namespace

std::vector<Entry> rope_entries() {
  std::vector<Entry> entries;
  for (const Entry& entry : std::vector<Entry>{
           Entry("rope-interleaved",
                 "Pairs are columns (2i, 2i + 1), as in the paper and in GPT-J; the default is (i, i + d/2).", "", "positions",
                 {"rope"}, instead("pairs", [](Work&work) { work["interleaved"] = Array({1}, 1); }))
               .convention_of("pairs"),
           Entry(
               "rope-interleaved-to-half",
               "Pairs are read from columns (2i, 2i + 1) and written as two halves: another order of columns, and products of "
               "q and k do not see it.",
               "", "positions", {"rope"},
               Edits{before("turn", [](Work&work) { work["x"] = gathered(work.at("x")); }),
                     before("turn q k",
                            [](Work&work) {
                              for (const char* name : {"q", "k"}) work[name] = gathered(work.at(name));
                            })})
               .convention_of("pairs"),
           rope("rope-positions-from-one", "Positions are counted from 1: every angle is one step too large.",
                "What should happen at position 0?", {positions_by([](double position, Index) { return position + 1; })},
                "positions"),
           rope("rope-positions-not-used", "The given positions are not used: tokens are counted 0, 1, 2, ... instead.",
                "Call it for one token at position 5. Is it turned?",
                {positions_by([](double, Index place) { return static_cast<double>(place); })}, "positions"),
           rope("rope-value-turned", "The values are turned too; only queries and keys are.", kWhat,
                {after("turn q k",
                       [](Work&work) { work["v"] = turned(work.at("v"), work.at("columns"), interleaved_pairs(work)); })}),
           rope("rope-query-only", "Only the queries are turned; keys are too.", kWhat, {turns_only({"q"})}, "what"),
           rope("rope-key-only", "Only the keys are turned; queries are too.", kWhat, {turns_only({"k"})}, "what"),
           rope("rope-not-used", "Neither queries nor keys are turned.", kWhat, {turns_only({})}, "what"),
           rope("rope-turned-twice", "Queries and keys are turned twice: by twice the angle.", kAngle,
                {after("angles", [](Work&work) { work["angles"] = work.at("angles") * Number(2); })}, "angle"),
           Entry("rope-wrong-base", "The angles are those of base {}, whatever base is asked for.", kAngle, "positions",
                 {"rope"},
                 [](double base) { return Edits{before("angles", [base](Work& work) { work["base"] = Array({1}, base); })}; })
               .in("base")
               .fitted_to([](const Probe&) {
                 return std::vector<double>{2,    10,   32,    64,    100,   128, 256,    500,    512, 1000, 1024,
                                            2000, 5000, 10000, 20000, 50000, 1e5, 160000, 500000, 1e6, 5e6,  1e7};
               }),
           rope("rope-exponent-doubled",
                "The exponent is 4i/d for pair i < d/2: an index that already counts in twos is doubled again. It is 2i/d.",
                kAngle, {exponents_by([](double e) { return 2 * e; })}, "angle"),
           rope("rope-exponent-halved", "The exponent is i/d for pair i < d/2, half of what it is: 2i/d.", kAngle,
                {exponents_by([](double e) { return e / 2; })}, "angle"),
           rope("rope-exponent-sign", "The angles grow with the pair (base^(2i/d)); they fall (base^(-2i/d)).", kAngle,
                {exponents_by([](double e) { return -e; })}, "angle"),
           rope("rope-exponents-from-two",
                "The exponents are counted from i = 1: 2(i+1)/d. The first pair turns by the position itself.", kAngle,
                {instead("angles",
                         [](Work&work) {
                           const Index width = work.at("x").size(-1);
                           std::vector<double> exponents = rotary_exponents(width);
                           for (double& e : exponents) e += 2 / static_cast<double>(width);
                           work["angles"] = rotary_angles(work.at("positions"), work.at("base")[0].value, exponents);
                         })},
                "angle"),
           rope("rope-same-angle", "All pairs turn by the same angle, the position itself; each pair has its own frequency.",
                kAngle, {exponents_by([](double) { return 0.0; })}, "angle"),
           rope("rope-angles-reversed", "The frequencies are in reverse order: the last pair turns fastest; the first should.",
                kAngle,
                {after("angles",
                       [](Work&work) {
                         std::vector<Index> back;
                         for (Index i = work.at("angles").size(1); i-- > 0;) back.push_back(i);
                         work["angles"] = take(work.at("angles"), 1, back);
                       })},
                "angle"),
           rope("rope-direction-reversed",
                "Pairs are turned the other way: (x cos + y sin, y cos - x sin). It is (x cos - y sin, y cos + x sin).",
                "Turn (1, 0) by a quarter: is it (0, 1) or (0, -1)?",
                turns([](const Array&x, const Array&angles, bool interleaved) {
                  return turned(x, angles * Number(-1), interleaved);
                }),
                "turn"),
           rope("rope-sign-missing", "The partner comes without its minus sign: (x cos + y sin, y cos + x sin) is no turn.",
                "Is the length of a vector the same after the turn?",
                turns([](const Array&x, const Array&angles, bool interleaved) {
                  const Array swapped = zip(partners(x, interleaved), partners(Array(x.shape, 1), interleaved),
                                            [](Number p, Number s) { return p * s; });
                  return x * map(angles, cosine) + swapped * map(angles, sine);
                }),
                "turn"),
           rope("rope-sine-cosine-exchanged", "Sine and cosine are exchanged.", "What should happen at position 0?",
                turns([](const Array&x, const Array&angles, bool interleaved) {
                  return x * map(angles, sine) + partners(x, interleaved) * map(angles, cosine);
                }),
                "turn"),
           rope("rope-cosine-only", "Columns are multiplied by the cosine alone: the other number of the pair is not added.",
                "Is the length of a vector the same after the turn?",
                turns([](const Array&x, const Array&angles, bool) { return x * map(angles, cosine); }), "turn"),
           rope("rope-added",
                "Sines and cosines are added to queries and keys, as positions are to embeddings; here they turn pairs.",
                "Is the length of a vector the same after the turn?",
                turns([](const Array&x, const Array&angles, bool interleaved) {
                  Array waves = angles;
                  const Index width = x.size(-1);
                  for (Index n = 0; n < waves.count(); ++n) {
                    const Index column = n % width;
                    const bool first = interleaved ? column % 2 == 0 : column < width / 2;
                    waves[n] = first ? sine(angles[n]) : cosine(angles[n]);
                  }
                  return x + waves;
                }),
                "turn"),
           rope("rope-pairs-mixed",
                "Angles and partners belong to different pairs: one of the two counts (i, i + d/2), the other (2i, 2i + 1).",
                kPair,
                {instead("spread",
                         [](Work&work) { work["columns"] = spread_angles(work.at("angles"), !interleaved_pairs(work)); })},
                "mixed"),
           rope("rope-positions-per-head",
                "The angles follow the heads, not the tokens: the wrong axis is taken for the length.",
                "Which axis of [B, H, T, d] are the positions on?",
                turns([](const Array&x, const Array&angles, bool interleaved) {
                  need(x.size(1) <= x.size(2));
                  const Array other = permute(x, {0, 2, 1, 3});
                  return permute(turned(other, slice(angles, 0, 0, x.size(1)), interleaved), {0, 2, 1, 3});
                }),
                "turn"),
           rope("rope-positions-per-head",
                "The angles follow the heads, not the tokens: the wrong axis is taken for the length, and heads are counted 0, "
                "1, 2, "
                "...",
                "Which axis of [B, H, T, d] are the positions on?",
                Edits{instead("turn", [](Work&work) { work["turned"] = turned_by_head(work, work.at("x")); }),
                      instead("turn q k",
                              [](Work&work) {
                                for (const char* name : {"q", "k"}) work[name] = turned_by_head(work, work.at(name));
                              })},
                "turn"),
       }) {
    add(entries, entry);
  }
  return entries;
}

}  // namespace qkv::judge

#include "judge/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <vector>

#include "judge/search/match.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFalseAlarms = 1e-9;

/// A number that the calls gave: a weight, or what dropout made of it.
struct Element {
  Number weight, score;
  double got = 0;
  std::ptrdiff_t twin = -1;  ///< an element before this one that shows the same weight
  bool tells = false;        ///< weights so small that rounding hides a factor are not compared
};

/// The calls' results, as [R, B, H, Tq, n].
struct Shown {
  Index repeats = 0, batch, heads, queries, columns;
  double p, unit;
  std::vector<Element> all;
  bool valid = true;

  Shown(const Work& work, const Array& given, double rounding) : p(work.probe.number("dropout")), unit(rounding) {
    const Array &weights = work.at("weights"), &scores = work.at("scores"), &v = work.at("v");
    batch = weights.size(0), heads = weights.size(1), queries = weights.size(2), columns = v.size(3);
    const Index keys = weights.size(3), rows = batch * heads * queries;
    valid = given.rank() > 0 && given.size(0) > 0 && given.count() == given.size(0) * rows * columns;
    if (!valid) return;
    repeats = given.size(0);
    const Array out =
        given.rank() == 5 ? given : permute(reshape(given, {repeats, batch, queries, heads, columns}), {0, 1, 3, 2, 4});
    std::vector<Index> key_of;  // [B, H, n]
    for (Index head = 0; head < batch * heads; ++head) {
      for (Index c = 0; c < columns; ++c) {
        Index key = -1, ones = 0;
        for (Index j = 0; j < keys; ++j) {
          const double x = v[(head * keys + j) * columns + c].value;
          if (x != 0) key = j, ones += x == 1 ? 1 : 2;
        }
        valid = valid && ones == 1;
        key_of.push_back(key);
      }
    }
    if (!valid) return;
    for (Index n = 0; n < out.count(); ++n) {
      const Index row = n / columns, c = n % columns;
      const auto own = key_of.begin() + row / queries % (batch * heads) * columns,
                 before = std::find(own, own + c, own[c]);
      const Index index = row % rows * keys + own[c];
      Element& one = all.emplace_back(Element{weights[index], scores[index], out[n].value});
      one.tells = one.weight.value > 0 && bound_of(one.weight, unit) < 0.01 * one.weight.value;
      if (before != own + c) one.twin = n - c + (before - own);
    }
  }

  /// Whether it holds for every element that tells, of the first `calls`.
  template <class F> bool every(F&& holds, Index calls) const {
    const std::span<const Element> some(
        all.data(), all.size() / static_cast<std::size_t>(repeats) * static_cast<std::size_t>(calls));
    return std::ranges::all_of(some, [&](const Element& one) { return !one.tells || holds(one); });
  }
  template <class F> bool every(F&& holds) const { return every(holds, repeats); }
  const Element& at(Index n) const { return all[static_cast<std::size_t>(n)]; }
};

/// Every number is 0 or the weight times `factor`.
bool zero_or(const Shown& s, Number factor) {
  return s.every([&](const Element& one) { return one.got == 0 || agrees(one.weight * factor, one.got, s.unit); });
}

/// By what the largest number that was kept is multiplied.
Number shown_factor(const Shown& s) {
  const Element* largest = nullptr;
  for (const Element& one : s.all) {
    if (one.tells && one.got > 0 && (largest == nullptr || one.weight.value > largest->weight.value)) largest = &one;
  }
  return largest == nullptr ? Number() : Number(largest->got, largest->got) / largest->weight;
}

/// Whether an element is zero wherever the one `apart` rows before is: the same draw in both. `together`: how many rows
/// of this kind belong together.
bool same_zeros(const Shown& s, Index apart, Index together) {
  bool compared = false;
  for (Index n = apart * s.columns; n < std::ssize(s.all); ++n) {
    const Element &one = s.at(n), &other = s.at(n - apart * s.columns);
    if (n / s.columns / apart % together == 0 || !one.tells || !other.tells) continue;
    compared = true;
    if ((one.got == 0) != (other.got == 0)) return false;
  }
  return compared;
}

/// Weights that are zero; each counts once, however many columns show it.
struct Zeros {
  Index count = 0, of = 0;
  Index both = 0, pairs = 0;  ///< shown twice: zero in both columns
  bool copies_agree = true;

  explicit Zeros(const Shown& s) {
    for (const Element& one : s.all) {
      if (!one.tells) continue;
      const bool zero = one.got == 0;
      if (one.twin < 0) {
        ++of, count += zero;
      } else {
        const bool other = s.at(one.twin).got == 0;
        ++pairs, both += zero && other;
        copies_agree &= zero == other;
      }
    }
  }
  static double share(Index some, Index all) {
    return all > 0 ? static_cast<double>(some) / static_cast<double>(all) : 0;
  }
  double share() const { return share(count, of); }
  double bound() const { return std::sqrt(std::log(2 / kFalseAlarms) / (2 * static_cast<double>(of))); }
};

/// Scores dropped before the softmax: they became `fill`, the others were multiplied by `factor`. Within a row, numbers
/// are then e^score up to the row's sum, which is not known: it is taken from the first number, as dropped or as kept.
bool dropped_scores(const Shown& s, double fill, double factor) {
  for (Index begin = 0; begin < std::ssize(s.all); begin += s.columns) {
    const auto explained = [&](bool first_dropped) {
      double first = -kInfinity, first_got = 0, error = 0;
      for (Index n = begin; n < begin + s.columns; ++n) {
        const auto& [w, scaled, got, twin, tells] = s.at(n);
        // NaN: of this row everything was dropped, or a hidden score: -inf times 0.
        if (!tells || std::isnan(got) || (fill == -kInfinity && got == 0)) continue;
        const double score = factor * scaled.value, apart = factor * 2 * (w.error / w.value + error + 8);
        const auto fits = [&, number = got](double option) {
          const double expected = first_got * std::exp(option - first);
          return agrees(Number(expected, expected * apart), number, s.unit);
        };
        if (first == -kInfinity) {
          first = first_dropped ? fill : score;
          first_got = got, error = w.error / w.value;
          if (!(first > -kInfinity)) return false;
        } else if (!fits(score) && !(fill > -kInfinity && fits(fill))) {
          return false;
        }
      }
      return true;
    };
    if (!explained(false) && !explained(true)) return false;
  }
  return true;
}

std::string text(const char* format, double a, double b = 0, double c = 0, double d = 0) {
  char line[200];
  std::snprintf(line, sizeof line, format, a, b, c, d);
  return line;
}

/// Zeros and weights times `factor`: which of both is wrong, if any.
DropoutFinding by_zeros(const Shown& s, double factor) {
  const Zeros zeros(s);
  const std::string measured = text("%.1f %% of %.0f weights are 0 (p = %g), the others are multiplied by %.4g",
      100 * zeros.share(), static_cast<double>(zeros.of), s.p, factor);
  const auto wrong = [&](const char* id) { return DropoutFinding{false, id, measured}; };
  const Index one_call = s.batch * s.heads * s.queries;
  if (zeros.count == 0) return {false, factor == 1 ? "dropout-never" : "", measured};
  if (!zeros.copies_agree) {
    // Two draws: of weights with p, of outputs with the rate that the rest of the factor says.
    const double keep = 1 - s.p, kept = 1 / (factor * keep);
    const bool both =
        kept < 1 && std::fabs(zeros.share() - (1 - keep * kept)) <= zeros.bound() &&
        std::fabs(Zeros::share(zeros.both, zeros.pairs) - (s.p + keep * (1 - kept) * (1 - kept))) <= zeros.bound();
    if (both) return {true, "dropout-on-output-too", measured};
  }
  if (s.queries > 1 && same_zeros(s, 1, s.queries)) return wrong("dropout-on-values");
  if (!zeros.copies_agree) return wrong("dropout-on-output");
  if (s.repeats > 1 && same_zeros(s, one_call, s.repeats)) return wrong("dropout-same-every-call");
  if (s.heads > 1 && same_zeros(s, s.queries, s.heads)) return wrong("dropout-one-mask");
  if (s.batch > 1 && same_zeros(s, s.heads * s.queries, s.batch)) return wrong("dropout-one-mask");
  if (std::fabs(zeros.share() - s.p) > zeros.bound()) {
    return wrong(std::fabs(zeros.share() - (1 - s.p)) <= zeros.bound() ? "dropout-keeps-p" : "dropout-other-rate");
  }
  if (factor == 1 / (1 - s.p)) return {true, "", measured};
  return wrong(factor == 1 ? "dropout-not-rescaled" : "dropout-rescaled-otherwise");
}

DropoutFinding trained(const Shown& s) {
  const double keep = 1 - s.p;
  if (s.p <= 0) {
    const bool same = s.every([&](const Element& one) { return agrees(one.weight, one.got, s.unit); });
    const bool drops = !same && Zeros(s).count > 0;  // without zeros something else changes in training
    return {same, drops ? "dropout-other-rate" : "", same ? "p = 0: nothing is dropped" : "p = 0, and weights change"};
  }
  for (const double factor : {1 / keep, 1.0, 1 / s.p, keep, s.p, 1 / (keep * keep)}) {
    if (zero_or(s, Number(factor, 2 * factor))) return by_zeros(s, factor);
  }
  const Number measured = shown_factor(s);
  if (measured.value > 0 && zero_or(s, measured)) return by_zeros(s, measured.value);
  for (const double fill : {-kInfinity, 0.0}) {
    for (const double factor : {1.0, 1 / keep}) {
      if (!dropped_scores(s, fill, factor)) continue;
      return {false, "dropout-on-scores",
          std::string("weights are a softmax over some of the scores; the others ") +
              (fill == 0 ? "became 0" : "are missing, and the rest was divided by its sum again")};
    }
  }
  return {false, "", "the weights are neither 0 nor the weights times 1/(1 - p)"};
}

/// Whether two calls gave other numbers.
bool changes(const Shown& s) {
  const Index one_call = s.batch * s.heads * s.queries * s.columns;
  for (Index n = one_call; n < std::ssize(s.all); ++n) {
    const double now = s.at(n).got, before = s.at(n - one_call).got;
    if (now != before && !(std::isnan(now) && std::isnan(before))) return true;
  }
  return false;
}

DropoutFinding evaluated(const Shown& s) {
  const auto is = [&](double factor, Index calls) {
    const Number times(factor, factor == 1 ? 0 : 2 * factor);
    return s.every([&](const Element& one) { return agrees(one.weight * times, one.got, s.unit); }, calls);
  };
  if (is(1, s.repeats)) return {true, "", "every call gives the weights themselves"};
  if (s.p > 0 && is(1 - s.p, s.repeats))
    return {false, "dropout-scaled-in-evaluation", text("every call gives the weights times %.4g", 1 - s.p)};
  if (is(1, 1))
    return {false, "state-left-behind", "the first call gives the weights themselves, another one does not"};
  // Zeros alone are no dropout: a mask leaves them too. Dropout is other zeros in each call, or in each row the share
  // p.
  const Zeros zeros(s);
  const std::string as_trained = s.p > 0 && zeros.count > 0 && !changes(s) ? trained(s).id : "?";
  if (changes(s) || as_trained.empty() || as_trained == "dropout-same-every-call") {
    return {false, "dropout-in-evaluation",
        text("%.1f %% of %.0f weights are 0", 100 * zeros.share(), static_cast<double>(zeros.of))};
  }
  return {false, "", "the weights are not those of the formula"};
}

}  // namespace

DropoutFinding judge_dropout(const Work& work, const Array& out, double unit) {
  const Shown shown(work, out, unit);
  if (!shown.valid) {
    return {false, "",
        "the output has " + std::to_string(out.count()) +
            " numbers, and not as many as calls, sequences, heads, queries and columns"};
  }
  return work.probe.call("training") ? trained(shown) : evaluated(shown);
}

Array weights_shown_twice(Index batch, Index heads, Index keys) {
  Array v({batch, heads, keys, 2 * keys});
  for (Index n = 0; n < v.count(); ++n) v[n] = n % keys == n / (2 * keys) % keys ? 1 : 0;
  return v;
}

}  // namespace qkv::judge

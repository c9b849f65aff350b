#include "judge/dropout.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "judge/match.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFalseAlarms = 1e-9;

/// What the calls gave, as [R, B, H, Tq, n], and of which key each column is the weight.
struct Shown {
  const Array &weights, &scores;  // [B, H, Tq, Tk]
  Array out;
  Index repeats = 0, batch, heads, queries, keys, columns = 0;
  std::vector<Index> key_of;  // [B, H, n]
  double p, unit;
  bool valid = true;

  Shown(const Work& work, const Array& given, double rounding)
      : weights(work.at("weights")),
        scores(work.at("scores")),
        batch(weights.size(0)),
        heads(weights.size(1)),
        queries(weights.size(2)),
        keys(weights.size(3)),
        p(work.probe.number("dropout")),
        unit(rounding) {
    const Array& v = work.at("v");
    columns = v.size(3);
    if (given.rank() < 1 || given.size(0) < 1 || given.count() != given.size(0) * batch * heads * queries * columns) {
      valid = false;
      return;
    }
    repeats = given.size(0);
    const bool split = given.rank() == 5;
    out = split ? given : permute(reshape(given, {repeats, batch, queries, heads, columns}), {0, 1, 3, 2, 4});
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
  }

  Index rows() const { return repeats * batch * heads * queries; }
  Index head_of(Index row) const { return row / queries % (batch * heads); }
  Index key(Index row, Index column) const { return key_of[static_cast<std::size_t>(head_of(row) * columns + column)]; }
  Index weight_index(Index row, Index column) const {
    return row % (batch * heads * queries) * keys + key(row, column);
  }
  Number weight(Index row, Index column) const { return weights[weight_index(row, column)]; }
  Number score(Index row, Index column) const { return scores[weight_index(row, column)]; }
  double got(Index row, Index column) const { return out[row * columns + column].value; }
  /// Weights so small that rounding hides a factor are not compared.
  bool tells(Index row, Index column) const {
    const Number w = weight(row, column);
    return w.value > 0 && bound_of(w, unit) < 0.01 * w.value;
  }
};

template <class F> bool all_elements(const Shown& s, F&& holds) {
  for (Index row = 0; row < s.rows(); ++row) {
    for (Index c = 0; c < s.columns; ++c) {
      if (s.tells(row, c) && !holds(row, c)) return false;
    }
  }
  return true;
}

/// Every number is 0 or the weight times `factor`.
bool zero_or(const Shown& s, Number factor) {
  return all_elements(s, [&](Index row, Index c) {
    const double got = s.got(row, c);
    return got == 0 || agrees(s.weight(row, c) * factor, got, s.unit);
  });
}
bool zero_or(const Shown& s, double factor) { return zero_or(s, Number(factor, 2 * factor)); }

/// By what the largest number that was kept is multiplied.
Number shown_factor(const Shown& s) {
  Number found;
  double largest = 0;
  for (Index row = 0; row < s.rows(); ++row) {
    for (Index c = 0; c < s.columns; ++c) {
      const Number weight = s.weight(row, c);
      if (!s.tells(row, c) || !(s.got(row, c) > 0) || weight.value <= largest) continue;
      largest = weight.value;
      found = Number(s.got(row, c), s.got(row, c)) / weight;
    }
  }
  return found;
}

/// Whether an element is zero wherever the one `apart` rows further is: the same draw in both. `wraps`: how many rows
/// belong together.
bool same_zeros(const Shown& s, Index apart, Index together) {
  bool compared = false;
  for (Index row = 0; row < s.rows(); ++row) {
    if (row / apart % together == 0) continue;
    for (Index c = 0; c < s.columns; ++c) {
      if (!s.tells(row, c) || !s.tells(row - apart, c)) continue;
      compared = true;
      if ((s.got(row, c) == 0) != (s.got(row - apart, c) == 0)) return false;
    }
  }
  return compared;
}

/// Whether columns that show the same weight are zero together.
bool copies_agree(const Shown& s) {
  for (Index row = 0; row < s.rows(); ++row) {
    for (Index c = 0; c < s.columns; ++c) {
      for (Index d = 0; d < c; ++d) {
        if (s.key(row, c) == s.key(row, d) && s.tells(row, c) && (s.got(row, c) == 0) != (s.got(row, d) == 0))
          return false;
      }
    }
  }
  return true;
}

struct Zeros {
  Index count = 0, of = 0;
  double share() const { return of > 0 ? static_cast<double>(count) / static_cast<double>(of) : 0; }
  double bound() const { return std::sqrt(std::log(2 / kFalseAlarms) / (2 * static_cast<double>(of))); }
};

/// Each weight counts once, however many columns show it.
Zeros zeros_of(const Shown& s) {
  Zeros zeros;
  for (Index row = 0; row < s.rows(); ++row) {
    std::vector<bool> done(static_cast<std::size_t>(s.keys), false);
    for (Index c = 0; c < s.columns; ++c) {
      const auto key = static_cast<std::size_t>(s.key(row, c));
      if (done[key] || !s.tells(row, c)) continue;
      done[key] = true;
      ++zeros.of;
      if (s.got(row, c) == 0) ++zeros.count;
    }
  }
  return zeros;
}

/// The share of weights of which both columns are zero.
double share_of_both(const Shown& s) {
  Index both = 0, of = 0;
  for (Index row = 0; row < s.rows(); ++row) {
    for (Index c = 0; c < s.columns; ++c) {
      for (Index d = 0; d < c; ++d) {
        if (s.key(row, c) != s.key(row, d) || !s.tells(row, c)) continue;
        ++of;
        if (s.got(row, c) == 0 && s.got(row, d) == 0) ++both;
      }
    }
  }
  return of > 0 ? static_cast<double>(both) / static_cast<double>(of) : 0;
}

/// Scores dropped before the softmax: they became `fill`, the others were multiplied by `factor`. Within a row, numbers
/// are then e^score up to the row's sum, which is not known: it is taken from the first number, as dropped or as kept.
bool dropped_scores(const Shown& s, double fill, double factor) {
  for (Index row = 0; row < s.rows(); ++row) {
    bool explained = false;
    for (const bool first_dropped : {false, true}) {
      double first = -kInfinity, first_got = 0, error = 0;
      bool holds = true;
      for (Index c = 0; c < s.columns && holds; ++c) {
        if (!s.tells(row, c)) continue;
        const double got = s.got(row, c), score = factor * s.score(row, c).value;
        if (std::isnan(got)) {  // a row of which everything was dropped
          holds = fill == -kInfinity;
          continue;
        }
        const Number w = s.weight(row, c);
        if (fill == -kInfinity && got == 0) continue;
        if (first == -kInfinity) {
          first = first_dropped ? fill : score;
          first_got = got;
          error = w.error / w.value;
          holds = first > -kInfinity;
          continue;
        }
        const auto fits = [&](double option) {
          const double expected = first_got * std::exp(option - first);
          return agrees(Number(expected, expected * factor * 2 * (w.error / w.value + error + 8)), got, s.unit);
        };
        holds = fits(score) || (fill > -kInfinity && fits(fill));
      }
      explained = explained || holds;
    }
    if (!explained) return false;
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
  const Zeros zeros = zeros_of(s);
  const std::string measured = text("%.1f %% of %.0f weights are 0 (p = %g), the others are multiplied by %.4g",
      100 * zeros.share(), static_cast<double>(zeros.of), s.p, factor);
  const auto wrong = [&](const char* id) { return DropoutFinding{false, id, measured}; };
  const Index one_call = s.batch * s.heads * s.queries;
  if (zeros.count == 0) return {false, factor == 1 ? "dropout-never" : "", measured};
  if (!copies_agree(s)) {
    // Two draws: of weights with p, of outputs with the rate that the rest of the factor says.
    const double keep = 1 - s.p, kept = 1 / (factor * keep);
    const bool both = kept < 1 && std::fabs(zeros.share() - (1 - keep * kept)) <= zeros.bound() &&
                      std::fabs(share_of_both(s) - (s.p + keep * (1 - kept) * (1 - kept))) <= zeros.bound();
    if (both) return {true, "dropout-on-output-too", measured};
  }
  if (!copies_agree(s))
    return wrong(s.queries > 1 && same_zeros(s, 1, s.queries) ? "dropout-on-values" : "dropout-on-output");
  if (s.queries > 1 && same_zeros(s, 1, s.queries)) return wrong("dropout-on-values");
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
    const bool same =
        all_elements(s, [&](Index row, Index c) { return agrees(s.weight(row, c), s.got(row, c), s.unit); });
    return {same, same ? "" : "dropout-other-rate", same ? "p = 0: nothing is dropped" : "p = 0, and weights change"};
  }
  for (const double factor : {1 / keep, 1.0, 1 / s.p, keep, s.p, 1 / (keep * keep)}) {
    if (zero_or(s, factor)) return by_zeros(s, factor);
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
  for (Index n = one_call; n < s.out.count(); ++n) {
    const double now = s.out[n].value, before = s.out[n - one_call].value;
    if (now != before && !(std::isnan(now) && std::isnan(before))) return true;
  }
  return false;
}

DropoutFinding evaluated(const Shown& s) {
  const auto is = [&](double factor) {
    return all_elements(s, [&](Index row, Index c) {
      return agrees(s.weight(row, c) * Number(factor, factor == 1 ? 0 : 2 * factor), s.got(row, c), s.unit);
    });
  };
  if (is(1)) return {true, "", "every call gives the weights themselves"};
  if (s.p > 0 && is(1 - s.p))
    return {false, "dropout-scaled-in-evaluation", text("every call gives the weights times %.4g", 1 - s.p)};
  // Zeros alone are no dropout: a mask leaves them too. Dropout is other zeros in each call, or in each row the share
  // p.
  const Zeros zeros = zeros_of(s);
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

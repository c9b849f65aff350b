// Attention once more, one row at a time, by docs/concepts/semantics.md, the order of every sum: what Bits::kInvariant
// gives on every CPU. To be read beside that page.
#pragma once

#include <algorithm>
#include <vector>

#include "invariant/numbers.h"
#include "support/philox.h"
#include "support/problem.h"

namespace qkv::test::plain {

/// Keys of a tile of forward, keys of a part of a row's sum, keys that dq adds at once.
template <class S> Index key_tile(Index width) {
  const Index bytes = width * static_cast<Index>(sizeof(S));
  return bytes <= 512 ? 128 : bytes <= 2048 ? 64 : 32;
}
inline constexpr Index kSumKeys = 16, kKeyBlock = 64;

/// Keys of a range, which a pass over the queries meets.
template <class S> Index key_range(Index width) {
  const Index keys = 65536 / (width * static_cast<Index>(sizeof(S)));
  return std::clamp<Index>(keys / kKeyBlock * kKeyBlock, kKeyBlock, 512);
}

/// Queries that dk and dv add at once: fewer where heads are wide, so that a tile fits the memory of a thread.
template <class T> Index query_block(Index d, Index dv) {
  constexpr Index size = sizeof(Accumulator<T>), fewest = 64 / size;
  const Index range = key_range<Accumulator<T>>(std::max(d, dv));
  Index block = 256 / size;
  while (block > fewest && block * (d + dv) * size > 3 << 19) block /= 2;
  const auto copied = [&] { return (block * (2 * (d + dv) + d + 2 * kKeyBlock) + range * 2 * (d + dv)) * size; };
  while (kIsHalf<T> && block > fewest && copied() > (2 << 20) - (1 << 16)) block /= 2;
  return block;
}

template <class T> struct Attention {
  using S = Accumulator<T>;
  const Problem<T>& problem;
  AttentionCase c = problem.c;
  ReferenceInput<S> in = problem.template reference_input<S>();  // widened
  bool capped = c.softcap > 0, modified = c.mod != ModKind::kNone;
  S scale = static_cast<S>(problem.options.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim))));
  S cap = static_cast<S>(c.softcap), unit = modified ? S{1} : std::numbers::log2e_v<S>;
  S kept_factor = factor_of_kept();
  Tensor<S> scaled_q = scaled(capped ? scale / cap : scale * unit);
  Tensor<S> out{{c.batch, c.num_heads, c.q_len, c.v_head_dim}}, lse{{c.batch, c.num_heads, c.q_len}},
      weights{{c.batch, c.num_heads, c.q_len, c.kv_len}}, beside{weights.sizes()}, dq{in.q.sizes()}, dk{in.k.sizes()},
      dv{in.v.sizes()}, dbias{zeros_like(in.bias)}, dsinks{zeros_like(in.sinks)},
      dposition{zeros_like(in.position_table)};
  Tensor<S> low{lse.sizes()};            // what rounding took from lse, where backward knows it
  Tensor<S> of_scores{weights.sizes()};  // gradients of scores after their cap
  Tensor<double> of_sink{lse.sizes()};   // what each row gives dsinks

  explicit Attention(const Problem<T>& given) : problem(given) {
    for_each_index({c.batch, c.num_heads}, [&](Index b, Index h) {
      for (Index i = 0; i < c.q_len; ++i) forward(b, h, i);
      backward(b, h);
    });
    for_each_item([&](Index b, Index h, Index begin, Index end) {
      if (dbias.data() != nullptr) add_to_bias(b, h, begin, end);
      if (dposition.data() != nullptr) add_to_position(b, h, begin, end);
    });
    for (Index h = 0; dsinks.data() != nullptr && h < c.num_heads; ++h) {
      double sum = 0;
      for_each_index(
          {c.batch, c.q_len}, [&](Index b, Index i) { sum += of_sink.data()[(b * c.num_heads + h) * c.q_len + i]; });
      dsinks.data()[h] = static_cast<S>(sum);
    }
    for (Tensor<S>* x : {&dq, &dk, &dv}) {
      for (S& value : x->span()) value = number_as<S>(number_as<T>(value));
    }
  }

 private:
  S factor_of_kept() const {
    const auto threshold = std::lround(c.dropout * 65536);  // 0 without dropout
    return threshold == 65536 ? S{0} : S{65536} / static_cast<S>(65536 - threshold);
  }
  Tensor<S> scaled(S factor) const {
    Tensor<S> x(in.q.sizes());
    std::ranges::transform(in.q.span(), x.data(), [factor](S value) { return value * factor; });
    return x;
  }
  static Tensor<S> zeros_like(const Tensor<S>& x) { return x.data() == nullptr ? Tensor<S>() : Tensor<S>(x.sizes()); }
  static S* row(Tensor<S>& x, Index b, Index h, Index i) {
    return x.data() + ((b * x.size(1) + h) * x.size(2) + i) * x.size(3);
  }
  static const S* row(const Tensor<S>& x, Index b, Index h, Index i) { return row(const_cast<Tensor<S>&>(x), b, h, i); }
  static void add(S factor, const S* x, Index count, S* to) {
    for (Index n = 0; n < count; ++n) to[n] = std::fma(factor, x[n], to[n]);
  }
  Index group(Index h) const { return h / (c.num_heads / c.num_kv_heads); }
  bool dropped(Index b, Index h, Index i, Index j) const {
    return c.dropout > 0 && dropout_factor(problem.options.dropout, c.num_heads, b, h, i, j) == 0;
  }

  S bias(Index b, Index h, Index i, Index j) const {
    const View<const S, 4>& x = in.options.bias;
    return x(x.size(0) > 1 ? b : 0, x.size(1) > 1 ? h : 0, x.size(2) > 1 ? i : 0, x.size(3) > 1 ? j : 0);
  }
  S by_position(Index h, Index i, Index j) const {
    const double number = in.options.position_table(in.options.position_row(i, j), h);
    return static_cast<S>(number * in.options.position_factor(i, j));
  }

  /// A pair's score in powers of two, and the derivatives of the callback and of the soft cap.
  struct Pair {
    bool kept = false;
    S score = 0, of_mod = 1, of_cap = 1;
  };
  Pair pair(Index b, Index h, Index i, Index j) const {
    Pair p;
    if (!in.options.keep(b, h, i, j)) return p;
    S x = chain(row(scaled_q, b, h, i), row(in.k, b, group(h), j), c.head_dim);
    if (capped) {
      const S th = tanh(x);
      p.of_cap = 1 - th * th;
      x = cap * unit * th;
    }
    if (c.bias != BiasKind::kNone || c.position != PositionKind::kNone) {
      const S added = c.bias == BiasKind::kNone           ? by_position(h, i, j)
                      : c.position == PositionKind::kNone ? bias(b, h, i, j)
                                                          : bias(b, h, i, j) + by_position(h, i, j);
      if (added == -kInfinity<S>) return p;
      x += modified ? added : log2_of(added);
    }
    if (modified) {
      p.of_mod = in.options.score_mod_slope(x, b, h, i, j);
      x = in.options.score_mod(x, b, h, i, j);
      if (x == -kInfinity<S>) return p;
      x = log2_of(x);
    }
    p.kept = true;
    p.score = x;
    return p;
  }

  /// A row's softmax while it meets its keys.
  struct Row {
    bool attended = false, by_maximum = false, lost = false;  // lost: a sink made its weights 0
    S peak = -kInfinity<S>, sum = 0;
    std::vector<S> out, p, shifts;  // p, shifts: of each key, the exponential and what was subtracted
  };
  /// p[n] = 2^(score - shift) of the tile's kept keys, and their sum, a part of it after the other.
  static S exponentials(const Pair* tile, Index count, S shift, S* p) {
    S sum = 0;
    for (Index begin = 0; begin < count; begin += kSumKeys) {
      S part = 0;
      for (Index n = begin; n < std::min(begin + kSumKeys, count); ++n) {
        if (!tile[n].kept) continue;
        p[n] = exp2(tile[n].score - shift);
        part += p[n];
      }
      sum += part;
    }
    return sum;
  }
  /// Whether a row that keeps its shift must go by its maximum.
  static bool leaves(const Pair* tile, Index count, S shift, S sum) {
    const bool far = shift < -12 && sum > 32768;
    const S whole = far ? sum * exp2(shift) : S{0};
    if (far && whole < 256 && whole > S{1} / 256) return true;
    return !(sum >= S{1} / 256 && sum <= S{1 << 30} * S{1 << 30}) ||
           std::any_of(tile, tile + count, [&](const Pair& x) { return x.kept && !in_range(x.score - shift); });
  }
  Row meet(const std::vector<Pair>& scores, Index b, Index h, Index i, Index tile, bool by_maximum) const {
    const auto keys = static_cast<std::size_t>(c.kv_len);
    Row r{.by_maximum = by_maximum,
        .out = std::vector<S>(static_cast<std::size_t>(c.v_head_dim)),
        .p = std::vector<S>(keys),
        .shifts = std::vector<S>(keys)};
    for (Index j0 = 0; j0 < c.kv_len; j0 += tile) {
      const Index count = std::min(tile, c.kv_len - j0);
      const Pair* const at = scores.data() + j0;
      if (std::none_of(at, at + count, [](const Pair& x) { return x.kept; })) continue;
      S *const p = r.p.data() + j0, rescale = 1, sum = 0;
      for (bool moves = r.by_maximum || !r.attended;; moves = r.by_maximum = true) {
        S peak = r.peak;
        if (moves) {
          const S before = peak = r.sum == 0 ? -kInfinity<S> : r.peak;
          for (Index n = 0; n < count; ++n) peak = at[n].kept && at[n].score > peak ? at[n].score : peak;
          rescale = before == peak ? S{1} : exp2(before - peak);
        }
        const S shift = peak == -kInfinity<S> ? S{0} : peak;
        sum = r.sum * rescale + exponentials(at, count, shift, p);
        if (!moves && leaves(at, count, shift, sum)) continue;
        r.peak = moves ? peak : shift;
        break;
      }
      std::fill_n(r.shifts.begin() + j0, count, r.peak);
      std::vector<S> added(r.out.size());
      for (Index n = 0; n < count; ++n) {
        if (!at[n].kept) continue;
        const S weight = dropped(b, h, i, j0 + n) ? S{0} : p[n];
        add(weight, row(in.v, b, group(h), j0 + n), c.v_head_dim, added.data());
      }
      for (std::size_t d = 0; d < added.size(); ++d) r.out[d] = r.attended ? r.out[d] * rescale + added[d] : added[d];
      r.sum = sum;
      r.attended = true;
    }
    return r;
  }
  /// The row's lse and its rounding error; the sum becomes what exponentials are multiplied by.
  Parts<S> finish(Row& r, Index h) const {
    const bool sinks = in.sinks.data() != nullptr && in.sinks.data()[h] > -kInfinity<S>;
    if (r.attended && r.sum == 0 && !sinks) r.sum = std::numeric_limits<S>::quiet_NaN();
    S peak = r.peak, sum = r.sum, share = 1;
    if (in.sinks.data() != nullptr) {
      const S before = sum == 0 ? -kInfinity<S> : peak, sink = log2_of(in.sinks.data()[h]);
      peak = before > sink ? before : sink;
      const S shift = peak == -kInfinity<S> ? S{0} : peak;
      share = before == peak ? S{1} : exp2(before - shift);
      sum = std::fma(sum, share, exp2(sink - shift));
    }
    r.lost = r.sum != 0 && share / sum == 0;
    r.sum = sum == 0 ? S{0} : share / sum;
    for (S& x : r.out) x = std::fma(x, r.sum * kept_factor, S{0});
    return log_sum_exp(peak, sum);
  }

  /// A weight of an empty row that is filled, before dropout.
  S empty_weight() const {
    return c.empty_row == EmptyRow::kNaN ? std::numeric_limits<S>::quiet_NaN() : S{1} / static_cast<S>(c.kv_len);
  }
  /// What dropout multiplies it by.
  double empty_factor(Index b, Index h, Index i, Index j) const {
    if (c.empty_row == EmptyRow::kNaN) return std::numeric_limits<double>::quiet_NaN();
    return c.dropout > 0 ? dropout_factor(problem.options.dropout, c.num_heads, b, h, i, j) : 1;
  }
  /// The sum of `count` products of a factor, which is 0 or the same for all, and a number, over Tk.
  S mean(Index count, const auto& pair) const {
    double sum = 0, some = 0, kept = 0;
    for (Index n = 0; n < count; ++n) {
      const auto [factor, number] = pair(n);
      if (factor != 0) kept = factor;
      some += (factor == 0 ? 0.0 : 1.0) * number;
      if ((n + 1) % 256 != 0 && n + 1 != count) continue;
      sum += some;
      some = 0;
    }
    return static_cast<S>(sum == 0 ? 0.0 : sum * (kept / static_cast<double>(c.kv_len)));
  }
  bool is_filled(S row_lse) const { return row_lse == -kInfinity<S> && c.empty_row != EmptyRow::kZero; }

  void forward(Index b, Index h, Index i) {
    std::vector<Pair> scores;
    for (Index j = 0; j < c.kv_len; ++j) scores.push_back(pair(b, h, i, j));
    const Index tile = key_tile<S>(std::max(c.head_dim, c.v_head_dim));
    Row without_values = meet(scores, b, h, i, key_tile<S>(c.head_dim), false);
    finish(without_values, h);
    Row r = meet(scores, b, h, i, tile, false);
    const Parts<S> alone = finish(r, h);
    Parts<S> whole = alone;
    if (r.lost || !std::ranges::all_of(r.out, [](S x) { return std::isfinite(x); })) {
      r = meet(scores, b, h, i, tile, true);
      whole = finish(r, h);
    }
    S *const w = row(weights, b, h, i), *const both = row(beside, b, h, i);
    const auto weight = [](const Pair& x, const Row& of) {
      return x.kept ? exp2(x.score - (of.peak == -kInfinity<S> ? S{0} : of.peak)) * of.sum : S{0};
    };
    for (Index j = 0; j < c.kv_len; ++j) {
      const Pair& x = scores[static_cast<std::size_t>(j)];
      w[j] = weight(x, without_values);
      const S shift = r.shifts[static_cast<std::size_t>(j)], moved = shift < r.peak ? exp2(shift - r.peak) : S{1};
      both[j] = c.dropout > 0 ? weight(x, r) : r.p[static_cast<std::size_t>(j)] * (moved * r.sum);  // up to 11,000 keys
      if (!is_filled(alone.high)) continue;
      w[j] = both[j] = empty_weight();
    }
    for (Index d = 0; is_filled(alone.high) && d < c.v_head_dim; ++d) {
      r.out[static_cast<std::size_t>(d)] = mean(c.kv_len, [&](Index j) {
        return std::pair(empty_factor(b, h, i, j), static_cast<double>(row(in.v, b, group(h), j)[d]));
      });
    }
    std::ranges::transform(r.out, row(out, b, h, i), [](S x) { return number_as<S>(number_as<T>(x)); });
    const Index n = (b * c.num_heads + h) * c.q_len + i;
    lse.data()[n] = whole.high;
    const bool coarse = std::isfinite(whole.high) && std::abs(whole.high) > 16;  // backward asks forward again
    low.data()[n] = coarse && alone.high == whole.high ? alone.low : S{0};
  }

  /// Adds head h's share to the gradients.
  void backward(Index b, Index h) {
    const Index d = c.head_dim, width = c.v_head_dim, g = group(h);
    const Index block = query_block<T>(d, width);
    for (Index begin = 0; begin < c.q_len; begin += block) {
      Tensor<S> of_k({1, 1, c.kv_len, d}), of_v({1, 1, c.kv_len, width});  // sums over this block of queries
      for (Index i = begin; i < std::min(begin + block, c.q_len); ++i) {
        const Index n = (b * c.num_heads + h) * c.q_len + i;
        const Parts<S> lse2 = in_powers_of_two<S>({lse.data()[n], low.data()[n]}, c.kv_len > 0);
        const S* const of_out = row(in.dout, b, h, i);
        const S delta = chain(row(out, b, h, i), of_out, width) - in.dlse.data()[n];
        if (in.sinks.data() != nullptr) of_sink.data()[n] = sink_term(in.sinks.data()[h], lse2, delta);
        Tensor<S> of_q({d});  // over a block of keys
        for (Index j = 0; j < c.kv_len; ++j) {
          if (const Pair x = pair(b, h, i, j); x.kept) {
            const bool drop = dropped(b, h, i, j);
            const S p = exp2((x.score - lse2.high) - lse2.low);
            const S dp = drop ? S{0} : chain(row(in.v, b, g, j), of_out, width) * kept_factor;
            const S of_score = row(of_scores, b, h, i)[j] = p * (dp - delta) * x.of_mod, ds = of_score * x.of_cap;
            add(ds, row(in.k, b, g, j), d, of_q.data());
            add(ds, row(in.q, b, h, i), d, row(of_k, 0, 0, j));
            add(drop ? S{0} : p, of_out, width, row(of_v, 0, 0, j));
          }
          if ((j + 1) % kKeyBlock != 0 && j + 1 != c.kv_len) continue;
          add(scale, of_q.data(), d, row(dq, b, h, i));
          std::ranges::fill(of_q.span(), S{0});
        }
      }
      for (Index j = 0; j < c.kv_len; ++j) {
        add(scale, row(of_k, 0, 0, j), d, row(dk, b, g, j));
        add(kept_factor, row(of_v, 0, 0, j), width, row(dv, b, g, j));
      }
    }
    for_each_index({c.kv_len, width}, [&](Index j, Index n) {  // empty rows
      row(dv, b, g, j)[n] += mean(c.q_len, [&](Index i) {
        const double factor = is_filled(lse.data()[(b * c.num_heads + h) * c.q_len + i]) ? empty_factor(b, h, i, j) : 0;
        return std::pair(factor, factor == 0 ? 0.0 : static_cast<double>(row(in.dout, b, h, i)[n]));
      });
    });
  }
  /// minus the sink's weight times delta.
  static double sink_term(S sink, Parts<S> lse2, S delta) {
    const bool restored = std::isfinite(sink) && std::abs(sink) > 16;
    const double sink2 =
        restored ? static_cast<double>(log2_of(sink)) : static_cast<double>(sink) * std::numbers::log2e;
    const double exponent = sink2 - static_cast<double>(lse2.high);
    const double weight = maths::exp2(exponent - static_cast<double>(lse2.low));
    return weight == 0 ? 0 : weight * -static_cast<double>(delta);
  }

  /// visit(b, h, first key, last + 1) in the order in which shared gradients are added: a range of keys after the
  /// other, in each the heads; where results are rounded, the heads of a key/value head after those of another, and
  /// their ranges within.
  void for_each_item(const auto& visit) const {
    const Index range = key_range<S>(std::max(c.head_dim, c.v_head_dim)), ranges = (c.kv_len + range - 1) / range;
    const Index heads = c.batch * c.num_kv_heads, group_size = c.num_heads / c.num_kv_heads;
    for (Index n = 0; n < heads * ranges; ++n) {
      const Index head = kIsHalf<T> ? n / ranges : n % heads, begin = (kIsHalf<T> ? n % ranges : n / heads) * range;
      for (Index r = 0; r < group_size; ++r) {
        visit(head / c.num_kv_heads, head % c.num_kv_heads * group_size + r, begin, std::min(begin + range, c.kv_len));
      }
    }
  }
  /// A bias that repeats over keys takes the sums of blocks of keys, one that repeats over queries an item's sum; none
  /// of the cases' repeats over both.
  void add_to_bias(Index b, Index h, Index begin, Index end) {
    const bool over_keys = dbias.size(3) == 1, over_queries = dbias.size(2) == 1 && c.q_len > 1;
    S* const to = row(dbias, dbias.size(0) > 1 ? b : 0, dbias.size(1) > 1 ? h : 0, 0);
    std::vector<S> own(static_cast<std::size_t>(c.kv_len));
    for (Index i = 0; i < c.q_len; ++i) {
      S* const at = over_queries ? own.data() : to + i * dbias.size(3);
      S some = 0;
      for (Index j = begin; j < end; ++j) {
        (over_keys ? some : at[j]) += row(of_scores, b, h, i)[j];
        if (!over_keys || ((j + 1) % kKeyBlock != 0 && j + 1 != end)) continue;
        *at += some;
        some = 0;
      }
    }
    for (Index j = begin; over_queries && j < end; ++j) to[j] += own[static_cast<std::size_t>(j)];
  }
  /// Sums of diagonals, of a block of queries each, and then in double those of a row of the table.
  void add_to_position(Index b, Index h, Index begin, Index end) {
    std::vector<double> rows(static_cast<std::size_t>(dposition.size(0)));
    const Index block = query_block<T>(c.head_dim, c.v_head_dim);
    for (Index first = 0; first < c.q_len; first += block) {
      const Index last = std::min(first + block, c.q_len);
      for (Index n = begin - last + 1; n < end - first; ++n) {  // j - i
        S sum = 0;
        for (Index i = std::max(first, begin - n); i < std::min(last, end - n); ++i)
          sum += row(of_scores, b, h, i)[i + n];
        const auto of_table = static_cast<std::size_t>(in.options.position_row(0, n));
        rows[of_table] += in.options.position_factor(0, n) * static_cast<double>(sum);
      }
    }
    for (std::size_t n = 0; n < rows.size(); ++n) {
      dposition.data()[static_cast<Index>(n) * c.num_heads + h] += static_cast<S>(rows[n]);
    }
  }
};

}  // namespace qkv::test::plain

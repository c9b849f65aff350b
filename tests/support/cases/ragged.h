// A ragged batch and the same sequences one by one: settings, tokens, results, and which of them must be bit-identical.
#pragma once

#include "qkv/varlen.h"
#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {

struct RaggedLengths {
  Index q, kv;
};
/// Tiles and key ranges of one and of several, decode in one part and in several, no queries, no keys, nothing at all.
inline const std::vector<RaggedLengths> kMixedLengths = {
    {17, 17}, {1, 700}, {0, 5}, {300, 300}, {5, 0}, {0, 0}, {33, 200}, {1, 64}, {3, 2500}, {130, 40}};
inline const std::vector<RaggedLengths> kSquareLengths = {{3, 3}, {129, 129}, {1, 1}, {0, 0}, {64, 64}, {270, 270}};

struct RaggedSetting {
  std::string name;
  std::vector<RaggedLengths> lengths = kMixedLengths;
  Mask mask{};                         // the same for each sequence
  bool offsets = false;                // causal(offsets), another for each sequence
  bool key_lengths = false;            // likewise
  bool bias = false, softcap = false;  // bias [1, H, longest, longest]
  double dropout = 0;
  EmptyRow empty_row = EmptyRow::kZero;
  bool token_major = true;  // [total, H, D] in memory, otherwise [H, total, D]
  Index num_heads = 4, num_kv_heads = 2, head_dim = 24, v_head_dim = 20;
};

inline std::vector<RaggedSetting> ragged_settings() {
  std::vector<RaggedSetting> all;
  all.push_back({.name = "plain"});
  all.push_back({.name = "heads_first", .token_major = false});
  all.push_back({.name = "bottom_right", .mask = Mask::causal(Align::kBottomRight), .empty_row = EmptyRow::kMean});
  all.push_back({.name = "top_left", .mask = Mask::causal(Align::kTopLeft)});
  all.push_back({.name = "square", .lengths = kSquareLengths, .mask = Mask::causal() & Mask::sliding(50)});
  all.push_back({.name = "window_dropout", .mask = Mask::window(20, 3, Align::kBottomRight), .dropout = 0.3});
  all.push_back({.name = "offsets", .offsets = true, .empty_row = EmptyRow::kNaN});
  all.push_back({.name = "key_lengths", .key_lengths = true});
  all.push_back({.name = "offsets_key_lengths", .offsets = true, .key_lengths = true});
  all.push_back({.name = "bias_softcap", .bias = true, .softcap = true, .dropout = 0.1});
  all.push_back({.name = "one_head",
      .mask = Mask::causal(Align::kBottomRight),
      .num_heads = 1,
      .num_kv_heads = 1,
      .head_dim = 64,
      .v_head_dim = 64});
  all.push_back({.name = "long", .lengths = {{40, 9000}, {2, 90}}, .mask = Mask::window(60, -1, Align::kBottomRight)});
  return all;
}

inline std::vector<Index> offsets_of(const std::vector<RaggedLengths>& lengths, Index RaggedLengths::*member) {
  std::vector<Index> offsets{0};
  for (const RaggedLengths& each : lengths) offsets.push_back(offsets.back() + each.*member);
  return offsets;
}

/// Tokens [total, heads, width] in either order of memory.
template <class T> struct Tokens {
  Tensor<T> memory;
  View<T, 3> view;

  Tokens(Index total, Index heads, Index width, bool token_major)
      : memory(token_major ? std::vector<Index>{total, heads, width} : std::vector<Index>{heads, total, width}),
        view(token_major ? memory.template view<3>() : memory.template view<3>().transposed(0, 1)) {}

  void fill(Random& random) {
    for (T& x : memory.span()) x = number_as<T>(random.symmetric());
  }
  /// Rows [begin, end) as one sequence [1, heads, end - begin, width].
  View<T, 4> sequence(Index begin, Index end) const {
    return {view.data() + begin * view.stride(0), {1, view.size(1), end - begin, view.size(2)},
        {0, view.stride(1), view.stride(0), 1}};
  }
};

/// The same sums in another order: 64 eps of the largest.
template <class T> void expect_near(const Tensor<T>& a, const Tensor<T>& b, const char* what) {
  double largest = 1;
  for (const T value : b.span())
    largest = std::max(largest, std::isfinite(value) ? std::abs(static_cast<double>(value)) : 0);
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  for (Index n = 0; n < b.count(); ++n) {
    if (std::isnan(b.data()[n]) && std::isnan(a.data()[n])) continue;
    ASSERT_NEAR(static_cast<double>(a.data()[n]), static_cast<double>(b.data()[n]),
        64 * static_cast<double>(std::numeric_limits<T>::epsilon()) * largest)
        << what << " at " << n;
  }
}

/// whole [1, H, Tq, Tk], first rows and columns, += part.
template <class T> void add_first(const Tensor<T>& part, Tensor<T>& whole) {
  const View<const T, 4> from = part;
  const View<T, 4> to = whole;
  for_each_index({from.size(1), from.size(2), from.size(3)},
      [&](Index h, Index i, Index j) { to(0, h, i, j) += from(0, h, i, j); });
}

/// Inputs and outputs of one setting. Outputs start as NaN.
template <class T> struct Ragged {
  using Sum = Accumulator<T>;
  RaggedSetting s;
  std::vector<Index> q_offsets, kv_offsets;
  Tokens<T> q, k, v, dout, out, dq, dk, dv;
  Tensor<Sum> lse, dlse, weights, bias, dbias;
  std::vector<Index> causal_offsets, key_lengths;

  explicit Ragged(const RaggedSetting& setting)
      : s(setting),
        q_offsets(offsets_of(s.lengths, &RaggedLengths::q)),
        kv_offsets(offsets_of(s.lengths, &RaggedLengths::kv)),
        q(total_q(), s.num_heads, s.head_dim, s.token_major),
        k(total_kv(), s.num_kv_heads, s.head_dim, s.token_major),
        v(total_kv(), s.num_kv_heads, s.v_head_dim, s.token_major),
        dout(total_q(), s.num_heads, s.v_head_dim, s.token_major),
        out(total_q(), s.num_heads, s.v_head_dim, s.token_major),
        dq(total_q(), s.num_heads, s.head_dim, s.token_major),
        dk(total_kv(), s.num_kv_heads, s.head_dim, s.token_major),
        dv(total_kv(), s.num_kv_heads, s.v_head_dim, s.token_major),
        lse({total_q(), s.num_heads}),
        dlse({total_q(), s.num_heads}),
        weights({ragged_weights_count(offsets(), s.num_heads)}) {
    Random random(7);
    for (Tokens<T>* each : {&q, &k, &v, &dout}) each->fill(random);
    for (Sum& x : dlse.span()) x = static_cast<Sum>(random.symmetric());
    for (Tokens<T>* each : {&out, &dq, &dk, &dv}) std::ranges::fill(each->memory.span(), kQuietNan<T>);
    std::ranges::fill(lse.span(), kQuietNan<Sum>);
    Index longest_q = 0, longest_kv = 0;
    for (const RaggedLengths& each : s.lengths) {
      longest_q = std::max(longest_q, each.q);
      longest_kv = std::max(longest_kv, each.kv);
      causal_offsets.push_back(random.below(20) - 10);
      key_lengths.push_back(each.kv - random.below(each.kv + 1) / 2);
    }
    if (!s.bias) return;
    bias = Tensor<Sum>({1, s.num_heads, longest_q, longest_kv});
    dbias = Tensor<Sum>(bias.sizes());
    for (Sum& x : bias.span()) x = static_cast<Sum>(random.symmetric());
  }

  Index count() const { return static_cast<Index>(s.lengths.size()); }
  Index total_q() const { return q_offsets.back(); }
  Index total_kv() const { return kv_offsets.back(); }
  RaggedOffsets offsets() const { return {q_offsets, kv_offsets}; }

  AttentionOptions options() const {
    AttentionOptions made{.mask = s.mask, .empty_row = s.empty_row};
    if (s.offsets) made.mask = made.mask & Mask::causal(causal_offsets);
    if (s.key_lengths) made.mask = made.mask & Mask::key_lengths(key_lengths);
    if (s.bias) made.bias = bias;
    if (s.softcap) made.softcap = 2;
    made.dropout = {.p = s.dropout, .seed = 99, .training = s.dropout > 0, .first_sequence = 5};
    return made;
  }
  /// The options of sequence b alone.
  AttentionOptions options(Index b) const {
    AttentionOptions made = options();
    const auto at = static_cast<std::size_t>(b);
    made.mask = s.mask;
    if (s.offsets) made.mask = made.mask & Mask::causal(std::span(causal_offsets).subspan(at, 1));
    if (s.key_lengths) made.mask = made.mask & Mask::key_lengths(std::span(key_lengths).subspan(at, 1));
    if (s.bias) {
      const View<const Sum, 4> all = bias;
      made.bias = BiasView(all.sliced(2, 0, s.lengths[at].q).sliced(3, 0, s.lengths[at].kv));
    }
    made.dropout.first_sequence += b;
    return made;
  }

  WeightsKind kind() const { return s.dropout > 0 ? WeightsKind::kApplied : WeightsKind::kSoftmax; }

  void run(Context& context) {
    attention_varlen_forward(q.view, k.view, v.view, {.out = out.view, .lse = lse, .weights = weights, .kind = kind()},
        offsets(), options(), context);
    RaggedGradients<T> gradients{.dq = dq.view, .dk = dk.view, .dv = dv.view};
    if (s.bias) gradients.dbias = dbias;
    gradients.dlse = dlse;
    attention_varlen_backward(
        q.view, k.view, v.view, out.view, lse, dout.view, gradients, offsets(), options(), context);
  }

  /// The same, one sequence after the other.
  void run_apart(Context& context) {
    for (Index b = 0; b < count(); ++b) {
      const auto at = static_cast<std::size_t>(b);
      const auto queries = [&](const Tokens<T>& tokens) { return tokens.sequence(q_offsets[at], q_offsets[at + 1]); };
      const auto keys = [&](const Tokens<T>& tokens) { return tokens.sequence(kv_offsets[at], kv_offsets[at + 1]); };
      const auto rows = [&](Tensor<Sum>& numbers) -> View<Sum, 3> {
        return {numbers.data() + q_offsets[at] * s.num_heads, {1, s.num_heads, q_offsets[at + 1] - q_offsets[at]},
            {0, 1, s.num_heads}};
      };
      attention_forward(queries(q), keys(k), keys(v), {.out = queries(out), .lse = rows(lse)}, options(b), context);
      const View<Sum, 3> own = ragged_weights(View<Sum, 1>(weights), offsets(), s.num_heads, b);
      attention_forward(queries(q), keys(k), {},
          {.weights = View<Sum, 4>(own.data(), {1, own.size(0), own.size(1), own.size(2)}), .kind = kind()}, options(b),
          context);
      AttentionGradients<T> gradients{.dq = queries(dq), .dk = keys(dk), .dv = keys(dv)};
      gradients.dlse = rows(dlse);
      Tensor<Sum> own_dbias;
      if (s.bias) {
        own_dbias = Tensor<Sum>({1, s.num_heads, s.lengths[at].q, s.lengths[at].kv});
        gradients.dbias = own_dbias;
      }
      attention_backward(
          queries(q), keys(k), keys(v), queries(out), rows(lse), queries(dout), gradients, options(b), context);
      if (s.bias) add_first(own_dbias, dbias);
    }
  }
};

template <class T> void expect_same_ragged(const Ragged<T>& a, const Ragged<T>& b) {
  expect_near(a.dbias, b.dbias, "dbias");
  EXPECT_TRUE(same_bits(a.out.memory, b.out.memory)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.dq.memory, b.dq.memory)) << "dq";
  EXPECT_TRUE(same_bits(a.dk.memory, b.dk.memory)) << "dk";
  EXPECT_TRUE(same_bits(a.dv.memory, b.dv.memory)) << "dv";
  const auto bytes = static_cast<std::size_t>(a.weights.count()) * sizeof(*a.weights.data());
  EXPECT_EQ(std::memcmp(a.weights.data(), b.weights.data(), bytes), 0) << "weights";
}

/// Every instruction set: one sequence after the other, then all at once with each number of threads.
template <class T> void check_ragged(const RaggedSetting& setting, std::initializer_list<int> thread_counts) {
  SCOPED_TRACE(setting.name);
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    Context one({.threads = 1, .isa = isa, .executor = nullptr});
    Ragged<T> apart(setting);
    apart.run_apart(one);
    for (const int threads : thread_counts) {
      Context context({.threads = threads, .isa = isa, .executor = nullptr});
      context.impl().region_flops = 0;
      Ragged<T> together(setting);
      together.run(context);
      expect_same_ragged(together, apart);
    }
  }
}

}  // namespace qkv::test

// A ragged batch gives every sequence the bits that it has alone: forward and backward, any mask, dropout, bias, type and
// number of threads. The sequences alone are held against the textbook elsewhere (cases_test.cc).
#include "qkv/varlen.h"

#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

struct Lengths {
  Index q, kv;
};
/// Tiles and key ranges of one and of several, decode in one part and in several, no queries, no keys, nothing at all.
const std::vector<Lengths> kMixed = {{17, 17}, {1, 700},  {0, 5},  {300, 300}, {5, 0},
                                     {0, 0},   {33, 200}, {1, 64}, {3, 2500},  {130, 40}};
const std::vector<Lengths> kSquares = {{3, 3}, {129, 129}, {1, 1}, {0, 0}, {64, 64}, {270, 270}};

struct Setting {
  std::string name;
  std::vector<Lengths> lengths = kMixed;
  Mask mask{};                         // said the same for each sequence
  bool offsets = false;                // causal(offsets), another for each sequence
  bool key_lengths = false;            // likewise
  bool bias = false, softcap = false;  // bias [1, H, longest, longest]
  double dropout = 0;
  EmptyRow empty_row = EmptyRow::kZero;
  bool token_major = true;  // [total, H, D] in memory, else [H, total, D]
  Index num_heads = 4, num_kv_heads = 2, head_dim = 24, v_head_dim = 20;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  all.push_back({.name = "plain"});
  all.push_back({.name = "heads_first", .token_major = false});
  all.push_back({.name = "bottom_right", .mask = Mask::causal(Align::kBottomRight), .empty_row = EmptyRow::kMean});
  all.push_back({.name = "top_left", .mask = Mask::causal(Align::kTopLeft)});
  all.push_back({.name = "square", .lengths = kSquares, .mask = Mask::causal() & Mask::sliding(50)});
  all.push_back({.name = "window_dropout", .mask = Mask::window(20, 3, Align::kBottomRight), .dropout = 0.3});
  all.push_back({.name = "offsets", .offsets = true, .empty_row = EmptyRow::kNaN});
  all.push_back({.name = "key_lengths", .offsets = true, .key_lengths = true});
  all.push_back({.name = "bias_softcap", .bias = true, .softcap = true, .dropout = 0.1});
  all.push_back({.name = "one_head",
                 .mask = Mask::causal(Align::kBottomRight),
                 .num_heads = 1,
                 .num_kv_heads = 1,
                 .head_dim = 64,
                 .v_head_dim = 64});
  return all;
}

std::vector<Index> offsets_of(const std::vector<Lengths>& lengths, Index Lengths::*member) {
  std::vector<Index> offsets{0};
  for (const Lengths& each : lengths) offsets.push_back(offsets.back() + each.*member);
  return offsets;
}

/// Tokens [total, heads, width] in either order of memory.
template <class T>
struct Tokens {
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
    return {view.data() + begin * view.stride(0),
            {1, view.size(1), end - begin, view.size(2)},
            {0, view.stride(1), view.stride(0), 1}};
  }
};

/// The same sums in another order: 64 eps of the largest.
template <class T>
void expect_near(const Tensor<T>& a, const Tensor<T>& b, const char* what) {
  double largest = 1;
  for (const T value : b.span()) largest = std::max(largest, std::isfinite(value) ? std::abs(static_cast<double>(value)) : 0);
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  for (Index n = 0; n < b.count(); ++n) {
    if (std::isnan(b.data()[n]) && std::isnan(a.data()[n])) continue;
    ASSERT_NEAR(static_cast<double>(a.data()[n]), static_cast<double>(b.data()[n]),
                64 * static_cast<double>(std::numeric_limits<T>::epsilon()) * largest)
        << what << " at " << n;
  }
}

/// whole [1, H, Tq, Tk], first rows and columns, += part.
template <class T>
void add_first(const Tensor<T>& part, Tensor<T>& whole) {
  const View<const T, 4> from = part;
  const View<T, 4> to = whole;
  for (Index h = 0; h < from.size(1); ++h) {
    for (Index i = 0; i < from.size(2); ++i) {
      for (Index j = 0; j < from.size(3); ++j) to(0, h, i, j) += from(0, h, i, j);
    }
  }
}

/// Inputs and outputs of one setting. Outputs start as NaN.
template <class T>
struct Ragged {
  using Sum = Accumulator<T>;
  Setting s;
  std::vector<Index> q_offsets, kv_offsets;
  Tokens<T> q, k, v, dout, out, dq, dk, dv;
  Tensor<Sum> lse, dlse, bias, dbias;
  std::vector<Index> causal_offsets, key_lengths;

  explicit Ragged(const Setting& setting)
      : s(setting),
        q_offsets(offsets_of(s.lengths, &Lengths::q)),
        kv_offsets(offsets_of(s.lengths, &Lengths::kv)),
        q(total_q(), s.num_heads, s.head_dim, s.token_major),
        k(total_kv(), s.num_kv_heads, s.head_dim, s.token_major),
        v(total_kv(), s.num_kv_heads, s.v_head_dim, s.token_major),
        dout(total_q(), s.num_heads, s.v_head_dim, s.token_major),
        out(total_q(), s.num_heads, s.v_head_dim, s.token_major),
        dq(total_q(), s.num_heads, s.head_dim, s.token_major),
        dk(total_kv(), s.num_kv_heads, s.head_dim, s.token_major),
        dv(total_kv(), s.num_kv_heads, s.v_head_dim, s.token_major),
        lse({total_q(), s.num_heads}),
        dlse({total_q(), s.num_heads}) {
    Random random(7);
    for (Tokens<T>* each : {&q, &k, &v, &dout}) each->fill(random);
    for (Sum& x : dlse.span()) x = static_cast<Sum>(random.symmetric());
    for (Tokens<T>* each : {&out, &dq, &dk, &dv}) std::ranges::fill(each->memory.span(), kQuietNan<T>);
    std::ranges::fill(lse.span(), kQuietNan<Sum>);
    Index longest_q = 0, longest_kv = 0;
    for (const Lengths& each : s.lengths) {
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
    if (s.offsets) made.mask = s.mask & Mask::causal(std::span(causal_offsets).subspan(at, 1));
    if (s.key_lengths) made.mask = made.mask & Mask::key_lengths(std::span(key_lengths).subspan(at, 1));
    if (s.bias) {
      const View<const Sum, 4> all = bias;
      made.bias = BiasView(all.sliced(2, 0, s.lengths[at].q).sliced(3, 0, s.lengths[at].kv));
    }
    made.dropout.first_sequence += b;
    return made;
  }

  void run(Context& context) {
    attention_varlen_forward(q.view, k.view, v.view, out.view, lse, offsets(), options(), context);
    backward(context, false);
  }
  void backward(Context& context, bool accumulate) {
    RaggedGradients<T> gradients{.dq = dq.view, .dk = dk.view, .dv = dv.view};
    if (s.bias) gradients.dbias = dbias;
    gradients.dlse = dlse;
    gradients.accumulate = accumulate;
    attention_varlen_backward(q.view, k.view, v.view, out.view, lse, dout.view, gradients, offsets(), options(), context);
  }

  /// The same, one sequence after the other.
  void run_apart(Context& context) {
    for (Index b = 0; b < count(); ++b) {
      const auto at = static_cast<std::size_t>(b);
      const auto queries = [&](const Tokens<T>& tokens) { return tokens.sequence(q_offsets[at], q_offsets[at + 1]); };
      const auto keys = [&](const Tokens<T>& tokens) { return tokens.sequence(kv_offsets[at], kv_offsets[at + 1]); };
      const auto rows = [&](Tensor<Sum>& numbers) -> View<Sum, 3> {
        return {numbers.data() + q_offsets[at] * s.num_heads,
                {1, s.num_heads, q_offsets[at + 1] - q_offsets[at]},
                {0, 1, s.num_heads}};
      };
      attention_forward(queries(q), keys(k), keys(v), queries(out), rows(lse), options(b), context);
      AttentionGradients<T> gradients{.dq = queries(dq), .dk = keys(dk), .dv = keys(dv)};
      gradients.dlse = rows(dlse);
      Tensor<Sum> own_dbias;
      if (s.bias) {
        own_dbias = Tensor<Sum>({1, s.num_heads, s.lengths[at].q, s.lengths[at].kv});
        gradients.dbias = own_dbias;
      }
      attention_backward(queries(q), keys(k), keys(v), queries(out), rows(lse), queries(dout), gradients, options(b), context);
      if (s.bias) add_first(own_dbias, dbias);
    }
  }
};

template <class T>
void expect_same(const Ragged<T>& a, const Ragged<T>& b) {
  expect_near(a.dbias, b.dbias, "dbias");
  EXPECT_TRUE(same_bits(a.out.memory, b.out.memory)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.dq.memory, b.dq.memory)) << "dq";
  EXPECT_TRUE(same_bits(a.dk.memory, b.dk.memory)) << "dk";
  EXPECT_TRUE(same_bits(a.dv.memory, b.dv.memory)) << "dv";
}

template <class T>
class Varlen : public testing::Test {};
TYPED_TEST_SUITE(Varlen, StorageTypes);

TYPED_TEST(Varlen, SameBitsAsEachSequenceAlone) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    for (const Isa isa : supported_isas()) {
      SCOPED_TRACE(std::string(isa_name(isa)));
      Context one({.threads = 1, .isa = isa, .executor = nullptr});
      Ragged<TypeParam> apart(setting);
      apart.run_apart(one);
      for (const int threads : {1, 2, 5}) {
        Context context({.threads = threads, .isa = isa, .executor = nullptr});
        context.impl().region_flops = 0;
        Ragged<TypeParam> together(setting);
        together.run(context);
        expect_same(together, apart);
      }
    }
  }
}

TYPED_TEST(Varlen, AccumulatedGradientsAreAdded) {
  Ragged<TypeParam> once(settings()[2]), twice(settings()[2]);
  Context context({.threads = 2});
  once.run(context);
  twice.run(context);
  twice.backward(context, true);
  const auto expect_double = [](const Tensor<TypeParam>& doubled, const Tensor<TypeParam>& single) {
    for (Index n = 0; n < single.count(); ++n) {
      const double one = number_as<double>(single.data()[n]);
      ASSERT_NEAR(number_as<double>(doubled.data()[n]), 2 * one, 1e-2 * std::abs(one) + 1e-6);
    }
  };
  expect_double(twice.dq.memory, once.dq.memory);
  expect_double(twice.dk.memory, once.dk.memory);
  expect_double(twice.dv.memory, once.dv.memory);
}

/// A batch that is not ragged is attention_forward's own batch.
TYPED_TEST(Varlen, EqualLengthsAreABatch) {
  using T = TypeParam;
  Setting setting{
      .name = "equal", .lengths = {{40, 90}, {40, 90}, {40, 90}}, .mask = Mask::causal(Align::kBottomRight), .dropout = 0.2};
  Ragged<T> ragged(setting);
  Context context({.threads = 3});
  ragged.run(context);
  const auto batched = [](const Tokens<T>& tokens) -> View<T, 4> {
    const View<T, 3>& view = tokens.view;
    const Index length = view.size(0) / 3;
    return {view.data(), {3, view.size(1), length, view.size(2)}, {length * view.stride(0), view.stride(1), view.stride(0), 1}};
  };
  Tokens<T> out(120, 4, 20, true);
  attention_forward(batched(ragged.q), batched(ragged.k), batched(ragged.v), batched(out), {}, ragged.options(), context);
  EXPECT_TRUE(same_bits(out.memory, ragged.out.memory));
}

/// [B, H, T, D] that lies token by token, as [B * T, H, D].
template <class T>
View<T, 3> tokens_of(const View<T, 4>& view) {
  return {view.data(), {view.size(0) * view.size(2), view.size(1), view.size(3)}, {view.stride(2), view.stride(1), 1}};
}

/// [B, H, T] and back: numbers of tokens [B * T, H].
template <class T>
Tensor<T> transposed_rows(const Tensor<T>& rows, Index batch, Index heads, Index length, bool to_tokens) {
  Tensor<T> made(to_tokens ? std::vector<Index>{batch * length, heads} : std::vector<Index>{batch, heads, length});
  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < heads; ++h) {
      for (Index t = 0; t < length; ++t) {
        const Index by_head = (b * heads + h) * length + t, by_token = (b * length + t) * heads + h;
        made.data()[to_tokens ? by_token : by_head] = rows.data()[to_tokens ? by_head : by_token];
      }
    }
  }
  return made;
}

/// The case list as batches that happen to be even: every option in the bits of attention_forward and attention_backward.
TYPED_TEST(Varlen, EveryCaseAsSequences) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Context context({.threads = 3});
  context.impl().region_flops = 0;
  const std::vector<AttentionCase> cases = pairwise_cases();
  for (std::size_t n = 0; n < cases.size(); n += std::is_same_v<T, float> ? 1 : 5) {
    AttentionCase each = cases[n];
    each.layout = Layout::kBthd;
    each.cache = CacheKind::kNone;
    SCOPED_TRACE(each.name());
    const Problem<T> problem(each);
    Result<T> batched(problem), ragged(problem);
    batched.run_forward(problem, context);
    batched.run_backward(problem, context);
    std::vector<Index> q_offsets{0}, kv_offsets{0};
    for (Index b = 0; b < each.batch; ++b) {
      q_offsets.push_back(q_offsets.back() + each.q_len);
      kv_offsets.push_back(kv_offsets.back() + each.kv_len);
    }
    const RaggedOffsets offsets{q_offsets, kv_offsets};
    const auto q = tokens_of(problem.q()), k = tokens_of(problem.k()), v = tokens_of(problem.v());
    const auto& [dq, dk, dv] = ragged.gradients.views;
    Tensor<Sum> lse({each.batch * each.q_len, each.num_heads});
    const Tensor<Sum> dlse = transposed_rows(problem.dlse, each.batch, each.num_heads, each.q_len, true);
    attention_varlen_forward(q, k, v, tokens_of(ragged.out.view), lse, offsets, problem.options, context);
    RaggedGradients<T> wanted{.dq = tokens_of(dq), .dk = tokens_of(dk), .dv = tokens_of(dv)};
    if (ragged.dbias.data() != nullptr) wanted.dbias = ragged.dbias;
    if (ragged.dsinks.data() != nullptr) wanted.dsinks = ragged.dsinks;
    if (ragged.dposition.data() != nullptr) wanted.dposition_bias = ragged.dposition;
    wanted.dlse = dlse;
    attention_varlen_backward(q, k, v, tokens_of(ragged.out.view), lse, tokens_of(problem.dout.view), wanted, offsets,
                              problem.options, context);
    EXPECT_TRUE(same_bits(copy_as<Sum>(ragged.out.view), copy_as<Sum>(batched.out.view))) << "out";
    EXPECT_TRUE(same_bits(transposed_rows(lse, each.batch, each.num_heads, each.q_len, false), batched.lse)) << "lse";
    for (std::size_t g = 0; g < 3; ++g) {
      EXPECT_TRUE(same_bits(copy_as<Sum>(ragged.gradients.views[g]), copy_as<Sum>(batched.gradients.views[g]))) << g;
    }
    EXPECT_TRUE(same_bits(ragged.dbias, batched.dbias)) << "dbias";
    EXPECT_TRUE(same_bits(ragged.dposition, batched.dposition)) << "dposition_bias";
    expect_near(ragged.dsinks, batched.dsinks, "dsinks");  // the same terms, but each sequence's sum is rounded
    EXPECT_TRUE(ragged.sentinels_intact());
  }
}

TEST(VarlenErrors, OffsetsAreChecked) {
  Tensor<float> q({4, 2, 8}), k({5, 1, 8}), v({5, 1, 8}), out({4, 2, 8});
  const std::vector<Index> good_q{0, 3, 4}, good_k{0, 3, 5};
  const auto error = [&](std::vector<Index> q_offsets, std::vector<Index> kv_offsets, AttentionOptions options = {}) {
    try {
      attention_varlen_forward(q, k, v, out, {}, {q_offsets, kv_offsets}, options);
    } catch (const Error& wrong) {
      return std::string(wrong.what());
    }
    return std::string();
  };
  EXPECT_EQ(error(good_q, good_k), "");
  EXPECT_EQ(error({}, {}), "[attention_varlen_forward] q_offsets must have one number more than there are sequences: got none");
  EXPECT_EQ(error({0, 4}, good_k),
            "[attention_varlen_forward] q_offsets and kv_offsets must have the same number of sequences: got 2 and 3 numbers");
  EXPECT_EQ(error({1, 3, 4}, good_k), "[attention_varlen_forward] q_offsets must start at 0: got 1");
  EXPECT_EQ(error(good_q, {0, 6, 5}), "[attention_varlen_forward] kv_offsets must not fall: got 6, then 5 at 2");
  EXPECT_EQ(error({0, 3, 3}, good_k), "[attention_varlen_forward] q_offsets must end at the number of tokens: got 3 for 4");
  EXPECT_NE(error(good_q, good_k, {.mask = Mask::causal()}), "");  // the second sequence has Tq 1, Tk 2
  const Tensor<float> small({1, 2, 3, 2});
  EXPECT_EQ(error(good_q, good_k, {.bias = small}),
            "[attention_varlen_forward] bias must have sizes [B|1, H|1, longest Tq|1, longest Tk|1]: got [1, 2, 3, 2] for [2, "
            "2, 3, 3]");
}

TEST(VarlenErrors, OutputsAreChecked) {
  Tensor<float> q({4, 2, 8}), k({5, 1, 8}), v({5, 1, 8}), out({4, 2, 8}), dk({5, 2, 8}), lse({4, 2});
  const std::vector<Index> q_offsets{0, 3, 4}, kv_offsets{0, 3, 5};
  EXPECT_THROW(attention_varlen_forward(q, k, v, v, {}, {q_offsets, kv_offsets}), ShapeError);
  EXPECT_THROW(attention_varlen_forward(q, k, v, q, {}, {q_offsets, kv_offsets}), ShapeError);
  EXPECT_THROW(attention_varlen_backward(q, k, v, out, lse, out, {.dk = dk}, {q_offsets, kv_offsets}), ShapeError);
}

TEST(VarlenErrors, NoSequences) {
  const Tensor<float> q({0, 2, 8}), k({0, 1, 8}), v({0, 1, 8});
  Tensor<float> out({0, 2, 8});
  const std::vector<Index> none{0};
  attention_varlen_forward(q, k, v, out, {}, {none, none});
}

}  // namespace
}  // namespace qkv::test

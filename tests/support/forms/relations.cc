#include "support/forms/relations.h"

#include <optional>

#include "dispatch/kernels.h"
#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {

namespace {

using Outputs = std::vector<Tensor<double>>;
constexpr unsigned kAll = ~0U;

/// A form's outputs, its own behind the others.
template <class T>
Outputs computed(const Form<T>& form, const Problem<T>& problem, Context& context, unsigned asked = kAll) {
  Result<T> result(problem);
  run_form(form, problem, result, asked, context);
  EXPECT_TRUE(result.sentinels_intact()) << "an element outside the outputs was written";
  Outputs all = outputs_of(result, asked & form.gives);
  if (form.more == nullptr || asked / kMore == 0) return all;
  for (Tensor<double>& own : form.more(problem, asked / kMore, context)) all.push_back(std::move(own));
  return all;
}

template <class T> std::string name_of(const Form<T>& form, std::size_t output) {
  return output < kOutputNames.size() ? kOutputNames[output] : form.more_names.at(output - kOutputNames.size());
}

/// The same numbers: zeros of either sign, any NaN.
bool same_numbers(const Tensor<double>& a, const Tensor<double>& b) {
  return std::ranges::equal(
      a.span(), b.span(), [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

/// `zeros`: outputs whose zeros may differ in sign.
template <class T>
void expect_same(const Form<T>& form, const Outputs& a, const Outputs& b, unsigned outputs = kAll, unsigned zeros = 0) {
  ASSERT_LE(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) {
    if ((outputs >> n & 1U) == 0) continue;
    EXPECT_TRUE((zeros >> n & 1U) != 0 ? same_numbers(a[n], b[n]) : same_bits(a[n], b[n])) << name_of(form, n);
  }
}

template <class T> void textbook(const Form<T>& form, const AttentionCase& each, Worst& worst) {
  if (form.gives % kMore == 0) return;
  const Problem<T> problem(each);
  const bool own_bits = form.bits == 0;
  const unsigned bounded = form.gives % kMore & ~form.bits & ~(problem.sinks.data() == nullptr ? kDsinks : 0U) &
                           ~(problem.position_table.data() == nullptr ? kDposition : 0U) &
                           ~(problem.bias.is_null() ? kDbias : 0U);
  std::optional<Expectation<T>> expectation;
  if (bounded != 0) expectation.emplace(problem, (form.gives & kGradients) != 0);
  for_each_isa(2, [&](Context& context) {
    Result<T> result(problem);
    run_form(form, problem, result, kEverything, context);
    EXPECT_TRUE(result.sentinels_intact()) << "an element outside the outputs was written";
    const std::string name = each.name() + " " + std::string(isa_name(context.isa()));
    // A cache of bf16 has its rows widened where a dense call multiplies pairs of them.
    const bool pairs =
        std::is_same_v<T, BFloat16> && form.gives % kMore == kForward && has_bf16_products(context.isa());
    if (expectation) {
      EXPECT_TRUE(expectation->holds_forward(result, name, worst));
      if ((form.gives & kWeights) != 0) {
        EXPECT_TRUE(expectation->holds_weights(result, name, worst));
      }
    }
    if (own_bits || pairs) {
      if (expectation && (form.gives & kGradients) != 0) {
        EXPECT_TRUE(expectation->holds_backward(result, name, worst));
      }
      return;
    }
    const Form<T>& dense = forms<T>().front();
    Result<T> whole(problem);
    run_form(dense, problem, whole, kEverything, context);
    expect_same(form, outputs_of(result), outputs_of(whole), form.bits,
        kDk | kDv | (each.scale == ScaleKind::kZero ? kDq : 0U));
    if (!expectation || (form.gives & kGradients) == 0) return;
    EXPECT_TRUE(expectation->holds_backward(result, name, worst));
  });
}

template <class T> void threads(const Form<T>& form, const AttentionCase& each, Worst&) {
  const Problem<T> problem(each);
  for (const Isa isa : tested_isas()) {
    Context one({.threads = 1, .isa = isa, .executor = nullptr});
    const Outputs expected = computed(form, problem, one);
    expect_same(form, computed(form, problem, one), expected);  // call after call
    const bool every = all_cases() && isa == tested_isas().back();
    const std::vector<int> counts = every ? std::vector{2, 3, 4, 5, 6, 7, 8, 16, 33, 64} : std::vector{2, 5};
    for (const int count : counts) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " threads " + std::to_string(count));
      Context many({.threads = count, .isa = isa, .executor = nullptr});
      many.impl().region_flops = 0;  // regions even for little work
      expect_same(form, computed(form, problem, many), expected);
    }
  }
}

/// Masks that are one for all sequences.
bool counts_no_sequence(MaskKind kind) {
  return kind <= MaskKind::kCausalBottomRight ||
         (kind >= MaskKind::kWindow && kind <= MaskKind::kSliding && kind != MaskKind::kWindowOffsets);
}

template <class V> V of_sequence(const V& view, Index b) {
  return view.is_null() || view.size(0) == 1 ? view : view.sliced(0, b, b + 1);
}

template <class E> void copy_sequence(const View<E, 4>& from, Index b, const View<E, 4>& to) {
  for_each_index(
      {to.size(1), to.size(2), to.size(3)}, [&](Index h, Index t, Index d) { to(0, h, t, d) = from(b, h, t, d); });
}

/// Sequence b alone, with the number b for dropout; it borrows from `whole`.
template <class T>
void make_alone(const Problem<T>& whole, Index b, const View<const std::uint8_t, 4>& keep, Problem<T>& alone) {
  copy_sequence(whole.q(), b, alone.q());
  copy_sequence(whole.k(), b, alone.k());
  copy_sequence(whole.v(), b, alone.v());
  copy_sequence(whole.dout.view, b, alone.dout.view);
  const Index rows = alone.dlse.count();
  std::copy_n(whole.dlse.data() + b * rows, rows, alone.dlse.data());
  alone.options = whole.options;
  alone.options.dropout.first_sequence += b;
  alone.bias = of_sequence(whole.bias, b);
  if (!alone.bias.is_null()) alone.options.bias = alone.bias;
  if (!keep.is_null()) alone.options.mask = Mask::keep(of_sequence(keep, b));
  if (whole.mask.index) {
    const Mask lists = Mask::keys(of_sequence(View<const std::int32_t, 4>(*whole.mask.index), b));
    alone.options.mask = keep.is_null() ? lists : alone.options.mask & lists;
  }
}

template <class T> void alone(const Form<T>& form, const AttentionCase& given, Worst&) {
  AttentionCase each = given;
  if (each.mod == ModKind::kHide) each.mod = ModKind::kBend;  // it counts sequences
  Problem<T> whole(each);
  Tensor<std::uint8_t> memory;
  View<const std::uint8_t, 4> keep;
  if (!counts_no_sequence(each.mask)) {
    memory = Tensor<std::uint8_t>({each.batch, each.num_heads, each.q_len, each.kv_len});
    mask_to_dense(whole.options.mask, memory);
    keep = memory;
    whole.options.mask = Mask::keep(keep);
    if (whole.mask.index)
      whole.options.mask = whole.options.mask & Mask::keys(View<const std::int32_t, 4>(*whole.mask.index));
  }
  AttentionCase one = each;
  one.batch = 1;
  for_each_isa(2, [&](Context& context) {
    const Outputs together = computed(form, whole, context);
    for (Index b = 0; b < each.batch; ++b) {
      SCOPED_TRACE("sequence " + std::to_string(b));
      Problem<T> sequence(one);
      make_alone(whole, b, keep, sequence);
      const Outputs apart = computed(form, sequence, context);
      for (std::size_t n = 0; n < apart.size(); ++n) {
        const Index count = apart[n].count();
        const bool sum = together[n].count() != each.batch * count;  // over sequences
        if ((form.gives >> n & 1U) == 0 || count == 0 || sum) continue;
        const auto bytes = static_cast<std::size_t>(count) * sizeof(double);
        EXPECT_EQ(std::memcmp(apart[n].data(), together[n].data() + b * count, bytes), 0) << name_of(form, n);
      }
    }
  });
}

template <class T> void nan_behind_mask(const Form<T>& form, const AttentionCase& given, Worst&) {
  AttentionCase each = given;
  each.fill = Fill::kNanBehindMask;
  each.empty_row = EmptyRow::kZero;  // the two fills read masked values
  if (!each.legal()) return;
  Problem<T> problem(each);
  std::vector<Outputs> poisoned;
  for_each_isa(2, [&](Context& context) { poisoned.push_back(computed(form, problem, context)); });
  for (const View<T, 4>& view : {problem.k(), problem.v()}) {
    for_each_index(view.sizes(), [&](Index b, Index h, Index t, Index n) {
      if (!std::isfinite(number_as<double>(view(b, h, t, n)))) view(b, h, t, n) = number_as<T>(0.25);
    });
  }
  std::size_t isa = 0;
  for_each_isa(2, [&](Context& context) { expect_same(form, computed(form, problem, context), poisoned[isa++]); });
}

/// The pairs of a mask as bytes, and as a callback, of which nothing is known beforehand: what is skipped leaves no
/// trace.
template <class T> void mask_written_out(const Form<T>& form, const AttentionCase& each, Worst&) {
  Problem<T> problem(each);
  const Mask given = problem.options.mask;
  if (given.keeps_everything() || given.describe().find("keys[") != std::string::npos)
    return;  // lists may be read alone
  Tensor<std::uint8_t> pairs({each.batch, each.num_heads, each.q_len, each.kv_len});
  mask_to_dense(given, pairs);
  const View<const std::uint8_t, 4> keep = pairs;
  const Mask callback = Mask::mask_mod([=](Index b, Index h, Index i, Index j) { return keep(b, h, i, j) != 0; });
  for_each_isa(2, [&](Context& context) {
    problem.options.mask = given;
    const Outputs expected = computed(form, problem, context);
    for (const Mask& mask : {Mask::keep(keep), callback}) {
      problem.options.mask = mask;
      expect_same(
          form, computed(form, problem, context), expected, kAll, kDq | kDk | kDv);  // -0 where zeros were not added
    }
  });
}

/// The same bits on every instruction set, with any number of threads; NaN of any bits is NaN.
template <class T> void invariant_everywhere(const Form<T>& form, const AttentionCase& each, Worst&) {
  const Problem<T> problem(each);
  const auto run = [&](Context& context) {
    Outputs got = computed(form, problem, context);
    for (Tensor<double>& output : got) {
      for (double& x : output.span()) x = std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x;
    }
    return got;
  };
  expect_on_every_isa(run, [&](const Outputs& got, const Outputs& first) { expect_same(form, got, first); });
}

template <class T> void subset_of_outputs(const Form<T>& form, const AttentionCase& each, Worst&) {
  const Problem<T> problem(each);
  for_each_isa(2, [&](Context& context) {
    const Outputs all = computed(form, problem, context);
    for (unsigned n = 0; n < all.size(); ++n) {
      if ((form.gives >> n & 1U) == 0 || all[n].rank() == 0) continue;
      expect_same(form, computed(form, problem, context, 1U << n), all, 1U << n);
    }
  });
}

template <class T> void accumulate(const Form<T>& form, const AttentionCase& given, Worst&) {
  if ((form.gives & kGradients) == 0) return;
  AttentionCase each = given;
  each.fill = Fill::kUniform;
  const Problem<T> problem(each);
  for_each_isa(2, [&](Context& context) {
    Result<T> result(problem);
    run_form(form, problem, result, kEverything, context);
    const Outputs plain = outputs_of(result);
    for (const View<T, 4>& view : result.gradients.views) {
      for_each_index(view.sizes(),
          [&](Index b, Index h, Index t) { std::fill_n(&view(b, h, t, 0), view.size(3), number_as<T>(3.0)); });
    }
    for (Tensor<Accumulator<T>>* x : {&result.dbias, &result.dsinks, &result.dposition})
      std::ranges::fill(x->span(), Accumulator<T>(3));
    run_form(form, problem, result, kGradients, context, true);
    EXPECT_TRUE(result.sentinels_intact());
    const Outputs added = outputs_of(result);
    for (std::size_t n = 3; n < added.size(); ++n) {
      if ((form.gives >> n & 1U) == 0 || plain[n].rank() == 0) continue;
      double largest = 3;
      for (const auto x : plain[n].span()) {
        if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
      }
      // 3 may be first or last in a chain of sums; both may have been rounded.
      const double chain =
          static_cast<double>(each.q_len + each.kv_len) * std::numeric_limits<Accumulator<T>>::epsilon();
      const double unit = n < 6 ? kUnitRoundoff<T> : 0;
      for (Index i = 0; i < added[n].count(); ++i) {
        const double before = static_cast<double>(plain[n].data()[i]), after = static_cast<double>(added[n].data()[i]);
        if (std::isnan(before) && std::isnan(after)) continue;
        ASSERT_NEAR(after, before + 3, 8 * chain * largest + unit * (std::abs(before) + std::abs(after)))
            << kOutputNames[n];
      }
    }
  });
}

template <class T> void errors_write_nothing(const Form<T>& form, const AttentionCase& each, Worst&) {
  Problem<T> problem(each);
  const double softcap = problem.options.softcap;
  Context context({.threads = 2});
  Result<T> result(problem);
  const Outputs untouched = outputs_of(result);
  problem.options.softcap = -1;
  for (const unsigned asked : {kForward, unsigned{kWeights}}) {
    if ((asked & form.gives) == 0) continue;
    EXPECT_THROW(run_form(form, problem, result, asked, context), OptionError);
  }
  expect_same(form, outputs_of(result), untouched);
  if ((form.gives & kGradients) == 0) return;
  problem.options.softcap = softcap;
  run_form(form, problem, result, kForward, context);
  problem.options.softcap = -1;
  EXPECT_THROW(
      form.backward(problem, result, {.dq = result.gradients.views[0], .dlse = problem.dlse}, context), OptionError);
  expect_same(form, outputs_of(result), untouched, kGradients);
}

/// Runs a region's items on the calling thread and notes how many there were.
class Counting final : public Executor {
 public:
  static constexpr int kMost = 1024;
  int concurrency() const override { return kMost; }
  void run(int workers, const std::function<void(int)>& body) override {
    most = std::max(most, workers);
    for (int worker = 0; worker < workers; ++worker) body(worker);
  }
  int most = 0;
};

template <class T> void plan_is_what_ran(const Form<T>& form, const AttentionCase& each, Worst&) {
  if (form.plan == nullptr || !counts_no_sequence(each.mask)) return;  // dense masks have regions of their own
  const Problem<T> problem(each);
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    const auto counting = std::make_shared<Counting>();
    Context context({.threads = Counting::kMost, .isa = isa, .executor = counting});
    context.impl().region_flops = 0;
    const AttentionPlan plan = form.plan(problem, context);
    if (plan.work_items < 2 || plan.work_items >= Counting::kMost) continue;
    counting->most = 0;
    Result<T> result(problem);
    form.forward(problem, {.out = result.out.view, .lse = result.lse}, context);
    EXPECT_EQ(counting->most, plan.work_items) << plan.algorithm;
  }
}

}  // namespace

template <class T> const std::vector<Relation<T>>& relations() {
  static const std::vector<Relation<T>> all = {{"textbook", textbook<T>, 128}, {"threads", threads<T>, 192},
      {"alone", alone<T>, 128}, {"nan", nan_behind_mask<T>, 48}, {"mask", mask_written_out<T>, 96},
      {"everywhere", invariant_everywhere<T>, 128}, {"subset", subset_of_outputs<T>, 256},
      {"accumulate", accumulate<T>, 192}, {"errors", errors_write_nothing<T>, 256}, {"plan", plan_is_what_ran<T>, 48}};
  return all;
}

template <class T> std::vector<AttentionCase> cases_of(const Form<T>& form, const Relation<T>& relation) {
  static const std::vector<AttentionCase> list = pairwise_cases(2e5);
  std::vector<AttentionCase> given;
  if (form.own != nullptr) {
    given = part_for<T>(form.own(), 4);
  } else {
    given = part_for<T>(list, relation.step);
    for (const AttentionCase& each : part_for<T>(long_cases(), 4)) given.push_back(each);
  }
  std::vector<AttentionCase> taken;
  for (const AttentionCase& each : given) {
    const std::optional<AttentionCase> made = form.of(each);
    if (made && made->legal()) taken.push_back(*made);
  }
  return taken;
}

#define QKV_TEST_RELATIONS(T)                           \
  template const std::vector<Relation<T>>& relations(); \
  template std::vector<AttentionCase> cases_of<T>(const Form<T>&, const Relation<T>&);
QKV_TEST_TYPES(QKV_TEST_RELATIONS)

}  // namespace qkv::test

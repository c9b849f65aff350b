// Families over attention's case list: forward, weights and backward; second order; captures; the same as ragged
// sequences.
#include <algorithm>
#include <string_view>

#include "support/cases/product.h"
#include "support/checks/check_capture.h"
#include "support/checks/check_case.h"
#include "support/checks/second_expect.h"
#include "support/forms/relations.h"
#include "support/random.h"
#include "sweep/family.h"

namespace qkv::test {
namespace {

constexpr std::array kScores = {
    Option::kMask, Option::kBias, Option::kSoftcap, Option::kSinks, Option::kPosition, Option::kMod, Option::kDropout};
constexpr std::array kSmooth = {
    Option::kMask, Option::kBias, Option::kSoftcap, Option::kSinks, Option::kPosition, Option::kDropout};
constexpr std::array kRagged = {
    Option::kMask, Option::kBias, Option::kSoftcap, Option::kSinks, Option::kPosition, Option::kMod};
constexpr std::array kLooks = {Option::kMask, Option::kBias, Option::kDropout, Option::kEmptyRow, Option::kSinks};
constexpr std::array kNoMod = {Option::kMod, Option::kCache};
constexpr std::array kNoCache = {Option::kCache};

double work_of(Index n) { return n % kLargeEvery == 0 ? kPairwiseWork : kProductWork; }

/// One of `count` types, drawn independently of the case's options.
Index type_of(Index n, Index count) { return Random(static_cast<std::uint64_t>(n) + 0x7E57).below(count); }

/// Runs check(type) with one of the types in turn.
template <class Check> void in_one_type(Index n, const Check& check) {
  const Index type = type_of(n, 4);
  if (type == 0) check(float{});
  if (type == 1) check(double{});
  if (type == 2) check(BFloat16{});
  if (type == 3) check(Float16{});
}

bool run_attention(Index n, Worst& worst) {
  const auto each = product_case(n, kScores, {}, work_of(n));
  if (!each) return false;
  in_one_type(n, [&]<class T>(T) { check_case<T>(*each, worst); });
  return true;
}

bool run_second_order(Index n, Worst& worst) {
  const auto each = product_case(n, kSmooth, kNoMod, work_of(n) / 2);
  if (!each) return false;
  if (type_of(n, 2) == 0) {
    check_second_case<float>(*each, worst);
  } else {
    check_second_case<double>(*each, worst);
  }
  return true;
}

bool run_capture(Index n, Worst& worst) {
  const auto each = product_case(n, kLooks, kNoCache, work_of(n));
  if (!each) return false;
  in_one_type(n, [&]<class T>(T) {
    check_capture_forward<T>(*each, worst);
    check_capture_backward<T>(*each, worst);
  });
  return true;
}

bool run_sequences(Index n, Worst& worst) {
  const auto each = product_case(n, kRagged, kNoCache, work_of(n));
  if (!each) return false;
  in_one_type(n, [&]<class T>(T) {
    const Form<T>& ragged = *std::ranges::find(forms<T>(), std::string_view("ragged"), &Form<T>::name);
    relations<T>().front().check(ragged, *ragged.of(*each), worst);
  });
  return true;
}

}  // namespace

Family attention_family() {
  return {"attention", "mask x bias x soft cap x sinks x position bias x callback x dropout; one of four types",
      "heads, lengths, widths, layout, numbers, scale, empty rows, cache", product_count(kScores), run_attention};
}
Family second_order_family() {
  return {"second-order", "mask x bias x soft cap x sinks x position bias x dropout; f32 or f64",
      "heads, lengths, widths, layout, numbers, scale, empty rows", product_count(kSmooth), run_second_order};
}
Family capture_family() {
  return {"capture", "mask x bias x dropout x empty rows x sinks; one of four types",
      "what is asked for, heads, lengths, widths, layout, numbers, soft cap, scale, position bias, callback",
      product_count(kLooks), run_capture};
}
Family sequences_family() {
  return {"sequences",
      "mask x bias x soft cap x sinks x position bias x callback, as a ragged batch; one of four types",
      "heads, lengths, widths, numbers, scale, dropout, empty rows", product_count(kRagged), run_sequences};
}

}  // namespace qkv::test

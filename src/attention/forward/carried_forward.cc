#include "attention/forward/carried_forward.h"

#include "attention/forward/forward_checks.h"
#include "attention/forward/saved_rows.h"

namespace qkv::inline v0 {

struct [[gnu::visibility("hidden")]] CarriedForward::Impl {
  CarriedProblem problem;
  StripRows strips;
  StripCopy q, out, lse;
  std::optional<SavedRows> rows;
  bool again = false;  // the keys are added a second time

  Impl(const AnyView& given_q, const KeySizes& keys, const AnyView& to, const AnyView& lse_to,
      const AttentionOptions& options, Context& context)
      : problem("attention_forward", given_q, keys, options, context),
        strips(rows_of_forward(problem.p, false, false)),
        q(given_q, strips),
        out(to, strips),
        lse(lse_to, strips) {
    check_outputs_of("attention_forward", problem.p, {.out = to, .lse = lse_to});
    problem.p = widened(problem.p, strips, q.wide());
    rows.emplace(problem.p, Outputs{.out = out.wide(), .lse = lse.wide()}, context);
  }
};

bool carries_forward(
    const AnyView& q, const KeySizes& keys, Index queries, const AttentionOptions& options, Context& context) {
  return options.empty_row != EmptyRow::kMean && is_tiled(q, keys, queries, options, context, false);
}

CarriedForward::CarriedForward(const AnyView& q, const KeySizes& keys, const AnyView& out, const AnyView& lse,
    const AttentionOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(q, keys, out, lse, options, context)) {}
CarriedForward::~CarriedForward() = default;

void CarriedForward::add(const KeyChunk& chunk) {
  impl_->problem.p.keys.read(chunk.k, chunk.v, chunk.begin);
  impl_->rows->add(chunk.begin, chunk.end());
}

bool CarriedForward::finish() {
  impl_->again = impl_->rows->finish() && !impl_->again;
  impl_->out.copy_back();
  impl_->lse.copy_back();
  return impl_->again;
}

}  // namespace qkv::inline v0

#include "dist/call.h"

#include <exception>
#include <tuple>

#include "core/check.h"
#include "qkv/dist/reduce.h"

namespace qkv::inline v0::dist {
namespace {

/// "f32 [1, 8, T, 64]": T is each rank's own.
std::string sizes_but_length(const AnyView& x) {
  return std::string(storage_name(x.type)) + " [" + std::to_string(x.sizes[0]) + ", " + std::to_string(x.sizes[1]) +
         ", T, " + std::to_string(x.sizes[3]) + "]";
}

/// The options on which all ranks must agree, in words. Not lengths, which differ.
std::vector<Claim> claims_of(const ParallelCall& call) {
  const ContextParallelOptions& cut = call.cut;
  const AttentionOptions& o = call.options;
  return {{"call", call.function}, {"q", sizes_but_length(call.x.q)}, {"k", sizes_but_length(call.x.k)},
      {"v", sizes_but_length(call.x.v)}, {"layout", cut.layout == Layout::kZigZag ? "zig-zag" : "contiguous"},
      {"method", cut.method == Method::kAllGather ? "all-gather"
                 : cut.method == Method::kUlysses ? "ulysses"
                                                  : "ring"},
      {"block", std::to_string(cut.block)}, {"turns", std::to_string(cut.turns)}, {"chunk", std::to_string(cut.chunk)},
      {"instruction set", call.invariant() ? "any" : std::string(isa_name(call.context.isa()))},
      {"bits", std::string(bits_name(call.invariant() ? Bits::kInvariant : Bits::kFast))}, {"mask", o.mask.describe()},
      {"bias", o.bias.f32.is_null() ? o.bias.f64.shape() : o.bias.f32.shape()},
      {"scale", o.scale ? number_text(*o.scale) : "1/sqrt(D)"}, {"softcap", number_text(o.softcap)},
      {"empty_row", std::to_string(static_cast<int>(o.empty_row))},
      {"dropout", o.dropout.active() ? number_text(o.dropout.p) + ", seed " + std::to_string(o.dropout.seed) +
                                           ", first sequence " + std::to_string(o.dropout.first_sequence)
                                     : "off"},
      {"sinks", o.sinks.f32.is_null() ? o.sinks.f64.shape() : o.sinks.f32.shape()},
      {"position_bias", std::to_string(o.position_bias.rows()) + " x " + std::to_string(o.position_bias.heads())},
      {"score_mod", o.score_mod == nullptr ? "not given" : "given"}};
}

}  // namespace

void ParallelCall::check_rows() const {
  const auto& [q, k, v] = std::tie(x.q, x.k, x.v);
  check<ShapeError>(k.size(0) == q.size(0) && v.size(0) == q.size(0), function,
      "q, k and v must have the same batch: got q ", q, ", k ", k, ", v ", v);
  check<ShapeError>(k.size(3) == q.size(3), function, "head_dim of k must equal head_dim of q: got q ", q, ", k ", k);
  check<ShapeError>(k.size(1) == v.size(1) && k.size(2) == v.size(2), function,
      "heads and length of v must equal those of k: got k ", k, ", v ", v);
  check<ShapeError>(k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0, function,
      "heads of k must divide heads of q: got q ", q, ", k ", k);
  for (const auto& [name, of] : {std::pair("q", &q), {"k", &k}, {"v", &v}}) check_last_stride(function, name, *of);
  const detail::Part& part = options.part;
  check<OptionError>(part.first_query == 0 && part.queries < 0 && part.first_head == 0 && part.heads < 0, function,
      "part must be left alone: it follows from the ranks' rows");
  check<UnsupportedError>(options.capture.what == nullptr, function,
      "captures are not supported: capture on one machine, by attention_forward");
  check<UnsupportedError>(cut.method != Method::kUlysses || k.size(1) % transport.size() == 0, function,
      "Ulysses gives each rank the same number of key/value heads: take Method::kAllGather, or a number of ranks that "
      "divides them: got ",
      k.size(1), " heads, ", transport.size(), " ranks");
}

void ParallelCall::check_row_numbers(const char* name, const AnyView& of) const {
  const std::array<Index, 4> wanted{x.q.size(0), x.q.size(1), x.q.size(2)};
  check<ShapeError>(
      of.sizes == wanted, function, name, " must be ", [&] { return shape_text(wanted.data(), 3); }, ": got ", of);
}

void ParallelCall::agree(std::vector<Claim> claims, const std::function<void()>& checks) {
  const std::vector<Claim> common = claims_of(*this);
  claims.insert(claims.begin(), common.begin(), common.end());
  std::exception_ptr wrong;
  std::string text = "as expected";
  try {
    check_rows();
    checks();
  } catch (const Error& error) {
    wrong = std::current_exception();
    text = error.what();
  }
  claims.insert(claims.begin(), Claim{"arguments", text});
  dist::agree(transport, claims);
  if (wrong) std::rethrow_exception(wrong);
  share_lengths();
}

void ParallelCall::share_lengths() {
  const std::vector<std::vector<Index>> lengths = from_all<Index>(transport, {x.q.sizes[2], x.k.sizes[2]});
  queries = sequence_of("q", lengths, 0);
  keys = sequence_of("k", lengths, 1);
  for (const std::vector<Rows>& rows : queries.of_rank) needed.push_back(keys_of(rows));
}

/// By the mask's verdicts on blocks of keys. The two fills of empty rows read every value.
std::vector<Rows> ParallelCall::keys_of(const std::vector<Rows>& rows) const {
  constexpr Index block = 128;
  if (options.mask.keeps_everything() || options.empty_row != EmptyRow::kZero) return keys.all();
  const std::array<Index, 4> sizes{x.q.sizes[0], x.q.sizes[1], queries.length, keys.length};
  std::vector<Rows> live;
  for (Index begin = 0; begin < keys.length; begin += block) {
    const Index end = std::min(begin + block, keys.length);
    const bool any = std::ranges::any_of(
        rows, [&](const Rows& some) { return mask_may_keep(options.mask, sizes, some.begin, some.end, begin, end); });
    if (any) append(live, {begin, end});
  }
  return live;
}

Sequence ParallelCall::sequence_of(
    const char* name, const std::vector<std::vector<Index>>& lengths, std::size_t which) const {
  Sequence whole;
  for (const std::vector<Index>& length : lengths) whole.length += length[which];
  whole.of_rank = rows_of_ranks(cut, whole.length, transport.size());
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    check<ShapeError>(lengths[n][which] == whole.count(n), function, "every rank must hold rows(T): of T ",
        whole.length, " rows of ", name, ", rank ", n, " must hold ", whole.count(n), ": got ", lengths[n][which]);
  }
  return whole;
}

RankShares::RankShares(const Gradients& wanted) : wanted_(wanted) {
  for (std::size_t n = 0; n < sums_.size(); ++n) {
    const AnyView& gradient = wanted.*kShared[n];
    if (!gradient.is_null()) sums_[n] = Buffer(gradient, gradient.type);
  }
}

bool RankShares::any() const {
  return std::ranges::any_of(sums_, [](const Buffer& sums) { return !sums.view.is_empty(); });
}

void RankShares::add(Gradients gradients, const std::function<void(const Gradients&)>& compute) {
  RankShares piece(wanted_);
  for (std::size_t n = 0; n < sums_.size(); ++n) gradients.*kShared[n] = piece.sums_[n].view;
  compute(gradients);
  for (std::size_t n = 0; n < sums_.size(); ++n) {
    write(sums_[n].view, piece.sums_[n].view, true);
  }
}

void RankShares::finish(Transport& transport) {
  for (std::size_t n = 0; n < sums_.size(); ++n) {
    const AnyView& sums = sums_[n].view;
    if (sums.is_empty()) continue;
    with_sums(sums.type, [&]<class Sum>(Sum) {
      reduce_sum(transport, std::span(reinterpret_cast<Sum*>(sums.data), static_cast<std::size_t>(count_of(sums))));
    });
    write(wanted_.*kShared[n], sums, wanted_.accumulate);
  }
}

}  // namespace qkv::inline v0::dist

// Leaves of which each query keeps one interval of keys: bands of diagonals, bounds, chunks, documents. Both ends of
// the interval ascend from query to query, so that the first and the last query of a tile answer for all.
#include <optional>
#include <string_view>

#include "attention/mask/part.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

/// Leaf::rows(pairs) makes a function from a query to the keys that it keeps.
template <class Leaf> class Intervals : public MaskPart {
 public:
  int verdict(const Pairs& t) const final {
    auto row = leaf().rows(t);
    const Positions first = row(t.i0), last = row(t.i0 + t.ni - 1);
    if (t.j0 + t.nj <= first.begin || t.j0 >= last.end) return kTileEmpty;
    return t.j0 >= last.begin && t.j0 + t.nj <= first.end ? kTileFull : kTilePartial;
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    auto row = leaf().rows(t);
    Positions keys[32];
    for (Index i = 0; i < t.ni; ++i) keys[i] = row(t.i0 + i);
    const Positions first = keys[0], last = keys[t.ni - 1];
    const Index begin = std::clamp<Index>(first.begin - t.j0, 0, t.nj), end = std::clamp(last.end - t.j0, begin, t.nj);
    const Index whole = std::clamp(last.begin - t.j0, begin, end);  // from here on every query keeps keys ...
    const Index behind = std::clamp(first.end - t.j0, whole, end);  // ... up to here
    std::fill_n(lane_masks, begin, 0U);
    Index ended = 0, begun = 0;  // queries whose intervals end at or before key j, and that begin there or before
    for (Index j = begin; j < end;) {
      if (j == whole && whole < behind) {
        j = behind;
        continue;
      }
      while (ended < t.ni && keys[ended].end <= t.j0 + j) ++ended;
      while (begun < t.ni && keys[begun].begin <= t.j0 + j) ++begun;
      Index next = j < whole ? whole : end;  // lanes are the same up to here
      if (ended < t.ni) next = std::min(next, keys[ended].end - t.j0);
      if (begun < t.ni) next = std::min(next, keys[begun].begin - t.j0);
      const std::uint32_t lanes = bit_range(ended, begun);
      for (; j < next; ++j) lane_masks[j] &= lanes;
    }
    std::fill(lane_masks + end, lane_masks + t.nj, 0U);
  }
  Positions keys(const Pairs& t) const final {
    auto row = leaf().rows(t);
    return {row(t.i0).begin, row(t.i0 + t.ni - 1).end};
  }

 private:
  const Leaf& leaf() const { return static_cast<const Leaf&>(*this); }
};

/// keep(i, j) = low <= j - i <= high
struct Diagonals {
  Index low, high;
};

std::vector<Index> copy_of(IndexSpan values) { return {values.begin(), values.end()}; }

/// keep = c - left <= j <= c + right with c = i + offset; -1 is unbounded. Causal is the band (-1, 0). With offsets,
/// [B] or inside documents one for each, these say where the diagonal lies, not the alignment.
class Band final : public Intervals<Band> {
 public:
  Band(Index left, Index right, Align align, std::optional<std::vector<Index>> offsets = {}, bool causal = true)
      : left_(left), right_(right), align_(align), offsets_(std::move(offsets)), causal_(causal) {}

  const char* name() const { return causal_ ? "causal" : "window"; }
  const std::optional<std::vector<Index>>& offsets() const { return offsets_; }
  /// Its intervals in a call, or a document, of these sizes; `n`: of which offset.
  Diagonals at(std::size_t n, Index q_len, Index kv_len) const {
    const Index offset = offsets_ ? (*offsets_)[n] : alignment_offset(align_, q_len, kv_len);
    Index edge = 0;
    const bool no_low = left_ < 0 || __builtin_sub_overflow(offset, left_, &edge);
    const Index low = no_low ? -kFar : std::clamp(edge, -kFar, kFar);
    const bool no_high = right_ < 0 || __builtin_add_overflow(offset, right_, &edge);
    return {low, no_high ? kFar : std::clamp(edge, -kFar, kFar)};
  }
  Diagonals diagonals(const Pairs& t) const {
    return at(static_cast<std::size_t>(t.b), t.extent.q_len, t.extent.kv_len);
  }
  auto rows(const Pairs& t) const {
    return [d = diagonals(t)](Index i) { return Positions{i + d.low, i + d.high + 1}; };
  }
  /// The same without a walk along the queries: small calls are mostly this.
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const Diagonals d = diagonals(t);
    const Index low = t.i0 + d.low - t.j0, high = t.i0 + d.high + 1 - t.j0;  // the keys of query t.i0: [low, high)
    const Index whole = std::clamp<Index>(low + t.ni - 1, 0, t.nj), behind = std::clamp(high, whole, t.nj);
    for (Index j = 0; j < whole; ++j) lane_masks[j] &= bit_range(j + 1 - high, j + 1 - low);
    for (Index j = behind; j < t.nj; ++j) lane_masks[j] &= bit_range(j + 1 - high, j + 1 - low);
  }
  std::string text(bool) const override {
    const std::string suffix = offsets_ ? ", offsets[" + std::to_string(offsets_->size()) + "]" : align_suffix(align_);
    if (causal_) return "causal(" + (suffix.empty() ? suffix : suffix.substr(2)) + ")";
    return "window(" + std::to_string(left_) + ", " + std::to_string(right_) + suffix + ")";
  }
  /// Throws OptionError where it has no offsets and does not say where its diagonal lies.
  void check_sizes(Index q_len, Index kv_len, const char* function) const {
    if (!offsets_) check_square(function, name(), align_, q_len, kv_len);
  }
  void check(const MaskExtent& extent, bool key_lengths, const char* function) const override {
    check_sizes(extent.q_len, extent.kv_len, function);
    if (offsets_)
      return check_one_each(
          function, causal_ ? "causal(offsets)" : "window(..., offsets)", offsets_->size(), extent.batch);
    qkv::check<OptionError>(!(align_ == Align::kBottomRight && key_lengths && extent.q_len > 1), function, name(),
        "(Align::kBottomRight) refers to Tk, not to key lengths, and would show the future: use ", name(),
        "(offsets) with one offset per sequence: got key lengths and Tq ", extent.q_len);
  }

 private:
  Index left_, right_;
  Align align_;
  std::optional<std::vector<Index>> offsets_;
  bool causal_;  // whether it was written as causal(), for texts
};

void check_window(Index left, Index right) {
  check<OptionError>(left >= -1 && right >= -1, "Mask::window",
      "left and right must be counts of other tokens, or -1 for unbounded: got ", left, ", ", right);
}

/// Throws OptionError unless each sequence's value, but for one that is not of the call, lies within [0, length].
template <class... Words> void check_values(const MaskExtent& extent, const std::vector<Index>& values, Index length,
    const char* function, const Words&... words) {
  for (Index b = 0; b < extent.batch; ++b) {
    if (extent.only >= 0 && b != extent.only) continue;
    const Index value = values[static_cast<std::size_t>(b)];
    check<OptionError>(value >= 0 && value <= length, function, words..., ": got ", value, " for ", length);
  }
}

/// keep = position < bounds[b], or position >= bounds[b].
class Bound final : public Intervals<Bound> {
 public:
  /// `below`: keeps positions below the bound, or from it on.
  Bound(const char* name, bool on_keys, bool below, IndexSpan bounds)
      : name_(name), on_keys_(on_keys), below_(below), bounds_(copy_of(bounds)) {}
  /// first(n): one bound for all, of any size.
  explicit Bound(Index n) : name_("first"), on_keys_(true), below_(true), for_all_(true), bounds_{n} {}

  auto rows(const Pairs& t) const {
    const Index bound = bounds_[for_all_ ? 0 : static_cast<std::size_t>(t.b)], all = t.extent.kv_len;
    const Index queries = on_keys_ ? kFar : bound;  // that keep any key
    const Positions kept = !on_keys_ ? Positions{0, all} : below_ ? Positions{0, bound} : Positions{bound, all};
    return [=](Index i) { return i < queries ? kept : Positions{all, all}; };
  }
  bool holds_key_lengths() const override { return std::string_view(name_) == "key_lengths"; }
  std::string text(bool) const override {
    return for_all_ ? "first(" + std::to_string(bounds_[0]) + ")"
                    : name_ + ("[" + std::to_string(bounds_.size()) + "]");
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    if (for_all_) return;
    check_one_each(function, name_, bounds_.size(), extent.batch);
    check_values(extent, bounds_, on_keys_ ? extent.kv_len : extent.q_len, function, "each value of ", name_,
        " must be in 0..", on_keys_ ? "Tk" : "Tq");
  }

 private:
  const char* name_;
  bool on_keys_, below_, for_all_ = false;
  std::vector<Index> bounds_;  // [B]
};

/// keep = i + offset and j lie in the same chunk of `size` keys counted from starts[b], or from 0.
class Chunked final : public Intervals<Chunked> {
 public:
  Chunked(Index size, Align align, std::optional<std::vector<Index>> starts)
      : size_(std::min(size, kFar)), align_(align), starts_(std::move(starts)) {
    qkv::check<OptionError>(size >= 1, "Mask::chunked", "the size of a chunk must be at least 1: got ", size);
  }

  auto rows(const Pairs& t) const {
    const Index start = starts_ ? (*starts_)[static_cast<std::size_t>(t.b)] : 0;
    const Index offset = alignment_offset(align_, t.extent.q_len, t.extent.kv_len) - start;
    return [=, size = size_](Index i) {
      const Index begin = floor_div(i + offset, size) * size + start;
      return Positions{begin, begin + size};
    };
  }
  std::string text(bool) const override {
    return "chunked(" + std::to_string(size_) + (starts_ ? ", starts[" + std::to_string(starts_->size()) + "]" : "") +
           align_suffix(align_) + ")";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_square(function, "chunked", align_, extent.q_len, extent.kv_len);
    if (!starts_) return;
    check_one_each(function, "chunked(size, starts)", starts_->size(), extent.batch);
    check_values(extent, *starts_, extent.kv_len, function, "a start of chunks must be in 0..Tk");
  }

 private:
  Index size_;
  Align align_;
  std::optional<std::vector<Index>> starts_;  // [B]
};

constexpr const char* kDocuments = "Mask::documents";

/// keep = i and j lie in the same document, and on the diagonals that are kept inside it.
class Documents final : public Intervals<Documents> {
 public:
  Documents(
      std::vector<Index> q_offsets, std::vector<Index> k_offsets, std::vector<Diagonals> diagonals, std::string inside)
      : q_(std::move(q_offsets)),
        k_(std::move(k_offsets)),
        diagonals_(std::move(diagonals)),
        inside_(std::move(inside)) {}

  auto rows(const Pairs&) const {
    return [this, document = std::size_t{0}, q = Positions{0, 0}](Index i) mutable {
      if (q_.size() == 1) return Positions{0, 0};
      if (i < q.begin || i >= q.end) {
        document = document_of(i, document + 1);
        q = {q_[document], q_[document + 1]};
      }
      const Positions all{k_[document], k_[document + 1]};
      if (diagonals_.empty()) return all;
      const Diagonals& d = diagonals_[document];
      return Positions{std::clamp(i + d.low, all.begin, all.end), std::clamp(i + d.high + 1, all.begin, all.end)};
    };
  }
  std::string text(bool) const override {
    return "documents[" + std::to_string(q_.size() - 1) + (inside_.empty() ? "" : ", " + inside_) + "]";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    qkv::check<ShapeError>(q_.back() == extent.q_len, function, "the queries of documents must end with Tq ",
        extent.q_len, ": got ", q_.back());
    qkv::check<ShapeError>(k_.back() == extent.kv_len, function, "the keys of documents must end with Tk ",
        extent.kv_len, ": got ", k_.back());
  }

 private:
  /// `next`: where a walk along the queries arrives. Documents of one length are found at once.
  [[gnu::noinline]] std::size_t document_of(Index i, std::size_t next) const {
    const auto even = static_cast<std::size_t>((static_cast<double>(i) + 0.5) * documents_per_query_);
    for (const std::size_t guess : {next, even}) {
      if (guess + 1 < q_.size() && i >= q_[guess] && i < q_[guess + 1]) return guess;
    }
    const auto behind = static_cast<std::size_t>(std::upper_bound(q_.begin(), q_.end(), i) - q_.begin());
    return std::min(behind, q_.size() - 1) - 1;
  }

  std::vector<Index> q_, k_;  // [documents + 1]
  double documents_per_query_ = static_cast<double>(q_.size() - 1) / std::max(1.0, static_cast<double>(q_.back()));
  std::vector<Diagonals> diagonals_;  // [documents] or none: in positions of the whole row
  std::string inside_;
};

std::vector<Index> checked_offsets(const Offsets& offsets, const char* name) {
  std::vector<Index> numbers(offsets.size());
  for (std::size_t d = 0; d < numbers.size(); ++d) numbers[d] = offsets[d];
  check<OptionError>(!numbers.empty(), kDocuments, name, " must have one more value than there are documents: got 0");
  check<OptionError>(numbers[0] == 0, kDocuments, name, " must begin with 0: got ", numbers[0]);
  for (std::size_t d = 1; d < numbers.size(); ++d) {
    check<OptionError>(
        numbers[d] >= numbers[d - 1], kDocuments, name, " must ascend: got ", numbers[d - 1], ", ", numbers[d]);
  }
  check<OptionError>(numbers.back() < kFar, kDocuments, name, " must be positions: got ", numbers.back());
  return numbers;
}

/// The keys that all bands of `inside` keep in each document, in positions of the whole row.
std::vector<Diagonals> diagonals_inside(const Mask::Node& inside, IndexSpan q, IndexSpan k) {
  std::vector<Diagonals> all(q.size() - 1, {-2 * kFar, 2 * kFar});
  for (const MaskPartPtr& part : inside.parts) {
    const auto* band = dynamic_cast<const Band*>(part.get());
    check<OptionError>(band != nullptr, kDocuments,
        "inside documents only causal, window and sliding, joined by &, are allowed: got ",
        [&] { return part->text(true); });
    const std::size_t offsets = band->offsets() ? band->offsets()->size() : all.size();
    check<ShapeError>(offsets == all.size(), kDocuments, band->name(),
        "(offsets) inside documents takes one offset per document: got ", offsets, " for ", all.size());
    for (std::size_t d = 0; d < all.size(); ++d) {
      const Index q_len = q[d + 1] - q[d], kv_len = k[d + 1] - k[d], shift = k[d] - q[d];
      band->check_sizes(q_len, kv_len, kDocuments);
      const Diagonals own = band->at(d, q_len, kv_len);
      all[d] = {std::max(all[d].low, own.low + shift), std::min(all[d].high, own.high + shift)};
    }
  }
  return all;
}

}  // namespace

Mask Mask::causal(Align align) { return Mask(Node::of<Band>(-1, 0, align)); }
Mask Mask::causal(std::span<const Index> offsets) {
  return Mask(Node::of<Band>(-1, 0, Align::kSquare, copy_of(offsets)));
}
Mask Mask::window(Index left, Index right, Align align) {
  check_window(left, right);
  return Mask(Node::of<Band>(left, right, align, std::nullopt, false));
}
Mask Mask::window(Index left, Index right, std::span<const Index> offsets) {
  check_window(left, right);
  return Mask(Node::of<Band>(left, right, Align::kSquare, copy_of(offsets), false));
}
Mask Mask::sliding(Index n, Align align) {
  check<OptionError>(n >= 1, "Mask::sliding", "n must be at least 1, the query's own key: got ", n);
  return window(n - 1, 0, align);
}
Mask Mask::chunked(Index size, Align align) { return Mask(Node::of<Chunked>(size, align, std::nullopt)); }
Mask Mask::chunked(Index size, std::span<const Index> starts, Align align) {
  return Mask(Node::of<Chunked>(size, align, copy_of(starts)));
}

Mask Mask::key_lengths(std::span<const Index> lengths) {
  return Mask(Node::of<Bound>("key_lengths", true, true, lengths));
}
Mask Mask::key_starts(std::span<const Index> starts) {
  return Mask(Node::of<Bound>("key_starts", true, false, starts));
}
Mask Mask::query_lengths(std::span<const Index> lengths) {
  return Mask(Node::of<Bound>("query_lengths", false, true, lengths));
}
Mask Mask::prefix(std::span<const Index> lengths) { return Mask(Node::of<Bound>("prefix", true, true, lengths)); }
Mask Mask::first(Index n) {
  check<OptionError>(n >= 0, "Mask::first", "n must be a count of keys: got ", n);
  return Mask(Node::of<Bound>(n));
}

Mask Mask::documents(const Offsets& offsets) { return documents(offsets, offsets); }
Mask Mask::documents(const Offsets& q_offsets, const Offsets& k_offsets, const Mask& inside) {
  std::vector<Index> q = checked_offsets(q_offsets, "q_offsets"), k = checked_offsets(k_offsets, "k_offsets");
  check<ShapeError>(k.size() == q.size(), kDocuments, "queries and keys must have as many documents: got ",
      q.size() - 1, " and ", k.size() - 1);
  std::vector<Diagonals> diagonals;
  if (inside.node() != nullptr) diagonals = diagonals_inside(*inside.node(), q, k);
  return Mask(Node::of<Documents>(
      std::move(q), std::move(k), std::move(diagonals), inside.keeps_everything() ? "" : inside.describe()));
}

}  // namespace qkv::inline v0

// Leaves of which each query keeps one interval of keys: bands of diagonals, bounds, chunks, documents. Both ends of the interval
// ascend from query to query, so that the first and the last query of a tile answer for all.
#include "attention/mask/leaves.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

/// Leaf::rows(pairs) makes a function from a query to the keys that it keeps.
template <class Leaf>
class Intervals : public MaskPart {
 public:
  int verdict(const Pairs& t) const final {
    auto row = leaf().rows(t);
    const Positions first = row(t.i0), last = row(t.i0 + t.ni - 1);
    if (t.j0 + t.nj <= first.begin || t.j0 >= last.end) return kTileEmpty;
    return t.j0 >= last.begin && t.j0 + t.nj <= first.end ? kTileFull : kTilePartial;
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const final {
    auto row = leaf().rows(t);
    Positions keys[32];
    for (Index i = 0; i < t.ni; ++i) keys[i] = row(t.i0 + i);
    Index ended = 0, begun = 0;  // queries whose intervals end at or before key j, and that begin there or before
    for (Index j = 0; j < t.nj; ++j) {
      while (ended < t.ni && keys[ended].end <= t.j0 + j) ++ended;
      while (begun < t.ni && keys[begun].begin <= t.j0 + j) ++begun;
      lane_masks[j] &= bit_range(ended, begun);
    }
  }
  Positions keys(const Pairs& t) const final {
    auto row = leaf().rows(t);
    return {row(t.i0).begin, row(t.i0 + t.ni - 1).end};
  }
  Positions queries(const Pairs& t) const final {
    auto row = leaf().rows(t);
    const auto first_that = [&](const auto& holds) {  // what holds of a query holds of those after it
      Index from = 0, to = t.extent.q_len;
      while (from < to) {
        const Index middle = from + (to - from) / 2;
        if (holds(row(middle))) {
          to = middle;
        } else {
          from = middle + 1;
        }
      }
      return from;
    };
    return {first_that([&](const Positions& keys) { return keys.end > t.j0; }),
            first_that([&](const Positions& keys) { return keys.begin >= t.j0 + t.nj; })};
  }

 private:
  const Leaf& leaf() const { return static_cast<const Leaf&>(*this); }
};

/// keep(i, j) = low <= j - i <= high
struct Diagonals {
  Index low, high;
};

/// Causal and window: of a call, or inside each document.
class Band final : public Intervals<Band> {
 public:
  explicit Band(BandOptions options) : options_(std::move(options)) {}

  const BandOptions& options() const { return options_; }
  const char* name() const { return options_.causal ? "causal" : "window"; }
  /// What it keeps when its diagonal begins at `offset`.
  Diagonals at(Index offset) const {
    Index edge = 0;
    const bool no_low = options_.left < 0 || __builtin_sub_overflow(offset, options_.left, &edge);
    const Index low = no_low ? -kFar : std::clamp(edge, -kFar, kFar);
    const bool no_high = options_.right < 0 || __builtin_add_overflow(offset, options_.right, &edge);
    return {low, no_high ? kFar : std::clamp(edge, -kFar, kFar)};
  }
  auto rows(const Pairs& t) const {
    const Diagonals d = at(options_.has_offsets ? options_.offsets[static_cast<std::size_t>(t.b)]
                                                : alignment_offset(options_.align, t.extent.q_len, t.extent.kv_len));
    return [d](Index i) { return Positions{i + d.low, i + d.high + 1}; };
  }
  std::string text(bool) const override {
    const BandOptions& o = options_;
    std::string suffix = align_suffix(o.align);
    if (o.has_offsets) suffix = ", offsets[" + std::to_string(o.offsets.size()) + "]";
    if (o.causal) return "causal(" + (suffix.empty() ? suffix : suffix.substr(2)) + ")";
    return "window(" + std::to_string(o.left) + ", " + std::to_string(o.right) + suffix + ")";
  }
  void check(const MaskExtent& extent, bool key_lengths, const char* function) const override {
    if (options_.has_offsets) {
      return check_one_each(function, options_.causal ? "causal(offsets)" : "window(..., offsets)", options_.offsets.size(),
                            extent.batch);
    }
    check_square(function, name(), options_.align, extent.q_len, extent.kv_len);
    qkv::check<OptionError>(!(options_.align == Align::kBottomRight && key_lengths && extent.q_len > 1), function, name(),
                            "(Align::kBottomRight) refers to Tk, not to key lengths, and would show the future: use ", name(),
                            "(offsets) with one offset per sequence: got key lengths and Tq ", extent.q_len);
  }

 private:
  BandOptions options_;
};

/// Throws OptionError unless each sequence's value, but for one that is not of the call, lies within [0, length].
template <class... Words>
void check_values(const MaskExtent& extent, const std::vector<Index>& values, Index length, const char* function,
                  const Words&... words) {
  for (Index b = 0; b < extent.batch; ++b) {
    if (extent.only >= 0 && b != extent.only) continue;
    const Index value = values[static_cast<std::size_t>(b)];
    check<OptionError>(value >= 0 && value <= length, function, words..., ": got ", value, " for ", length);
  }
}

struct BoundWords {
  const char* name;
  bool on_keys, below;  // which axis; keeps positions below the bound, or from it on
};
constexpr BoundWords kBoundWords[] = {
    {"key_lengths", true, true}, {"key_starts", true, false}, {"query_lengths", false, true}, {"prefix", true, true}};

/// keep = position < bounds[b], or position >= bounds[b].
class Bound final : public Intervals<Bound> {
 public:
  Bound(BoundKind kind, IndexSpan bounds)
      : kind_(kind), words_(kBoundWords[static_cast<std::size_t>(kind)]), bounds_(bounds.begin(), bounds.end()) {}

  auto rows(const Pairs& t) const {
    const Index bound = bounds_[static_cast<std::size_t>(t.b)], all = t.extent.kv_len;
    const Index queries = words_.on_keys ? kFar : bound;  // that keep any key
    const Positions kept = !words_.on_keys ? Positions{0, all} : words_.below ? Positions{0, bound} : Positions{bound, all};
    return [=](Index i) { return i < queries ? kept : Positions{all, all}; };
  }
  bool holds_key_lengths() const override { return kind_ == BoundKind::kKeyLengths; }
  std::string text(bool) const override { return words_.name + ("[" + std::to_string(bounds_.size()) + "]"); }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_one_each(function, words_.name, bounds_.size(), extent.batch);
    check_values(extent, bounds_, words_.on_keys ? extent.kv_len : extent.q_len, function, "each value of ", words_.name,
                 " must be in 0..", words_.on_keys ? "Tk" : "Tq");
  }

 private:
  BoundKind kind_;
  BoundWords words_;
  std::vector<Index> bounds_;  // [B]
};

/// keep = j < n
class First final : public Intervals<First> {
 public:
  explicit First(Index n) : n_(n) {}

  auto rows(const Pairs&) const {
    return [this](Index) { return Positions{0, n_}; };
  }
  std::string text(bool) const override { return "first(" + std::to_string(n_) + ")"; }
  void check(const MaskExtent&, bool, const char*) const override {}

 private:
  Index n_;
};

/// keep = floor((i + offset - start) / size) == floor((j - start) / size)
class Chunked final : public Intervals<Chunked> {
 public:
  Chunked(Index size, Align align, std::vector<Index> starts, bool has_starts)
      : size_(std::min(size, kFar)), align_(align), starts_(std::move(starts)), has_starts_(has_starts) {}

  auto rows(const Pairs& t) const {
    const Index start = has_starts_ ? starts_[static_cast<std::size_t>(t.b)] : 0;
    const Index offset = alignment_offset(align_, t.extent.q_len, t.extent.kv_len) - start;
    return [=, size = size_](Index i) {
      const Index begin = floor_div(i + offset, size) * size + start;
      return Positions{begin, begin + size};
    };
  }
  std::string text(bool) const override {
    return "chunked(" + std::to_string(size_) + (has_starts_ ? ", starts[" + std::to_string(starts_.size()) + "]" : "") +
           align_suffix(align_) + ")";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_square(function, "chunked", align_, extent.q_len, extent.kv_len);
    if (!has_starts_) return;
    check_one_each(function, "chunked(size, starts)", starts_.size(), extent.batch);
    check_values(extent, starts_, extent.kv_len, function, "a start of chunks must be in 0..Tk");
  }

 private:
  Index size_;
  Align align_;
  std::vector<Index> starts_;  // [B]
  bool has_starts_;
};

constexpr const char* kDocuments = "Mask::documents";

/// keep = i and j lie in the same document, and on the diagonals that are kept inside it.
class Documents final : public Intervals<Documents> {
 public:
  Documents(std::vector<Index> q_offsets, std::vector<Index> k_offsets, std::vector<Diagonals> diagonals, std::string inside)
      : q_(std::move(q_offsets)), k_(std::move(k_offsets)), diagonals_(std::move(diagonals)), inside_(std::move(inside)) {}

  auto rows(const Pairs&) const {
    return [this, document = std::size_t{0}](Index i) mutable {
      if (q_.size() == 1) return Positions{0, 0};
      if (i < q_[document] || i >= q_[document + 1])
        document = static_cast<std::size_t>(std::upper_bound(q_.begin() + 1, q_.end() - 1, i) - q_.begin()) - 1;
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
    qkv::check<ShapeError>(q_.back() == extent.q_len, function, "the queries of documents must end with Tq ", extent.q_len,
                           ": got ", q_.back());
    qkv::check<ShapeError>(k_.back() == extent.kv_len, function, "the keys of documents must end with Tk ", extent.kv_len,
                           ": got ", k_.back());
  }

 private:
  std::vector<Index> q_, k_;          // [documents + 1]
  std::vector<Diagonals> diagonals_;  // [documents] or none: in positions of the whole row
  std::string inside_;
};

void check_offsets(IndexSpan offsets, const char* name) {
  check<OptionError>(!offsets.empty(), kDocuments, name, " must have one more value than there are documents: got 0");
  check<OptionError>(offsets[0] == 0, kDocuments, name, " must begin with 0: got ", offsets[0]);
  for (std::size_t d = 1; d < offsets.size(); ++d) {
    check<OptionError>(offsets[d] >= offsets[d - 1], kDocuments, name, " must ascend: got ", offsets[d - 1], ", ", offsets[d]);
  }
  check<OptionError>(offsets.back() < kFar, kDocuments, name, " must be positions: got ", offsets.back());
}

/// What all bands of `inside` keep in each document.
std::vector<Diagonals> diagonals_inside(const Mask::Node& inside, IndexSpan q, IndexSpan k) {
  std::vector<Diagonals> all(q.size() - 1, {-2 * kFar, 2 * kFar});
  for (const MaskPartPtr& part : inside.parts) {
    const auto* band = dynamic_cast<const Band*>(part.get());
    check<OptionError>(band != nullptr, kDocuments,
                       "inside documents only causal, window and sliding, joined by &, are allowed: got ",
                       [&] { return part->text(true); });
    const BandOptions& o = band->options();
    check<ShapeError>(!o.has_offsets || o.offsets.size() == all.size(), kDocuments, band->name(),
                      "(offsets) inside documents takes one offset per document: got ", o.offsets.size(), " for ", all.size());
    for (std::size_t d = 0; d < all.size(); ++d) {
      const Index q_len = q[d + 1] - q[d], kv_len = k[d + 1] - k[d], shift = k[d] - q[d];
      if (!o.has_offsets) check_square(kDocuments, band->name(), o.align, q_len, kv_len);
      const Diagonals own = band->at(o.has_offsets ? o.offsets[d] : alignment_offset(o.align, q_len, kv_len));
      all[d] = {std::max(all[d].low, own.low + shift), std::min(all[d].high, own.high + shift)};
    }
  }
  return all;
}

}  // namespace

MaskPartPtr make_band(BandOptions options) { return std::make_shared<Band>(std::move(options)); }
MaskPartPtr make_bound(BoundKind kind, IndexSpan bounds) { return std::make_shared<Bound>(kind, bounds); }
MaskPartPtr make_first(Index n) { return std::make_shared<First>(n); }
MaskPartPtr make_chunked(Index size, Align align, std::vector<Index> starts, bool has_starts) {
  return std::make_shared<Chunked>(size, align, std::move(starts), has_starts);
}
MaskPartPtr make_documents(std::vector<Index> q_offsets, std::vector<Index> k_offsets, const Mask& inside) {
  check_offsets(q_offsets, "q_offsets");
  check_offsets(k_offsets, "k_offsets");
  check<ShapeError>(k_offsets.size() == q_offsets.size(), kDocuments, "queries and keys must have as many documents: got ",
                    q_offsets.size() - 1, " and ", k_offsets.size() - 1);
  std::vector<Diagonals> diagonals;
  if (inside.node() != nullptr) diagonals = diagonals_inside(*inside.node(), q_offsets, k_offsets);
  return std::make_shared<Documents>(std::move(q_offsets), std::move(k_offsets), std::move(diagonals),
                                     inside.keeps_everything() ? "" : inside.describe());
}

}  // namespace qkv::inline v0

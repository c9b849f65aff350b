// Documents by offsets: several sequences packed into one row of tokens, optionally with gaps between the keys, and bands of
// diagonals inside each.
#include <limits>

#include "attention/mask/band.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

constexpr const char* kDocuments = "Mask::documents";

/// Documents [begin, end) by number.
struct NumberRange {
  Index begin, end;
};

/// Ascending ranges of positions that do not overlap. The range of a position is looked up: a table of equal stretches of
/// positions, about as many as ranges, says where to search.
class Segments {
 public:
  Segments(IndexSpan begins, IndexSpan ends) : begins_(begins.begin(), begins.end()), ends_(ends.begin(), ends.end()) {
    while (end() >> shift_ > 2 * count() + 64) ++shift_;
    Index document = 0;
    for (Index stretch = 0; stretch <= end() >> shift_; ++stretch) {
      while (document < count() && ends_[at(document)] <= stretch << shift_) ++document;
      first_.push_back(document);
    }
    first_.push_back(count());
  }

  Index count() const { return static_cast<Index>(begins_.size()); }
  /// One past the last position in any range.
  Index end() const { return ends_.empty() ? 0 : ends_.back(); }
  Positions of(Index document) const { return {begins_[at(document)], ends_[at(document)]}; }
  /// The documents that positions [begin, begin + n) meet, and empty ones between.
  NumberRange meeting(Index begin, Index n) const {
    if (n <= 0 || begin >= end()) return {count(), count()};
    const Index last = std::min(begin + n, end()) - 1, next = behind(last);
    return {behind(begin), begins_[at(next)] <= last ? next + 1 : next};
  }

 private:
  static std::size_t at(Index n) { return static_cast<std::size_t>(n); }
  /// The first document that ends behind position p.
  Index behind(Index p) const {
    const Index* ends = ends_.data();
    return std::upper_bound(ends + first_[at(p >> shift_)], ends + first_[at((p >> shift_) + 1)], p) - ends;
  }

  std::vector<Index> begins_, ends_;
  int shift_ = 0;             // a stretch holds 2^shift_ positions
  std::vector<Index> first_;  // the first document that ends behind each stretch's first position; then count()
};

class Documents final : public MaskPart {
 public:
  Documents(Segments q, Segments k, bool gaps, std::vector<Diagonals> diagonals, std::string inside)
      : q_(std::move(q)), k_(std::move(k)), gaps_(gaps), diagonals_(std::move(diagonals)), inside_(std::move(inside)) {}

  int verdict(const Pairs& t) const override {
    const NumberRange rows = q_.meeting(t.i0, t.ni), columns = k_.meeting(t.j0, t.nj);
    if (rows.begin >= columns.end || columns.begin >= rows.end || rows.begin >= rows.end || columns.begin >= columns.end) {
      return kTileEmpty;
    }
    if (rows.end - rows.begin > 1 || columns.end - columns.begin > 1) return kTilePartial;
    const Index document = rows.begin;
    const int whole = std::min(verdict_within(t.i0, t.ni, q_.of(document)), verdict_within(t.j0, t.nj, k_.of(document)));
    return diagonals_.empty() ? whole : std::min(whole, diagonals(document).verdict(t));
  }

  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const NumberRange rows = q_.meeting(t.i0, t.ni), columns = k_.meeting(t.j0, t.nj);
    Index done = t.j0;
    const auto drop_up_to = [&](Index end) {
      for (; done < end; ++done) lane_masks[done - t.j0] = 0;
    };
    for (Index document = std::max(rows.begin, columns.begin); document < std::min(rows.end, columns.end); ++document) {
      const Positions q = q_.of(document), k = k_.of(document);
      const Index end = std::min(k.end, t.j0 + t.nj);
      const std::uint32_t lanes = bit_range(q.begin - t.i0, q.end - t.i0);
      if (lanes == 0 || k.begin >= end) continue;
      drop_up_to(k.begin);
      for (; done < end; ++done)
        lane_masks[done - t.j0] &= diagonals_.empty() ? lanes : lanes & diagonals(document).lanes(t, done);
    }
    drop_up_to(t.j0 + t.nj);
  }

  Positions keys(const Pairs& t) const override {
    const NumberRange rows = q_.meeting(t.i0, t.ni);
    if (rows.begin >= rows.end) return {0, 0};
    Positions live{k_.of(rows.begin).begin, k_.of(rows.end - 1).end};
    if (diagonals_.empty() || rows.end - rows.begin > 1) return live;
    const Positions band = diagonals(rows.begin).keys(t);
    return {std::max(live.begin, band.begin), std::min(live.end, band.end)};
  }
  Positions queries(const Pairs& t) const override {
    const NumberRange columns = k_.meeting(t.j0, t.nj);
    if (columns.begin >= columns.end) return {0, 0};
    Positions live{q_.of(columns.begin).begin, q_.of(columns.end - 1).end};
    if (diagonals_.empty() || columns.end - columns.begin > 1) return live;
    const Positions band = diagonals(columns.begin).queries(t);
    return {std::max(live.begin, band.begin), std::min(live.end, band.end)};
  }

  std::string text(bool) const override {
    return "documents[" + std::to_string(q_.count()) + (gaps_ ? ", gaps" : "") + (inside_.empty() ? "" : ", " + inside_) + "]";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    qkv::check<ShapeError>(q_.end() == extent.q_len, function, "the queries of documents must end with Tq ", extent.q_len,
                           ": got ", q_.end());
    qkv::check<ShapeError>(gaps_ ? k_.end() <= extent.kv_len : k_.end() == extent.kv_len, function,
                           "the keys of documents must end ", gaps_ ? "within" : "with", " Tk ", extent.kv_len, ": got ",
                           k_.end());
  }

 private:
  const Diagonals& diagonals(Index document) const { return diagonals_[static_cast<std::size_t>(document)]; }

  Segments q_, k_;
  bool gaps_;
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

void check_ranges(IndexSpan begins, IndexSpan ends) {
  check<ShapeError>(begins.size() == ends.size(), kDocuments, "each document needs a begin and an end of its keys: got ",
                    begins.size(), " and ", ends.size());
  Index before = 0;
  for (std::size_t d = 0; d < begins.size(); ++d) {
    check<OptionError>(begins[d] >= before, kDocuments, "documents must ascend and not overlap: the keys of document ", d,
                       " begin at ", begins[d], ", before ", before);
    check<OptionError>(ends[d] >= begins[d], kDocuments, "the keys of document ", d,
                       " must end where they begin or later: got ", begins[d], "..", ends[d]);
    before = ends[d];
  }
  check<OptionError>(before < kFar, kDocuments, "the keys of documents must be positions: got ", before);
}

/// The diagonals that all bands of `inside` keep in one document, in positions of the whole row.
Diagonals diagonals_inside(const Mask::Node& inside, std::size_t document, const Positions& q, const Positions& k) {
  Diagonals all{std::numeric_limits<Index>::min() / 4, std::numeric_limits<Index>::max() / 4};
  for (const MaskPartPtr& part : inside.parts) {
    const auto* band = dynamic_cast<const Band*>(part.get());
    check<OptionError>(band != nullptr, kDocuments,
                       "inside documents only causal, window and sliding, joined by &, are allowed: got ",
                       [&] { return part->text(true); });
    const BandOptions& o = band->options();
    const Index q_len = q.end - q.begin, kv_len = k.end - k.begin;
    if (!o.has_offsets) check_square(kDocuments, band->name(), o.align, q_len, kv_len);
    const Diagonals own = band->at(o.has_offsets ? o.offsets[document] : alignment_offset(o.align, q_len, kv_len));
    const Index shift = k.begin - q.begin;
    all = {std::max(all.low, own.low + shift), std::min(all.high, own.high + shift)};
  }
  return all;
}

}  // namespace

MaskPartPtr make_documents(IndexSpan q_offsets, IndexSpan k_begins, IndexSpan k_ends, bool gaps, const Mask& inside) {
  check_offsets(q_offsets, "q_offsets");
  const std::size_t documents = q_offsets.size() - 1;
  check<ShapeError>(k_begins.size() == documents, kDocuments, "queries and keys must have as many documents: got ", documents,
                    " and ", k_begins.size());
  if (!gaps && documents > 0)
    check<OptionError>(k_begins[0] == 0, kDocuments, "k_offsets must begin with 0: got ", k_begins[0]);
  check_ranges(k_begins, k_ends);
  Segments q(q_offsets.first(documents), q_offsets.subspan(1)), k(k_begins, k_ends);
  std::vector<Diagonals> diagonals;
  if (const Mask::Node* node = inside.node()) {
    for (const MaskPartPtr& part : node->parts) {
      const auto* band = dynamic_cast<const Band*>(part.get());
      if (band == nullptr || !band->options().has_offsets) continue;
      check<ShapeError>(band->options().offsets.size() == documents, kDocuments, band->name(),
                        "(offsets) inside documents takes one offset per document: got ", band->options().offsets.size(),
                        " for ", documents);
    }
    for (std::size_t d = 0; d < documents; ++d) {
      const auto number = static_cast<Index>(d);
      diagonals.push_back(diagonals_inside(*node, d, q.of(number), k.of(number)));
    }
  }
  return std::make_shared<Documents>(std::move(q), std::move(k), gaps, std::move(diagonals),
                                     inside.keeps_everything() ? "" : inside.describe());
}

}  // namespace qkv::inline v0

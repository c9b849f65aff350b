// Leaves that are looked up or asked pair by pair: dense tensors and callbacks.
#include <utility>

#include "attention/mask_leaves.h"
#include "core/callback_error.h"
#include "core/check.h"

namespace qkv {
inline namespace v0 {
namespace {

/// keep = values[b, h, i, j] != 0, or the opposite.
class Dense final : public MaskPart {
 public:
  Dense(View<const std::uint8_t, 4> values, bool keep) : values_(values), keep_(keep) {}

  int verdict(const Pairs&) const override { return kTilePartial; }
  void fill(const Pairs& t, std::uint32_t* words) const override {
    const std::uint8_t* data = values_.data() + t.b * repeat(0) + t.h * repeat(1) + t.i0 * repeat(2) + t.j0 * repeat(3);
    for (Index begin = 0; begin < t.nj; begin += kPiece) {
      const Index n = std::min(kPiece, t.nj - begin);
      if (repeat(3) == 1) {
        fill_rows(data + begin, t.ni, n, words + begin);
      } else {
        fill_strided(data + begin * repeat(3), t.ni, n, words + begin);
      }
    }
  }
  bool differs_by_head() const override { return values_.size(1) > 1; }
  Cost cost() const override { return Cost::kMemory; }
  std::string text(bool) const override { return (keep_ ? "keep" : "drop") + values_.shape(); }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    const std::array<Index, 4> wanted{extent.batch, extent.num_heads, extent.q_len, extent.kv_len};
    for (int axis = 0; axis < 4; ++axis) {
      const Index size = values_.size(axis);
      qkv::check<ShapeError>(size == wanted[static_cast<std::size_t>(axis)] || size == 1, function,
                             "a dense mask must have sizes [B|1, H|1, Tq|1, Tk|1]: got ", values_, " for ",
                             [&] { return shape_text(wanted.data(), 4); });
    }
  }

 private:
  static constexpr Index kPiece = 128;  // keys taken together

  /// Eight queries to a byte, so that the loop over keys is one on bytes, which compilers turn into vectors.
  void fill_rows(const std::uint8_t* data, Index lanes, Index keys, std::uint32_t* words) const {
    std::uint8_t bits[4][kPiece] = {};
    for (Index lane = 0; lane < lanes; ++lane) {
      const std::uint8_t* row = data + lane * repeat(2);
      std::uint8_t* of_eight = bits[lane / 8];
      const auto bit = static_cast<std::uint8_t>(1U << (lane % 8));
      for (Index j = 0; j < keys; ++j) of_eight[j] = static_cast<std::uint8_t>(of_eight[j] | (row[j] != 0 ? bit : 0));
    }
    const std::uint32_t flip = keep_ ? 0U : ~0U;
    for (Index j = 0; j < keys; ++j) {
      const std::uint32_t nonzero = static_cast<std::uint32_t>(bits[0][j]) | static_cast<std::uint32_t>(bits[1][j]) << 8 |
                                    static_cast<std::uint32_t>(bits[2][j]) << 16 | static_cast<std::uint32_t>(bits[3][j]) << 24;
      words[j] &= nonzero ^ flip;
    }
  }

  void fill_strided(const std::uint8_t* data, Index lanes, Index keys, std::uint32_t* words) const {
    for (Index j = 0; j < keys; ++j) {
      std::uint32_t word = 0;
      for (Index lane = 0; lane < lanes; ++lane) {
        word |= ((data[lane * repeat(2) + j * repeat(3)] != 0) == keep_ ? 1U : 0U) << lane;
      }
      words[j] &= word;
    }
  }

  Index repeat(int axis) const { return values_.size(axis) == 1 ? 0 : values_.stride(axis); }

  View<const std::uint8_t, 4> values_;
  bool keep_;
};

class Callback final : public MaskPart {
 public:
  explicit Callback(MaskCallback keep) : keep_(std::move(keep)) {}

  int verdict(const Pairs&) const override { return kTilePartial; }
  void fill(const Pairs& t, std::uint32_t* words) const override {
    const bool done = guard_callback([&] {
      for (Index j = 0; j < t.nj; ++j) {
        std::uint32_t word = words[j];
        for (Index i = 0; i < t.ni; ++i) {
          if ((word >> i & 1U) != 0 && !keep_(t.b, t.h, t.i0 + i, t.j0 + j)) word &= ~(1U << i);
        }
        words[j] = word;
      }
    });
    if (!done) std::fill_n(words, t.nj, 0U);  // kernels throw nothing: what was thrown leaves when the work item ends
  }
  bool differs_by_head() const override { return true; }
  Cost cost() const override { return Cost::kCallback; }
  std::string text(bool) const override { return "mask_mod"; }
  void check(const MaskExtent&, bool, const char*) const override {}

 private:
  MaskCallback keep_;
};

}  // namespace

MaskPartPtr make_dense(View<const std::uint8_t, 4> values, bool keep) { return std::make_shared<Dense>(values, keep); }
MaskPartPtr make_callback(MaskCallback keep) { return std::make_shared<Callback>(std::move(keep)); }

}  // namespace v0
}  // namespace qkv

// Overlap: named cases of real layouts, and a sweep of small random views against counting bytes.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "core/random.h"
#include "qkv/tensor.h"
#include "support/errors.h"

namespace {

using qkv::Index;
using qkv::overlaps;
using qkv::StridedBox;
using qkv::View;

TEST(Overlap, SlicesOfAPackedBufferAreApart) {
  const Index batch = 2, time = 5, heads = 3, width = 4;
  std::vector<float> packed(static_cast<std::size_t>(batch * time * 3 * heads * width));
  const auto slice = [&](Index which) {  // [B, T, 3, H, D] -> [B, H, T, D]
    return View<float, 4>(packed.data() + which * heads * width, {batch, heads, time, width},
        {time * 3 * heads * width, width, 3 * heads * width, 1});
  };
  EXPECT_FALSE(overlaps(slice(0), slice(1)));
  EXPECT_FALSE(overlaps(slice(2), slice(0)));
  EXPECT_TRUE(overlaps(slice(1), slice(1)));
  const View<float, 4> shifted(packed.data() + 1, slice(0).sizes(), slice(0).strides());
  EXPECT_TRUE(overlaps(slice(0), shifted));
  EXPECT_TRUE(overlaps(shifted, slice(1)));  // its last element is the other's first
}

TEST(Overlap, NeighboursAreApart) {
  std::vector<double> memory(24);
  const View<double, 2> first(memory.data(), {3, 4});
  EXPECT_FALSE(overlaps(first, View<double, 2>(memory.data() + 12, {3, 4})));
  EXPECT_TRUE(overlaps(first, View<double, 2>(memory.data() + 11, {3, 4})));
  EXPECT_TRUE(overlaps(first, first.transposed(0, 1)));
  EXPECT_TRUE(overlaps(View<double, 2>(memory.data() + 11, {1, 1}), first));
}

TEST(Overlap, ColumnsOfOneMatrixAreApartUnlessShared) {
  std::vector<float> memory(1000 * 7);
  const View<float, 2> matrix(memory.data(), {1000, 7});
  EXPECT_FALSE(overlaps(matrix.sliced(1, 0, 3), matrix.sliced(1, 3, 7)));
  EXPECT_TRUE(overlaps(matrix.sliced(1, 0, 4), matrix.sliced(1, 3, 7)));
  EXPECT_FALSE(overlaps(matrix.sliced(1, 0, 3), View<float, 1>(memory.data() + 5, {900}, {7})));  // other rank
}

TEST(Overlap, EmptyAndNullShareNothing) {
  std::vector<float> memory(4);
  EXPECT_FALSE(overlaps(View<float, 2>(memory.data(), {0, 4}), View<float, 2>(memory.data(), {1, 4})));
  EXPECT_FALSE(overlaps(View<float, 3>(), View<float, 3>()));
}

/// Numbers from low to high.
struct Draw {
  explicit Draw(std::uint64_t seed) : random(seed) {}
  Index operator()(Index low, Index high) {
    return low + static_cast<Index>(random.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  qkv::Random random;
};

std::set<std::uintptr_t> bytes_of(const StridedBox& box) {
  std::set<std::uintptr_t> bytes;
  Index count = 1;
  for (int axis = 0; axis < box.rank; ++axis) count *= box.sizes[static_cast<std::size_t>(axis)];
  for (Index n = 0; n < count; ++n) {
    Index rest = n, offset = 0;
    for (int axis = box.rank - 1; axis >= 0; --axis) {
      const auto at = static_cast<std::size_t>(axis);
      offset += rest % box.sizes[at] * box.strides[at];
      rest /= box.sizes[at];
    }
    for (Index byte = 0; byte < box.element_bytes; ++byte) {
      bytes.insert(box.address + static_cast<std::uintptr_t>(offset * box.element_bytes + byte));
    }
  }
  return bytes;
}

TEST(Overlap, AgreesWithCountingBytes) {
  Draw draw(17);
  int together = 0, apart = 0;
  for (int round = 0; round < 20000; ++round) {
    StridedBox boxes[2];
    for (StridedBox& box : boxes) {
      box.address = static_cast<std::uintptr_t>(1000 + draw(0, 60));
      box.element_bytes = Index{1} << draw(0, 3);
      box.rank = static_cast<int>(draw(1, 4));
      for (std::size_t axis = 0; axis < static_cast<std::size_t>(box.rank); ++axis) {
        box.sizes[axis] = draw(0, 9) == 0 ? 0 : draw(1, 3);
        box.strides[axis] = draw(-12, 12);
      }
    }
    if (draw(0, 1) == 0) {  // half of them with equal layouts
      const std::uintptr_t address = boxes[1].address;
      boxes[1] = boxes[0];
      boxes[1].address = address;
    }
    const auto first = bytes_of(boxes[0]);
    const auto second = bytes_of(boxes[1]);
    const bool expected = std::any_of(first.begin(), first.end(), [&](auto byte) { return second.contains(byte); });
    ASSERT_EQ(overlaps(boxes[0], boxes[1]), expected) << "round " << round;
    ASSERT_EQ(overlaps(boxes[1], boxes[0]), expected) << "round " << round;
    ++(expected ? together : apart);
  }
  EXPECT_GT(together, 2000);  // otherwise the sweep proves little
  EXPECT_GT(apart, 2000);
}

TEST(CheckOutputs, NamesTheTwoThatMeet) {
  std::vector<float> memory(32);
  const View<float, 2> q(memory.data(), {4, 4}), out(memory.data() + 8, {4, 4}), apart(memory.data() + 16, {4, 4});
  const std::vector<qkv::NamedBox> inputs = {{"q", q}}, good = {{"out", apart}, {"lse", View<float, 2>()}},
                                   bad = {{"out", out}};
  EXPECT_NO_THROW(qkv::check_outputs("f", good, inputs));
  EXPECT_EQ(qkv::test::text_of<qkv::ShapeError>([&] { qkv::check_outputs("attention_forward", bad, inputs); }),
      "[attention_forward] out must share no element with q: got out [4, 4] and q [4, 4] in the same memory");
  const std::vector<qkv::NamedBox> two = {{"dq", out}, {"dk", out}};
  EXPECT_THROW(qkv::check_outputs("f", two, {}), qkv::ShapeError);
}

/// Decided exactly: against a list of all elements.
TEST(CheckOutputs, RefusesAnElementShownTwice) {
  Draw draw(23);
  int twice = 0, once = 0;
  for (int round = 0; round < 20000; ++round) {
    View<float, 4>::Sizes sizes{}, strides{};
    for (std::size_t axis = 0; axis < 4; ++axis) sizes[axis] = draw(1, 4), strides[axis] = draw(-30, 30);
    std::vector<float> memory(2000);
    const View<float, 4> view(memory.data() + 1000, sizes, strides);
    const bool expected = bytes_of(view).size() < static_cast<std::size_t>(view.count()) * sizeof(float);
    bool refused = false;
    try {
      qkv::check_written("f", {"out", view});
    } catch (const qkv::ShapeError&) {
      refused = true;
    }
    ASSERT_EQ(refused, expected) << "round " << round << ": " << qkv::shape_text(sizes.data(), 4) << " strides "
                                 << qkv::shape_text(strides.data(), 4);
    ++(expected ? twice : once);
  }
  EXPECT_GT(twice, 2000);
  EXPECT_GT(once, 2000);
}

TEST(CheckOutputs, RefusesWhatReachesTooFar) {
  float element = 0;
  constexpr Index kHuge = Index{1} << 62;
  const auto check = [&](Index size, Index stride) {
    const std::vector<qkv::NamedBox> inputs = {{"q", View<float, 2>(&element, {size, 2}, {stride, 1})}};
    qkv::check_outputs("f", {}, inputs);
  };
  EXPECT_NO_THROW(check(Index{1} << 60, 0));
  EXPECT_NO_THROW(check(2, Index{1} << 58));
  EXPECT_THROW(check(kHuge, 0), qkv::ShapeError);
  EXPECT_THROW(check(kHuge, kHuge), qkv::ShapeError);
  EXPECT_THROW(check(2, kHuge), qkv::ShapeError);
  EXPECT_THROW(check(2, -kHuge), qkv::ShapeError);
  EXPECT_THROW(check(2, std::numeric_limits<Index>::min()), qkv::ShapeError);
  EXPECT_NO_THROW(check(0, kHuge));
}

TEST(CheckOutputs, RefusesARepeatedOutput) {
  float element = 0;
  const std::vector<qkv::NamedBox> repeated = {{"out", View<float, 2>(&element, {1, 2}, {1, 0})}};
  const std::vector<qkv::NamedBox> single = {{"out", View<float, 2>(&element, {1, 1}, {0, 0})}};
  EXPECT_THROW(qkv::check_outputs("f", repeated, {}), qkv::ShapeError);
  EXPECT_NO_THROW(qkv::check_outputs("f", single, {}));
}

}  // namespace

// Named tensors: order, access by name, and its cost.
#include "qkv/state_dict.h"

#include <gtest/gtest.h>

#include "qkv/error.h"
#include "support/errors.h"

namespace qkv {
namespace {

TEST(StateDict, KeepsOrderAndFindsByName) {
  StateDict state;
  for (const char* name : {"b", "a", ""}) state.add(name, any_tensor(Tensor<float>({1})));
  EXPECT_EQ(state.entries()[0].name, "b");
  EXPECT_EQ(state.find("a"), &state.entries()[1].tensor);
  EXPECT_EQ(&state.at(""), &state.entries()[2].tensor);
  EXPECT_EQ(state.find("c"), nullptr);
  test::expect_error<OptionError>(
      [&] { state.at("c"); }, {"[StateDict::at] the name must be one of b, a, : got \"c\""});
  EXPECT_THROW(state.add("a", any_tensor(Tensor<float>({1}))), OptionError);
  EXPECT_EQ(state.size(), 3u);
}

TEST(StateDict, ClonesAndMovedOnesFindByName) {
  StateDict state;
  state.add("a", any_tensor(Tensor<float>({3})));
  StateDict copy = state.clone();
  copy.add("b", any_tensor(Tensor<float>({1})));
  const StateDict moved = std::move(copy);
  EXPECT_EQ(moved.find("a"), &moved.entries()[0].tensor);
  EXPECT_EQ(moved.find("b"), &moved.entries()[1].tensor);
  EXPECT_EQ(moved.at("a").bytes, state.at("a").bytes);
  EXPECT_EQ(state.find("b"), nullptr);
}

/// Each access by hash: one by one through all names this took a minute.
TEST(StateDict, HoldsManyNames) {
  StateDict state;
  constexpr int kCount = 200'000;
  for (int n = 0; n < kCount; ++n) state.add("a.name.as.long.as.those.of.models." + std::to_string(n), AnyTensor());
  for (int n = 0; n < kCount; ++n) {
    ASSERT_EQ(state.find("a.name.as.long.as.those.of.models." + std::to_string(n)),
        &state.entries()[static_cast<std::size_t>(n)].tensor);
  }
}

}  // namespace
}  // namespace qkv

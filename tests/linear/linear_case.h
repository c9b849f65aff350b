// The cases of linear attention: every option, its values, and the pairwise list of them; a case's tensors; and its
// expected results. To add a value: add it to its list; the pairwise list then combines it with every other value.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "linear/measured.h"
#include "support/cases/pairwise.h"
#include "support/checks/bounds.h"
#include "support/random.h"
#include "support/storage.h"

namespace qkv::test {

enum class Order {
  kFree,
  kCausal,
  kCausalDecay,
  kCausalHeadDecay,
  kForgetting,
  kDelta,
  kDeltaDecay,
  kChannels,
  kHeadChannels,
  kDeltaChannels,
  kForgettingChannels
};
inline constexpr std::array kOrderNames = {"free", "causal", "decay", "headdecay", "forgetting", "delta", "deltadecay",
    "channels", "headchannels", "deltachannels", "forgettingchannels"};
inline constexpr std::array kMapNames = {"identity", "relu", "elu", "softmax", "unit"};

struct LinearCase {
  Index batch = 1, num_heads = 1, num_kv_heads = 1;
  Index value_group = 1;  // heads of v for each of q and k; num_heads and num_kv_heads are those of v
  Index q_len = 1, kv_len = 1, head_dim = 1, v_head_dim = 1;
  FeatureMap map = FeatureMap::kEluPlusOne;
  Order order = Order::kCausal;
  bool normalized = true, state = false, scaled = false, recurrent = false;
  Layout layout = Layout::kBhtd;
  std::uint64_t seed = 1;

  bool causal() const { return order != Order::kFree; }
  /// A decay per channel.
  bool channels() const { return order >= Order::kChannels; }
  bool delta() const {
    return order == Order::kDelta || order == Order::kDeltaDecay || order == Order::kDeltaChannels ||
           order == Order::kForgettingChannels;
  }
  bool decays() const { return causal() && order != Order::kCausal && order != Order::kDelta; }
  bool may_normalize() const { return !delta() && !channels(); }
  bool forgets() const { return order == Order::kForgetting || order == Order::kForgettingChannels; }
  Index features() const { return map == FeatureMap::kSoftmax ? head_dim + 3 : head_dim; }

  std::string name() const {
    const auto number = [](const char* key, Index value) { return std::string(key) + std::to_string(value); };
    std::string text = number("b", batch) + number("_h", num_heads) + number("_kv", num_kv_heads) +
                       (value_group > 1 ? number("_group", value_group) : "") + number("_tq", q_len) +
                       number("_tk", kv_len) + number("_d", head_dim) + number("_dv", v_head_dim) + "_" +
                       kMapNames[static_cast<std::size_t>(map)] + "_" + kOrderNames[static_cast<std::size_t>(order)];
    if (normalized) text += "_normalized";
    if (state) text += "_state";
    if (scaled) text += "_scaled";
    if (recurrent) text += "_recurrent";
    return text + "_" + kLayoutNames[static_cast<std::size_t>(layout)];
  }
  bool legal() const {
    if (normalized && !may_normalize()) return false;
    if (recurrent && !causal()) return false;
    const bool same = num_heads == num_kv_heads && value_group == 1 && q_len == kv_len && head_dim == v_head_dim;
    return layout != Layout::kPacked || same;
  }
};

/// Heads, lengths, widths, map, order, normalised, state, scale, form, layout.
inline constexpr std::size_t kLinearOptions = 10;
using LinearChoice = std::array<Index, kLinearOptions>;
/// Batch, heads, key/value heads, value group.
inline constexpr std::array<std::array<Index, 4>, 5> kLinearHeads = {
    {{1, 1, 1, 1}, {2, 4, 2, 1}, {1, 3, 1, 1}, {2, 2, 2, 1}, {2, 6, 6, 3}}};
inline constexpr std::array<Index, 9> kLinearLengths = {1, 7, 32, 33, 63, 64, 65, 130, 203};
inline constexpr std::array<std::array<Index, 2>, 6> kLinearWidths = {
    {{1, 1}, {3, 5}, {17, 9}, {8, 40}, {33, 33}, {64, 20}}};

inline LinearChoice linear_values() { return {5, kLinearLengths.size(), 6, 5, 11, 2, 2, 2, 2, 5}; }

inline LinearCase linear_case(const LinearChoice& choice, std::uint64_t seed) {
  const auto at = [&](std::size_t n) { return static_cast<std::size_t>(choice[n]); };
  LinearCase c;
  c.batch = kLinearHeads[at(0)][0], c.num_heads = kLinearHeads[at(0)][1], c.num_kv_heads = kLinearHeads[at(0)][2];
  c.value_group = kLinearHeads[at(0)][3];
  c.head_dim = kLinearWidths[at(2)][0], c.v_head_dim = kLinearWidths[at(2)][1];
  c.map = static_cast<FeatureMap>(choice[3]);
  c.order = static_cast<Order>(choice[4]);
  c.kv_len = kLinearLengths[at(1)];
  c.q_len = c.causal() ? c.kv_len : kLinearLengths[(at(1) + 3) % kLinearLengths.size()];
  c.normalized = choice[5] == 0;
  c.state = choice[6] == 1;
  c.scaled = choice[7] == 1;
  c.recurrent = choice[8] == 1;
  c.layout = static_cast<Layout>(choice[9]);
  c.seed = seed;
  return c;
}

inline std::vector<LinearCase> linear_pairwise_cases() {
  std::vector<LinearCase> cases;
  const auto legal = [](const LinearChoice& choice) { return linear_case(choice, 1).legal(); };
  for (const LinearChoice& choice : pairwise_choices(linear_values(), 7, legal)) {
    cases.push_back(linear_case(choice, cases.size() + 1));
  }
  return cases;
}

/// Empty sizes, several segments, wide heads.
inline std::vector<LinearCase> linear_edge_cases() {
  std::vector<LinearCase> cases;
  const auto add = [&](Index b, Index h, Index kv, Index tq, Index tk, Index d, Index dv, Order order) -> LinearCase& {
    LinearCase c{b, h, kv, 1, tq, tk, d, dv};
    c.order = order;
    c.normalized = c.may_normalize();
    c.seed = cases.size() + 100;
    cases.push_back(c);
    return cases.back();
  };
  for (const Order order : {Order::kFree, Order::kCausalDecay, Order::kDelta}) {
    add(0, 2, 1, 5, 5, 8, 8, order);
    add(2, 0, 1, 5, 5, 8, 8, order);
    add(2, 2, 1, 0, 0, 8, 8, order).state = true;
    add(1, 2, 1, 1100, 1100, 5, 3, order).state = true;  // two segments
    add(1, 1, 1, 130, 130, 111, 130, order);
  }
  add(2, 2, 1, 0, 7, 8, 8, Order::kFree);
  add(2, 2, 1, 7, 0, 8, 8, Order::kFree).state = true;
  add(1, 1, 1, 3000, 1500, 4, 4, Order::kFree);
  for (const Order order : {Order::kFree, Order::kCausalDecay, Order::kDeltaDecay}) {
    add(2, 4, 4, 1100, 1100, 5, 3, order).value_group = 2;
  }
  add(1, 1, 1, 2100, 2100, 3, 2, Order::kForgetting);
  LinearCase& forgotten = add(1, 1, 1, 64, 64, 17, 9, Order::kForgetting);  // shows what an exponent of -40 rounds away
  forgotten.map = FeatureMap::kIdentity, forgotten.normalized = false;
  forgotten.scaled = forgotten.recurrent = true;
  forgotten.seed = 10652;
  for (const Order order : {Order::kChannels, Order::kForgettingChannels}) {
    add(0, 2, 1, 5, 5, 8, 8, order);
    add(2, 2, 1, 0, 0, 8, 8, order).state = true;
    add(1, 2, 1, 600, 600, 5, 3, order).state = true;  // three segments
    add(1, 1, 1, 40, 40, 111, 130, order);
    add(2, 4, 4, 270, 270, 5, 3, order).value_group = 2;
  }
  return cases;
}

}  // namespace qkv::test

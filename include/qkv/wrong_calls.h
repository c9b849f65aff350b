// What a compiler says of four usual mistakes when calling attention_forward: one sentence in place of the list of all overloads.
// These overloads are worse than every right one, or fit where none of those does.
#pragma once

#include "qkv/attention.h"

namespace qkv::inline v0 {
namespace wrong_calls {

/// Stands for an argument of any type.
struct Any {
  Any() = default;
  template <class T>
  Any(const T&) {}
};
struct Given {  ///< without a default: only a call that names it fits
  template <class T>
  Given(const T&) {}
};
struct Outputs {
  Any out{}, lse{}, weights{}, kind{}, lse_low{};
};
struct Options {
  Given causal;
  Any mask{}, bias{}, scale{}, softcap{}, empty_row{}, dropout{};
};

template <class T, class... Operands>
concept kAreViewsOf = (std::is_convertible_v<const Operands&, View<const T, 4>> && ...);
template <class... Operands>
concept kAreRight = kAreViewsOf<float, Operands...> || kAreViewsOf<double, Operands...> || kAreViewsOf<BFloat16, Operands...> ||
    kAreViewsOf<Float16, Operands...>;
template <class X>
concept kHasData = requires(const X& x) {
  x.data();
};
template <class X>
constexpr bool kNever = false;

}  // namespace wrong_calls

template <wrong_calls::kHasData Q, wrong_calls::kHasData K, wrong_calls::kHasData V>
requires(!wrong_calls::kAreRight<Q, K, V>) void attention_forward(const Q&, const K&, const V&, const wrong_calls::Outputs&,
                                                                  const AttentionOptions& = {}) {
  static_assert(!(wrong_calls::kAreRight<Q> && wrong_calls::kAreRight<K> && wrong_calls::kAreRight<V>),
                "qkv: q, k and v must have the same element type");
  static_assert(wrong_calls::kAreRight<Q> && wrong_calls::kAreRight<K> && wrong_calls::kAreRight<V>,
                "qkv: q, k and v must be tensors or views of four axes, [B, H, T, D]; qkv/easy.h takes std::vector and sizes");
}
template <class Call = void>
void attention_forward(wrong_calls::Any, wrong_calls::Any, wrong_calls::Any, const wrong_calls::Outputs&,
                       const AttentionOptions& = {}) {
  static_assert(wrong_calls::kNever<Call>, "qkv: outputs must be tensors or views that are not const, out of the type of q");
}
template <class Call = void>
void attention_forward(wrong_calls::Any, wrong_calls::Any, wrong_calls::Any, const wrong_calls::Outputs&,
                       const wrong_calls::Options&) {
  static_assert(wrong_calls::kNever<Call>, "qkv: options have no .causal: write {.mask = qkv::Mask::causal()}");
}

}  // namespace qkv::inline v0

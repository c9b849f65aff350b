// Included before every file of a WebAssembly build (scripts/lesson): Debian 12's emscripten has libc++ 13, which lacks
// std::bit_cast and the algorithms of std::ranges. Here are those that the library calls, as it calls them. A newer
// libc++ leaves this empty, and when Debian has one the file goes.
#pragma once

#if defined(__cplusplus)
#include <version>
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000
#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace std {

template <class To, class From> constexpr To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

namespace ranges {

template <class R>
concept Walked = requires(R&& r) { std::begin(r), std::end(r); };
struct Itself {
  template <class T> constexpr T&& operator()(T&& x) const { return static_cast<T&&>(x); }
};

template <Walked R, class T, class P = Itself> constexpr auto find(R&& r, const T& value, P of = {}) {
  return std::find_if(std::begin(r), std::end(r), [&](const auto& x) { return std::invoke(of, x) == value; });
}
template <Walked R, class F> constexpr bool any_of(R&& r, F holds) {
  return std::any_of(std::begin(r), std::end(r), std::ref(holds));
}

template <Walked R, class T> constexpr void fill(R&& r, const T& value) {
  std::fill(std::begin(r), std::end(r), value);
}
template <Walked R, class Out> constexpr void copy(R&& r, Out out) { std::copy(std::begin(r), std::end(r), out); }
template <Walked R, class Out, class F> constexpr void transform(R&& r, Out out, F of) {
  std::transform(std::begin(r), std::end(r), out, [&](const auto& x) { return std::invoke(of, x); });
}

}  // namespace ranges
}  // namespace std
#endif
#endif

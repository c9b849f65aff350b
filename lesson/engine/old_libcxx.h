// Included before every file of a WebAssembly build (scripts/lesson): Debian 12's emscripten has libc++ 13, which lacks
// std::bit_cast and the algorithms of std::ranges. Here are those that the library calls, as it calls them. A newer
// libc++ leaves this empty, and when Debian has one the file goes.
#pragma once

#if defined(__cplusplus)
#include <version>
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000
#include <algorithm>
#include <functional>
#include <initializer_list>
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
template <class C, class P> constexpr auto by(C& compare, P& of) {
  return [&](const auto& a, const auto& b) { return std::invoke(compare, std::invoke(of, a), std::invoke(of, b)); };
}

template <Walked R, class T, class P = Itself> constexpr auto find(R&& r, const T& value, P of = {}) {
  return std::find_if(std::begin(r), std::end(r), [&](const auto& x) { return std::invoke(of, x) == value; });
}
template <Walked R, class F> constexpr auto find_if(R&& r, F holds) {
  return std::find_if(std::begin(r), std::end(r), std::ref(holds));
}
template <Walked R, class F> constexpr bool any_of(R&& r, F holds) { return ranges::find_if(r, holds) != std::end(r); }
template <Walked R, class T> constexpr auto count(R&& r, const T& value) {
  return std::count(std::begin(r), std::end(r), value);
}
template <Walked R, class F> constexpr auto count_if(R&& r, F holds) {
  return std::count_if(std::begin(r), std::end(r), holds);
}
template <Walked A, Walked B> constexpr bool equal(A&& a, B&& b) {
  return std::equal(std::begin(a), std::end(a), std::begin(b), std::end(b));
}

template <class Out> struct Ended {
  Out out;
};
template <Walked R, class T> constexpr void fill(R&& r, const T& value) {
  std::fill(std::begin(r), std::end(r), value);
}
template <Walked R, class Out> constexpr Ended<Out> copy(R&& r, Out out) {
  return {std::copy(std::begin(r), std::end(r), out)};
}
template <Walked R, class Out, class F> constexpr Ended<Out> transform(R&& r, Out out, F of) {
  return {std::transform(std::begin(r), std::end(r), out, [&](const auto& x) { return std::invoke(of, x); })};
}

template <Walked R> constexpr void sort(R&& r) { std::sort(std::begin(r), std::end(r)); }
template <Walked R> constexpr auto unique(R&& r) {
  using At = decltype(std::begin(r));
  struct Rest {
    At first, last;
    constexpr At begin() const { return first; }
    constexpr At end() const { return last; }
  };
  return Rest{std::unique(std::begin(r), std::end(r)), std::end(r)};
}
template <Walked R, class T> constexpr auto lower_bound(R&& r, const T& value) {
  return std::lower_bound(std::begin(r), std::end(r), value);
}
template <Walked R, class T, class C = std::less<>, class P = Itself>
constexpr auto upper_bound(R&& r, const T& value, C compare = {}, P of = {}) {
  return std::upper_bound(std::begin(r), std::end(r), value,
      [&](const T& a, const auto& x) { return std::invoke(compare, a, std::invoke(of, x)); });
}
template <Walked R, class T> constexpr bool binary_search(R&& r, const T& value) {
  return std::binary_search(std::begin(r), std::end(r), value);
}
template <Walked R> constexpr auto min(R&& r) { return *std::min_element(std::begin(r), std::end(r)); }
template <Walked R, class P = Itself> constexpr auto max_element(R&& r, std::less<> compare = {}, P of = {}) {
  return std::max_element(std::begin(r), std::end(r), by(compare, of));
}

}  // namespace ranges
}  // namespace std
#endif
#endif

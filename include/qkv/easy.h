// Attention on vectors: numbers and sizes in, results out. Strided views, outputs of one's own, 16 bits, caches:
// attention.h.
#pragma once

#include <array>
#include <concepts>
#include <span>
#include <string>
#include <vector>

#include "qkv/attention.h"

namespace qkv::inline v0::easy {

/// q is [B, H, T, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv], row-major. Hkv, Tk or Dv of 0: H, T or D.
struct Shape {
  Index B = 1, H = 1, T = 1, D = 1;
  Index Hkv = 0, Tk = 0, Dv = 0;

  std::array<Index, 4> q() const { return {B, H, T, D}; }
  std::array<Index, 4> k() const { return {B, Hkv == 0 ? H : Hkv, Tk == 0 ? T : Tk, D}; }
  std::array<Index, 4> v() const { return {B, k()[1], k()[2], Dv == 0 ? D : Dv}; }
  std::array<Index, 4> out() const { return {B, H, T, v()[3]}; }
  std::array<Index, 3> lse() const { return {B, H, T}; }
};

template <class T> struct Result {
  std::vector<T> out, lse;  ///< [B, H, T, Dv], [B, H, T]
};
template <class T> struct Gradients {
  std::vector<T> dq, dk, dv;  ///< in the sizes of q, k, v
};

/// std::vector, std::array, std::span of float or double.
template <class X>
concept Numbers = requires(const X& x) { std::span(x); } && std::floating_point<typename X::value_type>;
template <Numbers X> using NumberOf = typename X::value_type;

namespace detail {

template <std::size_t kRank, class X> auto view(const char* name, X& x, const std::array<Index, kRank>& sizes) {
  const std::span all(x);
  const View<typename decltype(all)::element_type, static_cast<int>(kRank)> made(all.data(), sizes);
  if (static_cast<std::size_t>(checked_count(sizes)) == all.size()) return made;
  throw ShapeError(std::string("[easy] ") + name + " must have the numbers of " + made.shape() + ": got " +
                   std::to_string(all.size()));
}
template <class T, std::size_t kRank> std::vector<T> zeros(const std::array<Index, kRank>& sizes) {
  return std::vector<T>(static_cast<std::size_t>(checked_count(sizes)));
}

}  // namespace detail

/// out and lse. Throws ShapeError where a size does not fit, and what attention_forward throws.
template <Numbers Q, Numbers K, Numbers V> Result<NumberOf<Q>> attention(
    const Q& q, const K& k, const V& v, const Shape& s, const AttentionOptions& options = {}) {
  using T = NumberOf<Q>;
  Result<T> r{detail::zeros<T>(s.out()), detail::zeros<T>(s.lse())};
  const auto qv = detail::view("q", q, s.q());
  const auto kv = detail::view("k", k, s.k());
  const auto vv = detail::view("v", v, s.v());
  attention_forward(
      qv, kv, vv, {.out = detail::view("out", r.out, s.out()), .lse = detail::view("lse", r.lse, s.lse())}, options);
  return r;
}

/// Gradients of sum(out * dout), from what `attention` was given and gave.
template <Numbers Q, Numbers K, Numbers V, Numbers G> Gradients<NumberOf<Q>> backward(const Q& q, const K& k,
    const V& v, const Result<NumberOf<Q>>& r, const G& dout, const Shape& s, const AttentionOptions& options = {}) {
  using T = NumberOf<Q>;
  Gradients<T> g{detail::zeros<T>(s.q()), detail::zeros<T>(s.k()), detail::zeros<T>(s.v())};
  attention_backward(detail::view("q", q, s.q()), detail::view("k", k, s.k()), detail::view("v", v, s.v()),
      detail::view("out", r.out, s.out()), detail::view("lse", r.lse, s.lse()), detail::view("dout", dout, s.out()),
      {.dq = detail::view("dq", g.dq, s.q()),
          .dk = detail::view("dk", g.dk, s.k()),
          .dv = detail::view("dv", g.dv, s.v())},
      options);
  return g;
}

}  // namespace qkv::inline v0::easy

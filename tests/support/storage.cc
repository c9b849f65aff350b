#include "support/storage.h"

#include <algorithm>

namespace qkv::test {

template <class T> Storage<T>::Storage(Index count) : data_({count}), covered_(static_cast<std::size_t>(count), false) {
  fill();
}

template <class T> View<T, 4> Storage<T>::view(const Sizes& sizes, const Sizes& strides, Index offset) {
  for_each_offset(sizes, strides, [&](Index n) { covered_[static_cast<std::size_t>(offset + n)] = true; });
  return {data_.data() + offset, sizes, strides};
}

template <class T> bool Storage<T>::sentinels_intact() const {
  const T sentinel = kSentinel;
  for (Index n = 0; n < data_.count(); ++n) {
    if (!covered_[static_cast<std::size_t>(n)] && std::memcmp(data_.data() + n, &sentinel, sizeof(T)) != 0)
      return false;
  }
  return true;
}

template <class T> void Storage<T>::fill() { std::fill_n(data_.data(), data_.count(), static_cast<T>(kSentinel)); }

template <class T> Stored<T>::Stored(const typename View<T, 4>::Sizes& sizes, Layout layout) {
  const auto [b, h, t, d] = sizes;
  const Index guard = Storage<T>::kGuard;
  const bool by_token = layout == Layout::kBthd || layout == Layout::kPacked;
  const Index row = layout == Layout::kPaddedRows ? d + 5 : d, offset = 16 + (layout == Layout::kMisaligned ? 1 : 0);
  storage = Storage<T>(b * h * t * row + 2 * guard);
  view = storage.view(sizes,
      by_token ? typename View<T, 4>::Sizes{t * h * d, d, h * d, 1}
               : typename View<T, 4>::Sizes{h * t * row, t * row, row, 1},
      offset);
}

template <class T> Packed<T>::Packed(const typename View<T, 4>::Sizes& sizes) {
  const auto [b, h, t, d] = sizes;
  storage = Storage<T>(b * t * 3 * h * d + 2 * Storage<T>::kGuard);
  for (Index n = 0; n < 3; ++n) {
    views[static_cast<std::size_t>(n)] = storage.view(sizes, {t * 3 * h * d, d, 3 * h * d, 1}, 16 + n * h * d);
  }
}

template <class T> Triple<T>::Triple(const std::array<typename View<T, 4>::Sizes, 3>& sizes, Layout layout) {
  if (layout == Layout::kPacked) {
    packed = Packed<T>(sizes[0]);
    views = packed.views;
    return;
  }
  for (std::size_t n = 0; n < 3; ++n) {
    stored[n] = Stored<T>(sizes[n], layout);
    views[n] = stored[n].view;
  }
}

template <class T> bool Triple<T>::sentinels_intact() const {
  bool intact = packed.storage.sentinels_intact();
  for (const Stored<T>& each : stored) intact = intact && each.storage.sentinels_intact();
  return intact;
}

#define QKV_TEST_STORAGE(T)  \
  template class Storage<T>; \
  template struct Stored<T>; \
  template struct Packed<T>; \
  template struct Triple<T>;
QKV_TEST_TYPES(QKV_TEST_STORAGE)

}  // namespace qkv::test

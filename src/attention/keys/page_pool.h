// Pages of a cache by number, counted by how many sequences hold each. Allocates nothing after construction.
#pragma once

#include <vector>

#include "qkv/types.h"

namespace qkv::inline v0 {

class PagePool {
 public:
  explicit PagePool(Index pages) : holders_(static_cast<std::size_t>(pages), 0) {
    free_.reserve(holders_.size());
    for (Index page = pages; page > 0; --page) free_.push_back(page - 1);
  }

  /// Allocates a page, with one holder. There must be a free one.
  Index allocate() {
    const Index page = free_.back();
    free_.pop_back();
    holders_[at(page)] = 1;
    return page;
  }
  void share(Index page) { ++holders_[at(page)]; }
  void release(Index page) {
    if (--holders_[at(page)] == 0) free_.push_back(page);
  }
  Index holders(Index page) const { return holders_[at(page)]; }
  Index free_pages() const { return static_cast<Index>(free_.size()); }

 private:
  static std::size_t at(Index page) { return static_cast<std::size_t>(page); }

  std::vector<Index> holders_;  // [pages]; 0: free
  std::vector<Index> free_;     // the last one is allocated next
};

}  // namespace qkv::inline v0

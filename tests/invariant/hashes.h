// Hashes of results that every CPU must give, one line each in a file of data/: the list, the number in it, the hashes.
// QKV_UPDATE_HASHES=1 writes the file anew.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/part.h"
#include "support/result_hash.h"

namespace qkv::test {

/// A hash over tensors that follow one another; every NaN is the same.
template <class S> std::string hash_of(const std::vector<const Tensor<S>*>& results) {
  ResultHash hash;
  for (const Tensor<S>* each : results) {
    Tensor<S> same_nan(each->sizes());
    std::ranges::transform(
        each->span(), same_nan.data(), [](S x) { return std::isnan(x) ? std::numeric_limits<S>::quiet_NaN() : x; });
    hash.add(same_nan);
  }
  char text[24];
  std::snprintf(text, sizeof text, " %012" PRIx64, hash.take()["any"] >> 16);
  return text;
}

template <class T> std::string type_name() {
  constexpr std::array kNames = {"f32", "f64", "bf16", "f16"};
  return kNames[kTypeNumber<T>];
}

class Hashes {
 public:
  static bool updates() { return std::getenv("QKV_UPDATE_HASHES") != nullptr; }

  explicit Hashes(const std::string& name) : file_(std::string(QKV_ROOT "/tests/invariant/data/") + name + ".txt") {
    std::ifstream read(file_);
    for (std::string line; !updates() && std::getline(read, line);) {
      const std::size_t hashes = line.find(' ', line.find(' ') + 1);
      wanted_[line.substr(0, hashes)] = line.substr(hashes);
    }
  }

  void expect(const std::string& line, const std::string& found) {
    EXPECT_EQ(wanted_.try_emplace(line, updates() ? found : "none in the file").first->second, found) << line;
  }
  /// Where they are written anew and nothing has failed.
  void write() const {
    if (!updates() || testing::Test::HasFailure()) return;
    std::ofstream write(file_);
    for (const auto& [line, hashes] : wanted_) write << line << hashes << '\n';
  }

 private:
  std::string file_;
  std::map<std::string, std::string> wanted_;
};

}  // namespace qkv::test

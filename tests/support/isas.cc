#include "support/isas.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace qkv::test {

const std::vector<Isa>& tested_isas() {
  static const std::vector<Isa> isas = [] {
    const char* names = std::getenv("QKV_TEST_ISAS");
    if (names == nullptr) return supported_isas();
    std::vector<Isa> named;
    for (std::string_view rest = names; !rest.empty();) {
      const std::string_view name = rest.substr(0, rest.find(','));
      named.push_back(parse_isa(name));
      rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    }
    return named;
  }();
  return isas;
}

}  // namespace qkv::test

// --json: one document on standard output, and no other text there. Keys keep the order in which they were given.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "support/text.h"

namespace qkv::cli {

using Json = nlohmann::ordered_json;

/// Prints the document with an end of line. What is not UTF-8 is replaced; numbers that JSON lacks (NaN) become null.
inline void print_json(const Json& document) { print_line(document.dump(2, ' ', false, Json::error_handler_t::replace)); }

}  // namespace qkv::cli

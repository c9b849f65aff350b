// --speed: the person's time beside qkv's, PyTorch's and the naive textbook's. Not: whether the code is right (it is asked anyway).
#pragma once

#include <filesystem>
#include <string_view>

#include "support/json.h"

namespace qkv::cli {

/// The three sizes, as the runner's request holds them: [{"batch", "length", "embed", "heads"}, ...].
Json speed_sizes();

/// qkv's own seconds on one thread, and those that the runner wrote to `folder`: [{sizes..., "qkv", "yours", "torch", "naive"},
/// ...], null where there is none. Empty where the task is none that is timed.
Json speed_of(std::string_view task, const std::filesystem::path& folder);

/// As ratios to qkv's time.
void print_speed(const Json& speed);

}  // namespace qkv::cli

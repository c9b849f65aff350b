// --rope KEY=VALUE,...: rotary positions as a command is given them. Not: what is done with them.
#pragma once

#include <string>

#include "qkv/rotary.h"

namespace qkv::cli {

struct RotaryChoice {
  RotaryOptions options;
  RotaryPositions positions;
};

/// "base=500000,scaling=llama3,factor=8,context=8192": keys base, dim, layout (half, interleaved), offset, scaling (linear,
/// ntk, yarn, llama3), factor, context, beta-fast, beta-slow, attention-factor, low, high. UsageError that names the key.
RotaryChoice parse_rotary(const std::string& text);

}  // namespace qkv::cli

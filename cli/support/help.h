// How --help looks: one column of options, one of what they mean, groups one line apart. Not: what it says (the commands).
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace qkv::cli {

std::shared_ptr<CLI::Formatter> help_formatter();

}  // namespace qkv::cli

// --sandbox: a command's words behind bubblewrap: nothing can be written but the scratch folder, no network, no other
// process in sight. Not: limits of time and memory, which hold with or without it (child.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "judge/scratch.h"

namespace qkv::cli {

/// UsageError when bubblewrap is not installed.
void require_sandbox();

/// `needed`: files and folders that the command reads, should they lie among temporary files, which it does not see.
std::vector<std::string> sandboxed(
    const std::vector<std::string>& words, const Scratch& scratch, const std::vector<std::filesystem::path>& needed);

/// The program that a shell would start, found by PATH; empty when there is none.
std::filesystem::path find_program(const std::string& name);

}  // namespace qkv::cli

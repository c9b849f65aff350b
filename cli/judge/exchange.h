// The files of a judgement in one folder: probes, answers, and what the runner saw (docs/practice.md). Not: who writes
// the answers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "judge/json.h"

namespace qkv::cli {

using judge::not_judged;
using judge::Subject;

/// A subject.json that cannot be understood is a verdict "failed".
Subject read_subject(const std::filesystem::path& folder);

/// Empty for what is no regular file of a size that an answer can have.
std::string read_text(const std::filesystem::path& path);

/// Names are probe-0.safetensors, probe-1.safetensors, ...
std::filesystem::path probe_path(const std::filesystem::path& folder, std::size_t n);
std::filesystem::path answer_path(const std::filesystem::path& folder, std::size_t n);

/// judge_readings of the answers in the folder, those of the n-th reading in assignment-N. A file that cannot be read
/// becomes an answer whose metadata says so under `error`.
judge::Finding judge_folder(
    const std::filesystem::path& folder, const Subject& subject, const std::vector<StateDict>& probes);

}  // namespace qkv::cli

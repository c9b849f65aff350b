// Files that are judged at every save.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "judge/options.h"

namespace qkv::cli {

struct Watched {
  std::string file;
  judge::Finding finding = {};
  std::string report = {};                     ///< of the finding, as it was printed
  std::filesystem::file_time_type saved = {};  ///< when it was judged
  int judged = 0;                              ///< how often
  double minutes = 0;                          ///< from the start to the last judgement
};

/// Judges each file now and whenever it is saved, and prints what changed, until all are right or the minutes are over.
/// Throws UsageError for a file that is not there at the start.
std::vector<Watched> watch(
    const std::vector<std::string>& files, const JudgeOptions& options, std::optional<double> minutes = {});

}  // namespace qkv::cli

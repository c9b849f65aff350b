// Runs the tool as several ranks, as a person does.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "cli/tool.h"

namespace qkv::test {

/// Tests that need mpirun; where it is not installed they are skipped by name.
class RanksTest : public ToolTest {
 protected:
  void SetUp() override {
    if (std::system("mpirun --version > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
    const char* const given = std::getenv("ASAN_OPTIONS");  // what Open MPI's plugins leak is not looked for
    ::setenv("ASAN_OPTIONS", ((given == nullptr ? "" : given) + std::string(":detect_leaks=0")).c_str(), 1);
  }

  /// mpirun and its settings. Root and more ranks than processors are fine for a test. Open MPI aborts a rank that
  /// copies from the memory of one that was just killed, before the rank can say so: copies go through shared memory.
  static inline const std::string kMpirun =
      "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none mpirun --allow-run-as-root "
      "--bind-to none ";

  /// The shell's line that starts `ranks` ranks; the temporary folder has a short name, as Open MPI's sockets need.
  /// Shared memory alone: it starts in half the time of Open MPI's own choice, which tests of failures and of
  /// differences keep.
  static std::string mpirun(int ranks, const std::string& words, const std::string& flags = {}) {
    return "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader " + kMpirun + flags + " -n " + std::to_string(ranks) +
           " '" QKV_TOOL "' " + words;
  }

  /// In the test's folder.
  Outcome shell(const std::string& line) const {
    const std::string command = "cd '" + path("").string() + "' && { " + line + "; } > .stdout 2> .stderr";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(path(".stdout")), contents(path(".stderr"))};
  }

  /// Lines on standard error that the tool wrote itself, sorted.
  static std::vector<std::string> own_lines(const Outcome& outcome) {
    std::vector<std::string> lines;
    std::istringstream text(outcome.err);
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with("qkv ")) lines.push_back(line);
    }
    std::ranges::sort(lines);
    return lines;
  }
};

}  // namespace qkv::test

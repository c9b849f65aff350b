// Runs the built tool as a person does, in its own folder.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "qkv/io/npy.h"
#include "qkv/tensor.h"

namespace qkv::test {

/// A command line. A literal is cut at spaces: "attend --q q.npy".
struct Words : std::vector<std::string> {
  using std::vector<std::string>::vector;
  Words(const char* line) {  // NOLINT: a line is its words
    std::istringstream words(line);
    for (std::string word; words >> word;) push_back(word);
  }
};

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Outcome {
  int code = -1;
  std::string out, err;
};

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::filesystem::path repository() { return QKV_ROOT; }

/// A temporary folder; the tool runs in it.
class ToolTest : public testing::Test {
 protected:
  ToolTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qkv-cli-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ToolTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

  /// `settings`: environment entries such as "NO_COLOR=1".
  Outcome run(const Words& words, const Words& settings = {}) const {
    const pid_t child = fork();
    if (child == 0) {
      const auto redirect = [&](const char* name, int descriptor) {
        dup2(open(path(name).c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), descriptor);
      };
      redirect(".stdout", STDOUT_FILENO);
      redirect(".stderr", STDERR_FILENO);
      become_tool(words, settings);
    }
    const int status = status_of(child);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(path(".stdout")), contents(path(".stderr"))};
  }

  /// Starts the tool, with `before` run in the new process first.
  template <class Before> pid_t start(const Words& words, Before before) const {
    const pid_t child = fork();
    if (child != 0) return child;
    dup2(open(path(".stderr").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0666), STDERR_FILENO);
    before();
    become_tool(words, {});
  }
  static int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  /// Never returns; call it in a child process.
  [[noreturn]] void become_tool(const Words& words, const Words& settings) const {
    std::vector<char*> arguments{const_cast<char*>("qkv")};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    for (const std::string& setting : settings) putenv(const_cast<char*>(setting.c_str()));
    if (chdir(folder_.c_str()) == 0) execv(QKV_TOOL, arguments.data());
    _exit(127);
  }

  /// Runs it and expects success with nothing on standard error.
  std::string output(const Words& words) const {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
  nlohmann::json json(const Words& words) const { return nlohmann::json::parse(output(words)); }

  /// Names in the folder that do not begin with a dot, sorted.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name != ".stdout" && name != ".stderr") names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  /// Expects `code`, one line on standard error that has every fragment, nothing on standard output and no new file.
  void expect_refused(const Words& words, const Words& fragments, int code = 2) const {
    SCOPED_TRACE(testing::PrintToString(words));
    const std::vector<std::string> before = files();
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("qkv") && outcome.err.ends_with('\n')) << outcome.err;
    for (const std::string& fragment : fragments)
      EXPECT_NE(outcome.err.find(fragment), std::string::npos) << outcome.err;
    for (const char byte : outcome.err)
      EXPECT_TRUE(byte == '\n' || static_cast<unsigned char>(byte) >= 0x20) << outcome.err;
    EXPECT_EQ(files(), before);
  }

  template <class T> void save(const std::string& name, const Tensor<T>& tensor) const {
    io::save_npy(path(name), any_tensor(tensor));
  }
  AnyTensor load(const std::string& name) const { return io::load_npy(path(name)); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace qkv::test

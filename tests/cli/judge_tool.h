// Shared by the tests of `qkv judge`: a Python with NumPy, temporary files of their own.
#pragma once

#include <chrono>

#include "cli/tool.h"

namespace qkv::test {

/// The tool's temporary files lie in tmp/, which must be empty when a test ends.
class JudgeTest : public ToolTest {
 protected:
  JudgeTest() { std::filesystem::create_directory(path("tmp")); }
  void TearDown() override {
    for (int wait = 0; wait < 100 && !std::filesystem::is_empty(path("tmp")); ++wait) usleep(50'000);
    EXPECT_TRUE(std::filesystem::is_empty(path("tmp"))) << "a scratch folder stays";
  }

  Outcome judge(const Words& words) const {
    return run(Words{"judge"} + words, {"TMPDIR=" + path("tmp").string(), "PYTHONDONTWRITEBYTECODE=1"});
  }
  /// `code`: the exit code that is expected; -1: any.
  nlohmann::json finding(Words words, int code = -1) const {
    words.push_back("--json");
    const Outcome outcome = judge(words);
    if (code >= 0) {
      EXPECT_EQ(outcome.code, code) << outcome.out;
    }
    EXPECT_EQ(outcome.err, "");
    const nlohmann::json document = nlohmann::json::parse(outcome.out, nullptr, false);
    EXPECT_FALSE(document.is_discarded()) << outcome.out;
    return document;
  }

  /// The first that imports the module: that of the environment, of the repository's build, of PATH. Empty: none does.
  static std::string python_with(const std::string& module) {
    const std::filesystem::path root = QKV_ROOT;
    const char* environment = std::getenv("VIRTUAL_ENV");
    for (const std::string& one : {environment == nullptr ? std::string() : std::string(environment) + "/bin/python",
             (root / "build/venv/bin/python").string(), std::string("python3")}) {
      const std::string command = "'" + one + "' -I -c 'import " + module + "' >/dev/null 2>&1";
      if (!one.empty() && std::system(command.c_str()) == 0) return one;
    }
    return {};
  }

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace qkv::test

/// Skips a test where no Python has the module; otherwise `name` is the interpreter.
#define QKV_NEEDS_PYTHON(name, module)          \
  const std::string name = python_with(module); \
  if (name.empty()) GTEST_SKIP() << "no Python with " << (module)

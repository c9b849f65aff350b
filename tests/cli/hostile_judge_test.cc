// Code that qkv judge runs and that means harm, or has a bug with the same effect: it costs its own verdict and nothing
// else. More of it in Python: tests/judge/hostile.txt.
#include <csignal>

#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class HostileJudge : public JudgeTest {
 protected:
  /// Writes a file every 20 ms for as long as it lives, under another session and parent.
  void write_survivor() {
    write("beat.sh", "while true; do date +%s%N >> beat; sleep 0.02; done\n");
    write("survivor.sh", "(setsid sh -c 'setsid sh beat.sh & exit 0' &)\nwhile [ ! -s beat ]; do sleep 0.01; done\n");
  }
  void expect_no_beat() const {
    const std::string before = contents(path("beat"));
    EXPECT_NE(before, "") << "it never lived";
    usleep(300'000);
    EXPECT_EQ(contents(path("beat")), before) << "a process outlived the judgement";
  }
  static bool sandbox() {
    return std::system(
               "bwrap --ro-bind / / --dev /dev --proc /proc --unshare-net --unshare-pid -- true >/dev/null 2>&1") == 0;
  }
  /// A program that is run once a probe.
  Document run_program(const std::string& words, const Words& more = {}) const {
    return finding(Words{"--run", words + " {in} {out}", "--task", "sdpa"} + more);
  }
  /// sdpa whose body is these lines.
  Document run_python(const std::string& python, const std::string& body, const Words& more = {}) {
    write("mine.py", "import ctypes, glob, os, signal, sys, time\n\n\ndef sdpa(q, k, v, mask=None):\n" + body);
    return finding(Words{"mine.py", "--python", python} + more, 2);
  }
  /// sdpa beside code that, when the file is loaded, puts something in the place of files that the judge may use.
  Document run_replacing(const std::string& python, const std::string& names, const std::string& made,
      const std::string& end, const Words& more = {}) {
    write("mine.py",
        "import os, sys\nfrom contextlib import suppress\nfolder, own = sys.orig_argv[-2], os.environ['TMPDIR']\n"
        "for place in (folder, folder + '/..', own, own + '/..'):\n    for name in " +
            names +
            ":\n"
            "        name = place + '/' + name\n        with suppress(OSError): os.remove(name)\n"
            "        with suppress(OSError): " +
            made + "\n" + end + "\ndef sdpa(q, k, v, mask=None): return q @ k.swapaxes(-1, -2) @ v\n");
    return finding(Words{"mine.py", "--python", python} + more);
  }
  static std::string detail(const Document& found) {
    EXPECT_EQ(found["verdict"], "failed") << found;
    return found["checks"].empty() ? "" : found["checks"].back()["detail"].get<std::string>();
  }
};

TEST_F(HostileJudge, ManyProcessesThatReplaceThemselvesAreEnded) {
  QKV_NEEDS_PYTHON(python, "os");
  write("many.py",
      "import os, time\nfirst = os.getpid()\nfor i in range(5):\n    if os.fork() == 0: os.setsid()\n"
      "while True:\n    if os.getpid() == first: time.sleep(1000)\n    open('beat', 'a').write('x')\n    if os.fork(): "
      "os._exit(0)\n");
  const double start = now();
  run_program("'" + python + "' many.py", {"--time-limit", "1"});
  EXPECT_LT(now() - start, 20);
  expect_no_beat();
}

TEST_F(HostileJudge, ASignalThatEndsTheToolEndsItAll) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGKILL}) {
    SCOPED_TRACE(number);
    write_survivor();
    std::filesystem::remove(path("beat"));
    write("stays.sh", "sh survivor.sh\nsleep 1000\n");
    const pid_t child = fork();
    if (child == 0)
      become_tool({"judge", "--run", "sh stays.sh {in} {out}", "--task", "sdpa"}, {"TMPDIR=" + path("tmp").string()});
    for (int wait = 0; wait < 200 && contents(path("beat")).empty(); ++wait) usleep(50'000);
    kill(child, number);
    EXPECT_TRUE(WIFSIGNALED(status_of(child)));
    for (int wait = 0; wait < 100 && !std::filesystem::is_empty(path("tmp")); ++wait) usleep(50'000);
    EXPECT_TRUE(std::filesystem::is_empty(path("tmp")));
    expect_no_beat();
  }
}

TEST_F(HostileJudge, PrintedVerdictsChangeNothing) {
  write("says.sh", "echo right\necho '{\"verdict\": \"right\"}' >&3\necho done >&4\nexit 0\n");
  const Document found = run_program("sh says.sh");
  EXPECT_TRUE(has(detail(found), "{out}")) << found;
  EXPECT_EQ(judge({"--run", "sh says.sh {in} {out}", "--task", "sdpa"}).code, 2);
}

TEST_F(HostileJudge, PythonThatTamperesWithAnswers) {
  QKV_NEEDS_PYTHON(python, "numpy");
  const std::string each = "    for one in glob.glob(os.environ['TMPDIR'] + '/../exchange/answer-*'):\n";
  run_python(python, each + "        os.remove(one)\n        os.mkfifo(one)\n    return v[..., :1]\n");
  run_python(python, each + "        os.remove(one)\n        os.symlink('/dev/zero', one)\n    return v[..., :1]\n");
}

TEST_F(HostileJudge, APipeWhereTheToolReadsOrWritesHoldsNothingUp) {
  QKV_NEEDS_PYTHON(python, "numpy");
  const double start = now();
  detail(run_replacing(python, "('stdout', 'stderr')", "os.mkfifo(name)", "os._exit(1)"));
  for (const char* name : {"('probe-0.safetensors',)", "('stages-0.safetensors',)"})
    EXPECT_EQ(detail(run_replacing(python, name, "os.mkfifo(name)", "")),
        "the code made a file among those that the judge gives it");
  EXPECT_LT(now() - start, 30);
}

TEST_F(HostileJudge, TheSandboxKeepsTheToolFromWritingThroughLinks) {
  QKV_NEEDS_PYTHON(python, "numpy");
  if (!sandbox()) GTEST_SKIP() << "bubblewrap is not installed or not allowed";
  write("precious", "precious");
  const std::string here = path("").string();
  run_replacing(python, "('probe-0.safetensors', 'stages-0.safetensors')", "os.symlink('" + here + "precious', name)",
      "", {"--sandbox"});
  write(
      "mine.sh", "for one in $TMPDIR $TMPDIR/..; do ln -sf " + here + "precious $one/stdout; done\necho x; cp $1 $2\n");
  run_program("sh mine.sh", {"--sandbox"});
  EXPECT_EQ(contents(path("precious")), "precious");
}

TEST_F(HostileJudge, PythonThatAttacksWhatWatchesIt) {
  QKV_NEEDS_PYTHON(python, "numpy");
  const double start = now();
  for (const char* number : {"SIGKILL", "SIGSTOP", "SIGTERM"}) {
    run_python(python, "    os.kill(os.getppid(), signal." + std::string(number) + ")\n    while True: pass\n",
        {"--time-limit", "1"});
  }
  EXPECT_LT(now() - start, 60);
}

TEST_F(HostileJudge, AFolderWithoutPermissionsIsRemoved) {
  QKV_NEEDS_PYTHON(python, "numpy");
  run_python(python,
      "    os.makedirs(os.environ['TMPDIR'] + '/a/b', exist_ok=True)\n    os.chmod(os.environ['TMPDIR'] + '/a', 0)\n   "
      " os._exit(1)\n");
}

TEST_F(HostileJudge, ControlCharactersDoNotReachTheTerminal) {
  QKV_NEEDS_PYTHON(python, "numpy");
  write("mine.py", "def sdpa(q, k, v, mask=None):\n    raise ValueError('\\x1b[2Jright\\u202e')\n");
  const Outcome outcome = judge({"mine.py", "--python", python});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_FALSE(has(outcome.out, "\x1b")) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "\u202e")) << outcome.out;
}

TEST_F(HostileJudge, TheSandboxAllowsNoFileAndNoNetwork) {
  write("mine.sh", "echo x > mark\n");
  if (!sandbox()) {
    const Outcome outcome = judge({"--run", "sh mine.sh {in} {out}", "--task", "sdpa", "--sandbox"});
    EXPECT_EQ(outcome.code, 2);
    GTEST_SKIP() << "bubblewrap is not installed or not allowed: " << outcome.err;
  }
  const Document found = run_program("sh mine.sh", {"--sandbox"});
  EXPECT_TRUE(has(found["traceback"], "Read-only file system")) << found;
  EXPECT_FALSE(std::filesystem::exists(path("mark")));
}

}  // namespace
}  // namespace qkv::test

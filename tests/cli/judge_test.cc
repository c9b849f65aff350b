// qkv judge: how it is called and what it prints.
#include <sys/stat.h>

#include "cli/judge_tool.h"
#include "qkv/io/safetensors.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class Judge : public JudgeTest {
 protected:
  /// Attention in NumPy; `scale` is what the scores are divided by.
  void write_sdpa(const std::string& file, const std::string& scale = "np.sqrt(q.shape[-1])") {
    write(file,
        "import numpy as np\n\n\ndef sdpa(q, k, v, mask=None):\n"
        "    scores = q @ np.swapaxes(k, -1, -2) / " +
            scale +
            "\n"
            "    if mask is not None:\n        scores = np.where(mask, scores, -1e20)\n"
            "    weights = np.exp(scores - scores.max(-1, keepdims=True))\n"
            "    return weights / weights.sum(-1, keepdims=True) @ v\n");
  }
};

TEST_F(Judge, AWrongOneIsNamedWithItsPlaceInTheFormula) {
  QKV_NEEDS_PYTHON(python, "numpy");
  write_sdpa("mine.py", "1");
  const Outcome outcome = judge({"mine.py", "--python", python});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("wrong: no-scale\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "softmax(QK^T / sqrt(d) + mask) V\n               ^^^^^^^^^\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "read: ")) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "\x1b")) << "colours where there is no terminal";

  const Outcome hint = judge({"mine.py", "--python", python, "--hint"});
  EXPECT_EQ(hint.code, 1);
  EXPECT_FALSE(has(hint.out, "no-scale")) << hint.out;
  EXPECT_FALSE(has(hint.out, "^^^")) << hint.out;
}

/// What works under `python3 mine.py` works here: standard streams with all that Python's have, sys.argv, modules of
/// PYTHONPATH.
TEST_F(Judge, TheCodeRunsAsUnderPython) {
  QKV_NEEDS_PYTHON(python, "numpy");
  std::filesystem::create_directory(path("mine"));
  std::filesystem::create_directory(path("beside"));
  write("beside/of_the_path.py", "");
  write_sdpa("mine/mine.py");
  const std::string sdpa = contents(path("mine/mine.py"));
  for (const char* first :
      {"sys.stdout.reconfigure(encoding='utf-8')", "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')",
          "faulthandler.enable()", "argparse.ArgumentParser().parse_args()", "import of_the_path"}) {
    write("mine/mine.py", "import argparse, faulthandler, io, sys\n" + std::string(first) + "\nprint('掩码')\n" + sdpa);
    const Outcome outcome = run({"judge", "mine/mine.py", "--python", python},
        {"TMPDIR=" + path("tmp").string(), "PYTHONPATH=" + path("beside").string()});
    EXPECT_EQ(outcome.code, 0) << first << ": " << outcome.out << outcome.err;
  }
}

TEST_F(Judge, EditorsAreToldTheLine) {
  QKV_NEEDS_PYTHON(python, "numpy");
  write_sdpa("my file.py", "1");
  const Words words = {"my file.py", "--python", python};
  const Outcome both = judge(words + Words{"--problems", "--sarif", "found.sarif"});
  EXPECT_EQ(both.code, 1);
  EXPECT_TRUE(both.out.starts_with("wrong: no-scale\n")) << both.out;
  EXPECT_TRUE(both.out.ends_with("\nmy file.py:5: error: The scores are not divided by sqrt(d). [no-scale]\n"))
      << both.out;
  EXPECT_EQ(judge(words + Words{"--sarif", "-"}).out, contents(path("found.sarif")));
  const Document found = Document::parse(contents(path("found.sarif")));
  EXPECT_EQ(found["version"], "2.1.0");
  const Document &run = found["runs"][0], &result = run["results"][0], &place = result["locations"][0];
  EXPECT_EQ(run["tool"]["driver"]["rules"][0]["id"], "no-scale");
  EXPECT_TRUE(run["tool"]["driver"]["name"].is_string());
  const std::string uri = run["tool"]["driver"]["rules"][0]["helpUri"], page = uri.substr(0, uri.find('#'));
  EXPECT_TRUE(std::filesystem::exists(QKV_ROOT + page.substr(page.find("/docs/")))) << uri;
  EXPECT_EQ(result["ruleId"], "no-scale");
  EXPECT_EQ(result["message"]["text"], "The scores are not divided by sqrt(d).");
  EXPECT_EQ(place["physicalLocation"]["artifactLocation"]["uri"], "my%20file.py");
  EXPECT_EQ(place["physicalLocation"]["region"]["startLine"], 5);
  EXPECT_EQ(run["properties"], (Document{{"task", "sdpa"}, {"name", "sdpa"}, {"verdict", "wrong"}}));
  const Outcome hint = judge(words + Words{"--problems", "--hint", "--sarif", "hint.sarif"});
  EXPECT_FALSE(has(hint.out + contents(path("hint.sarif")), "no-scale")) << hint.out;

  write_sdpa("my file.py", "nothing");
  EXPECT_TRUE(has(judge(words + Words{"--problems"}).out, "\nmy file.py:5: error: failed: ")) << "where it was raised";
  write_sdpa("my file.py");
  EXPECT_FALSE(has(judge(words + Words{"--problems", "--sarif", "found.sarif"}).out, "error:"));
  EXPECT_EQ(Document::parse(contents(path("found.sarif")))["runs"][0]["results"], Document::array());
  write("mine.py", "def add(a, b):\n    return a + b\n");
  EXPECT_TRUE(has(judge({"mine.py", "--python", python, "--sarif", "-"}).out, "\"ruleId\": \"no-task\""));
  expect_refused("judge mine.py --json --problems", {"--json", "--problems"});
  expect_refused("judge mine.py --sarif mine.py", {"--sarif", "input"});
  expect_refused("judge mine.py --sarif other.py", {"--sarif \"other.py\"", ".sarif or .json"});
  write("mine", "#!/bin/sh\n");
  expect_refused({"judge", "--run", "sh 'mine' {in} {out}", "--task", "sdpa", "--sarif", "mine"}, {"--sarif", "input"});
  output("judge --probes p --task sdpa");
  for (const char* name : {"p/probe-0.safetensors", "p/answer-1.safetensors"})
    expect_refused({"judge", "--answers", "p", "--sarif", name}, {"--sarif", name, "input"});
  expect_refused("judge --catalogue --sarif -", {"--sarif", "a verdict"});
}

TEST_F(Judge, ASecondReadingOfParametersHasAnswersOfItsOwn) {
  QKV_NEEDS_PYTHON(python, "numpy");
  write("mine.py",
      "import numpy as np\n\n\nclass SelfAttentionV1:\n    def __init__(self, dim):\n"
      "        self.W_q, self.W_k, self.W_v = np.random.randn(3, dim, dim)\n\n    def forward(self, x):\n"
      "        q, k, v = (x @ W.T for W in (self.W_q, self.W_k, self.W_v))\n"
      "        weights = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(x.shape[-1]))\n"
      "        return weights / weights.sum(-1, keepdims=True) @ v\n");
  const Outcome outcome = judge({"mine.py", "--python", python});
  EXPECT_TRUE(has(outcome.out, "no-max-subtraction")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "reading the parameters as matrices [out, in] (x W^T)")) << outcome.out;
}

TEST_F(Judge, ArgumentsOfOtherNamesAreMapped) {
  QKV_NEEDS_PYTHON(python, "numpy");
  write_sdpa("mine.py");
  write("odd.py", contents(path("mine.py")) + "\n\ndef odd(eins, zwei, drei):\n    return sdpa(zwei, eins, drei)\n");
  const Document found = finding(
      {"odd.py:odd", "--task", "sdpa", "--python", python, "--map", "q=zwei", "--map", "k=eins", "--map", "v=drei"});
  EXPECT_EQ(found["verdict"], "right") << found;
}

TEST_F(Judge, APythonWithoutNumPyIsNamed) {
  write("bare.sh", "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'numpy'\" >&2\nexit 1\n");
  std::filesystem::permissions(path("bare.sh"), std::filesystem::perms::owner_all);
  write("mine.py", "def sdpa(q, k, v):\n    return v\n");
  expect_refused("judge mine.py --python ./bare.sh", {"./bare.sh", "has no NumPy", "--python"});
  expect_refused("judge mine.py --python ./none.sh", {"--python", "none.sh"});
}

TEST_F(Judge, NoRoomForItsOwnFilesIsNoFaultOfTheCode) {
  QKV_NEEDS_PYTHON(python, "numpy");
  write("mine.py", "def sdpa(q, k, v):\n    return v\n");
  const std::string command = "cd '" + path("").string() +
                              "'; ulimit -f 4; TMPDIR=tmp '" QKV_TOOL "' judge mine.py --python '" + python +
                              "' > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system(("bash -c \"" + command + "\"").c_str())), 2);
  EXPECT_EQ(contents(path("out")), "");
  EXPECT_TRUE(has(contents(path("err")), "cannot be written: is there room in its folder (TMPDIR)?"))
      << contents(path("err"));
}

TEST_F(Judge, ProbesAndAnswersAreFiles) {
  output({"judge", "--probes", "probes", "--task", "sdpa", "--sizes", "{\"heads\": 2, \"head_dim\": 5}"});
  std::size_t count = 0;
  for (; std::filesystem::exists(path("probes/probe-" + std::to_string(count) + ".safetensors")); ++count) {
    const StateDict probe = io::load_safetensors(path("probes/probe-" + std::to_string(count) + ".safetensors"));
    EXPECT_EQ(probe.metadata.at("task"), "sdpa");
    EXPECT_EQ(probe.at("q").dtype, DType::kF64);
    EXPECT_EQ(probe.at("q").sizes.at(1), 2);
    EXPECT_EQ(probe.at("q").sizes.at(3), probe.metadata.at("name").ends_with("by hand") ? 2 : 5);
    StateDict answer;  // what nobody would call attention
    answer.add("out", probe.at("q").clone());
    io::save_safetensors(path("probes/answer-" + std::to_string(count) + ".safetensors"), answer);
  }
  EXPECT_GE(count, 5u);
  const Document found = finding({"--answers", "probes"});
  EXPECT_EQ(found["verdict"], "unknown") << found;
  EXPECT_EQ(judge({"--answers", "probes"}).code, 1);
  expect_refused("judge --probes probes --task sdpa", {"\"probes\"", "empty folder"});
  expect_refused("judge --answers probes --task mha", {"mha", "sdpa"});
}

TEST_F(Judge, ProgramsAreRunOnceAProbe) {
  write("copy.sh", "echo called >> calls\ncp \"$1\" \"$2\"\n");
  const Document copied = finding({"--run", "sh 'copy.sh' {in} \"{out}\"", "--task", "sdpa"});
  EXPECT_EQ(copied["verdict"], "failed") << "a probe is no answer: " << copied;
  EXPECT_GE(std::ranges::count(contents(path("calls")), '\n'), 5);

  const Document unfilled =
      finding({"--run", "sh -c 'echo \"fill in: the scores\" >&2; exit 3' {in} {out}", "--task", "sdpa"});
  EXPECT_EQ(unfilled["verdict"], "unfilled");
  EXPECT_EQ(unfilled["checks"][0]["detail"], "fill in: the scores");

  const Document failed = finding({"--run", "sh -c 'echo some reason >&2; exit 3' {in} {out}", "--task", "sdpa"});
  EXPECT_EQ(failed["verdict"], "failed");
  EXPECT_TRUE(has(failed["checks"][0]["detail"], "exit code 3")) << failed;
  EXPECT_EQ(failed["traceback"], "some reason");

  const Document silent = finding({"--run", "true {in} {out}", "--task", "sdpa"});
  EXPECT_TRUE(has(silent["checks"][0]["detail"], "{out}")) << silent;
}

TEST_F(Judge, WrongUseIsOneLine) {
  write("mine.py", "x = 1\n");
  write("mine.cc", "int main() {}\n");
  expect_refused({"judge"}, {"FILE.py", "--run"});
  expect_refused({"judge", "none.py"}, {"\"none.py\"", "no such file"});
  std::filesystem::create_directory(path("folder"));
  mkfifo(path("pipe.py").c_str(), 0600);
  expect_refused({"judge", "folder"}, {"\"folder\": is a directory"});
  expect_refused({"judge", "pipe.py"}, {"\"pipe.py\": is not a regular file"});
  expect_refused({"judge", "mine.cc"}, {"mine.cc", "--run"});
  expect_refused({"judge", "mine.py:"}, {"mine.py:"});
  expect_refused("judge mine.py --task nonsense", {"--task", "nonsense", "sdpa"});
  expect_refused("judge mine.py --map W_q", {"--map", "NAME=YOURS"});
  expect_refused("judge mine.py --time-limit 0", {"--time-limit"});
  expect_refused("judge mine.py --memory 0", {"--memory"});
  expect_refused({"judge", "mine.py", "--run", "true {in} {out}"}, {"FILE and --run"});
  expect_refused({"judge", "--run", "true {in} {out}"}, {"--run", "--task"});
  expect_refused({"judge", "--run", "true {in}", "--task", "sdpa"}, {"{out}"});
  expect_refused({"judge", "--run", "true '{in} {out}", "--task", "sdpa"}, {"quote"});
  expect_refused({"judge", "--run", "./none {in} {out}", "--task", "sdpa"}, {"./none"});
  expect_refused({"judge", "--probes", "probes"}, {"--task"});
  expect_refused({"judge", "--answers", "none"}, {"--answers", "none"});
  for (const auto& [task, sizes, says] :
      {std::tuple{"sdpa", "{\"heads\": 0}", "heads must be an integer from 1 to 256: got 0"},
          {"sdpa", "{\"foo\": 3}", "the task sdpa has no \"foo\": it has batch, length, memory, heads, head_dim"},
          {"sdpa", "{\"embed\": 8}", "has no \"embed\""}, {"beam", "{\"batch\": 3}", "its sizes are fixed"},
          {"self-attention", "{\"heads\": 4}", "it has batch, length, embed, head_dim"},
          {"mha", "{\"heads\": 3, \"embed\": 8}", "heads must divide embed: got heads 3, embed 8"},
          {"mha", "{\"head_dim\": 3}", "head_dim must be embed / heads: got head_dim 3, embed / heads 6"},
          {"gqa", "{\"heads\": 5, \"kv_heads\": 3}", "kv_heads must divide heads: got kv_heads 3, heads 5"},
          {"paged", "{\"batch\": 3}", "'block_table'"}, {"causal", "{\"length\": 1}", "cannot have these sizes"}})
    expect_refused({"judge", "--probes", "p", "--task", task, "--sizes", sizes}, {"--sizes: ", says});
  expect_refused({"judge", "--catalogue", "--hint"}, {"--hint"});
  for (const char* option : {"--seed", "--memory", "--time-limit"}) {
    expect_refused({"judge", "--catalogue", option, "100"}, {option, "leave it out"});
    expect_refused({"judge", "--answers", "none", option, "100"}, {option, "leave it out"});
  }
  expect_refused("judge mine.py --map W_q=k --map W_q=q", {"--map", "\"W_q\"", "twice"});
  expect_refused("judge mine.py --init d=8,d=12", {"--init", "\"d\"", "twice"});
  expect_refused("judge mine.py --json --hint", {"--json", "--hint"});
  expect_refused("judge mine.py --sarif - --problems", {"--sarif -", "--problems"});
  expect_refused({"judge", "mine.py", "--memory", "17592186044416"}, {"--memory", "1099511627776"});  // << 20 is 2^64
}

}  // namespace
}  // namespace qkv::test

// Attacks on the tool: sizes of nothing, absurd numbers, outputs that cannot be written, signals,
// limits.
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "cli/tool.h"
#include "qkv/io/safetensors.h"

namespace qkv::test {
namespace {

namespace fs = std::filesystem;

class Hostile : public ToolTest {
 protected:
  void draw(std::vector<Index> sizes) {
    Tensor<float> tensor(std::move(sizes));
    for (Index n = 0; n < tensor.count(); ++n) tensor.data()[n] = static_cast<float>(n % 13) / 13;
    save("t.npy", tensor);
  }
  static Words attend(const Words& more) {
    return Words{"attend", "--q", "t.npy", "--k", "t.npy", "--v", "t.npy", "--out", "out.npy"} + more;
  }
  bool has_temporary() const {
    return std::ranges::any_of(files(), [](const std::string& name) { return name.starts_with(".qkv-"); });
  }
};

TEST_F(Hostile, IntegersAreDecimalAndInRange) {
  const std::string huge = "99999999999999999999999";
  const auto refused = [&](const Words& command, const std::string& option, const std::string& text) {
    expect_refused(command + Words{option, text}, {option + " must be an integer", "got \"" + text + "\""});
  };
  for (const std::string text : {huge.c_str(), "1e3", "0x10", "-5", "5.0", "+5", " 5", "5 ", "five", ""}) {
    refused({"train"}, "--steps", text);
    refused({"train"}, "--seed", text);
    refused({"train"}, "--batch", text);
    refused({"attend", "--out", "o.npy"}, "--seed", text);
    refused({"generate", "--model", "m", "--prompt", "a"}, "--tokens", text);
    refused({"forms"}, "--length", text);
    refused({"explain"}, "--threads", text);
    refused({"mask", "causal"}, "--tq", text);
  }
  refused({"train"}, "--seed", "18446744073709551616");
  refused({"explain"}, "--threads", "1025");
  refused({"train"}, "--heads", "0");
  expect_refused({"explain", "--threads", "0"}, {"--threads must be an integer from 1 to 1024: got \"0\""});
  EXPECT_EQ(json("ablate same-k --json --seed 18446744073709551615")["seed"].get<std::uint64_t>(), ~std::uint64_t{0});
  EXPECT_EQ(json("ablate same-k --json --seed 010")["seed"], 10);  // not octal
}

TEST_F(Hostile, NamesThatMeanNothing) {
  expect_refused({"bench", ""}, {"CASE", "\"\""});
  expect_refused({"bench", "fwd-f32", ""}, {"CASE", "\"\""});
  draw({3, 3});
  for (const char* command : {"bench --list", "lesson", "lesson --out l.html", "map t.npy"}) {
    for (const Words& more : {Words{"--isa", "garbage"}, {"--bits", "garbage"}})
      expect_refused(Words(command) + more, {"\"garbage\""});
  }
}

TEST_F(Hostile, ADeepListOfTokensIsRefused) {
  constexpr std::size_t kDepth = 1'000'000;
  write("deep.json", R"({"queries": )" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}");
  StateDict qk;
  for (const char* name : {"q", "k"}) qk.add(name, any_tensor(Tensor<float>({1, 1, 2, 4})));
  io::save_safetensors(path("qk.safetensors"), qk);
  expect_refused(
      "map --qk qk.safetensors --tokens deep.json --out o.html", {"--tokens", "must be a JSON list of strings"});
}

/// 200 bytes must neither walk 2^53 rows nor ask for gigabytes.
TEST_F(Hostile, SmallFilesDoNotAskForLargeLayersOrPictures) {
  draw({1, 2, 4});
  const Words layer = "layer mha --state state.safetensors --x t.npy --out y.npy";
  const std::string header =
      R"({"q_proj.weight":{"dtype":"F32","shape":[9007199254740992,0],"data_offsets":[0,0]}})";  // no writer takes it
  write("state.safetensors", std::string({static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0}) + header);
  expect_refused(layer, {"--state", "beside an axis of 0"});
  StateDict row;
  row.add("q_proj.weight", any_tensor(Tensor<float>({1, 100'000})));
  io::save_safetensors(path("state.safetensors"), row);
  expect_refused(layer + Words{"--heads", "1"}, {"q_proj.weight", "k_proj.weight"});
  draw({100'000, 0, 0});
  expect_refused("map t.npy --out o.svg", {"at most 65536 heads are drawn", "got 1 layers of 100000"});
}

TEST_F(Hostile, OutputsThatCannotBeWrittenAreToldBeforeTheWork) {
  draw({1, 1, 4, 4});
  const Words train{"train", "--steps", "1000000000", "--out"};
  const auto trained_to = [&](const std::string& path) {
    Words words = train;
    words.push_back(path);
    return words;
  };
  expect_refused(attend({"--lse", ""}), {"--lse needs the name of a file"});
  expect_refused(trained_to(""), {"--out needs the name of a file"});
  fs::create_symlink("nowhere/m.safetensors", path("link.safetensors"));
  fs::create_symlink("nothing.safetensors", path("near.safetensors"));
  expect_refused(trained_to("link.safetensors"), {"--out", "link.safetensors", "leads nowhere"});
  expect_refused(trained_to("near.safetensors"), {"--out", "near.safetensors", "leads nowhere"});
}

/// NaN is no success.
TEST_F(Hostile, ATrainingThatDivergesIsAnError) {
  for (const char* lr : {"1e30", "1e300"})
    expect_refused(
        {"train", "--steps", "40", "--lr", lr, "--json", "--out", "m.safetensors"}, {"the loss is ", "--lr"}, 1);
  EXPECT_EQ(json("train --steps 0 --json")["final_loss"], nullptr);
  output("train --steps 0 --out m.safetensors");
  StateDict state = io::load_safetensors(path("m.safetensors")), broken;
  broken.metadata = state.metadata;
  for (const StateDict::Entry& entry : state.entries()) broken.add(entry.name, entry.tensor.clone());
  const_cast<AnyTensor&>(broken.at("head.bias")).bytes.assign(28, std::byte{255});
  io::save_safetensors(path("nan.safetensors"), broken);
  for (const Words& words : {Words{"generate", "--prompt", "a", "--model"}, {"train", "--init"}, {"map"}})
    expect_refused(words + Words{"nan.safetensors"}, {"nan.safetensors", "head.bias must be finite"});
  Tensor<std::int64_t> batches({1, 1, 3});
  batches.data()[1] = std::numeric_limits<Index>::max();
  save("b.npy", batches);
  expect_refused("train --batches b.npy", {"--batches \"b.npy\"", "ids must be from 0 to 2147483647"});
}

TEST_F(Hostile, MessagesNameTheFileThatIsWrong) {
  StateDict qk;
  for (const char* name : {"q", "k"}) qk.add(name, any_tensor(Tensor<float>({1, 2, 4})));
  io::save_safetensors(path("qk.safetensors"), qk);
  write("three.json", R"(["a", "b", "c"])");
  expect_refused("map --qk qk.safetensors --tokens three.json --out o.html", {"--tokens \"three.json\"", "2", "got 3"});
  expect_refused("map qk.safetensors", {"--qk \"qk.safetensors\""});
  qk.metadata["window"] = "-9223372036854775808,0";  // its absolute value is no number
  io::save_safetensors(path("qk.safetensors"), qk);
  expect_refused("map --qk qk.safetensors --out o.html", {"--qk", "window", "1099511627776"});
  StateDict page;
  page.metadata = {{"format", "qkv.explorer.1"}, {"explorer", "{\"views\": ["}};
  io::save_safetensors(path("page.safetensors"), page);
  expect_refused("map --qk page.safetensors --out o.html", {"page.safetensors", "\"explorer\" must be JSON"});
  draw({1, 1, 3, 2});
  save("keep.npy", Tensor<std::uint8_t>({3, 3}));
  expect_refused(attend({"--keep", "keep.npy"}), {"--keep \"keep.npy\" has the shape [3, 3]"});
}

TEST_F(Hostile, OutputsDoNotReplaceInputs) {
  draw({3, 3});
  fs::copy_file(path("t.npy"), path("w.svg"));
  expect_refused("map w.svg --out w.svg", {"--out", "is an input"});
  write("qk.html", "x");
  expect_refused("map --qk qk.html --out qk.html", {"--out", "is an input"});
  expect_refused("map --qk t.npy --tokens qk.html --out qk.html", {"--out", "is an input"});
  write("text.safetensors", "abababababababababab");
  expect_refused("train --text text.safetensors --out text.safetensors", {"--out", "is an input"});
  expect_refused("train --batches qk.html --map qk.html", {"--map", "is an input"});
}

TEST_F(Hostile, AReadOnlyOutputIsToldBeforeTheWork) {
  write("old.safetensors", "old");
  fs::permissions(path("old.safetensors"), fs::perms(0444));
  fs::permissions(path(""), fs::perms::all);
  // root may write everything: nobody must not.
  const pid_t child = start({"train", "--steps", "1000000000", "--out", "old.safetensors"}, [] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
    if (access(QKV_TOOL, X_OK) != 0) _exit(99);
  });
  const int status = status_of(child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 99 || WEXITSTATUS(status) == 127)
    GTEST_SKIP() << "the tool cannot be run by another user here";
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_NE(contents(path(".stderr")).find("read-only"), std::string::npos) << contents(path(".stderr"));
  EXPECT_EQ(contents(path("old.safetensors")), "old");
}

/// Between the first temporary file and the renames lie 200 MB of other outputs.
TEST_F(Hostile, SignalsLeaveNoTemporaryFiles) {
  draw({1, 1, 4096, 8});
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) {
    int status = 0;
    for (int tries = 0; tries < 10 && WIFEXITED(status) && WEXITSTATUS(status) == 0; ++tries) {  // the signal was late
      const pid_t child = start(attend({"--weights", "w.npy", "--applied", "a.npy", "--lse", "l.npy"}), [] {});
      bool ended = false;
      while (!has_temporary() && !ended) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ended = waitpid(child, &status, WNOHANG) != 0;
      }
      if (ended) continue;
      kill(child, number);
      status = status_of(child);
    }
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    EXPECT_FALSE(has_temporary()) << testing::PrintToString(files());
  }
}

TEST_F(Hostile, IgnoredSignalsStayIgnored) {
  draw({1, 1, 4096, 8});
  const pid_t child = start(attend({"--weights", "w.npy"}), [] { std::signal(SIGHUP, SIG_IGN); });
  while (!has_temporary() && !fs::exists(path("out.npy"))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(child, SIGHUP);
  const int status = status_of(child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

/// A limit on the size of files, as a full disk, is an error with a text, not a silent death; what was there stays.
/// Every kind of output at sizes from a few bytes, and at the last byte; tests/io tries every size of its writers.
TEST_F(Hostile, ALimitOnFileSizesIsAnError) {
  draw({1, 1, 40, 8});
  output("train --steps 1 --out m.safetensors");
  const std::vector<std::pair<Words, std::string>> commands = {{attend({"--weights", "w.npy"}), "w.npy"},
      {Words{"attend", "--q", "t.npy", "--k", "t.npy", "--v", "t.npy", "--out", "out.npy"}, "out.npy"},
      {{"train", "--steps", "1", "--out", "n.safetensors"}, "n.safetensors"},
      {{"map", "m.safetensors", "--out", "a.svg"}, "a.svg"}, {{"map", "m.safetensors", "--out", "a.html"}, "a.html"},
      {{"map", "m.safetensors", "--out", "a.png"}, "a.png"}, {{"map", "m.safetensors", "--out", "a.pdf"}, "a.pdf"},
      {{"mask", "causal", "--tq", "4", "--tk", "4", "--out", "b.svg"}, "b.svg"},
      {{"lesson", "--out", "c.html"}, "c.html"}};
  for (const auto& [words, name] : commands) {
    SCOPED_TRACE(testing::PrintToString(words));
    output(words);
    const auto size = static_cast<rlim_t>(contents(path(name)).size());
    write(name, "old");
    const std::vector<std::string> before = files();
    for (rlim_t bytes = 200; bytes < size; bytes = 3 * bytes < size || bytes + 1 == size ? 3 * bytes : size - 1) {
      const pid_t child = start(words, [&] {
        dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        const rlimit limit{bytes, bytes};
        setrlimit(RLIMIT_FSIZE, &limit);
      });
      const int status = status_of(child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status << " at " << bytes;
      EXPECT_NE(contents(path(".stderr")).find("\": File too large"), std::string::npos) << contents(path(".stderr"));
      EXPECT_EQ(contents(path(name)), "old") << bytes;
      EXPECT_EQ(files(), before) << bytes;
    }
  }
}

}  // namespace
}  // namespace qkv::test

// Requirements of every command: --help with an example, exit codes, one line per error, no file left behind.
#include <pty.h>

#include "cli/tool.h"
#include "core/cpu.h"
#include "qkv/context.h"
#include "qkv/io/safetensors.h"
#include "support/random.h"

namespace qkv::test {
namespace {

class House : public ToolTest {
 protected:
  House() {
    Random random(1);
    for (const char* name : {"q", "k", "v"}) {
      Tensor<float> tensor({2, 2, 3, 4});
      for (float& value : tensor.span()) value = static_cast<float>(random.symmetric());
      save(std::string(name) + ".npy", tensor);
    }
    save("flat.npy", Tensor<float>({3, 4}));
    save("whole.npy", Tensor<std::int64_t>({2, 2, 3, 4}));
    write("short.txt", "abc");
    write("bytes.txt", "ab\xFFy");
    write("torn.npy", contents(path("q.npy")).substr(0, 200));
    write("torn.safetensors", std::string(8, '\x01'));
  }

  static Words attend(const Words& more) {
    return Words{"attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "out.npy"} + more;
  }
};

TEST_F(House, EveryCommandHelpsWithAnExample) {
  const std::string all = output({"--help"});
  for (const char* name : {"judge", "practice", "train", "generate", "map", "forms", "ablate", "explain", "attend",
           "layer", "mask", "bench", "info"}) {
    EXPECT_NE(all.find(std::string("\n  ") + name + " "), std::string::npos) << name;
    const std::string help = output({name, "--help"});
    EXPECT_NE(help.find(std::string("Example:\n  qkv ") + name), std::string::npos) << help;
    EXPECT_EQ(help.find("Excludes:"), std::string::npos) << help;
  }
  EXPECT_NE(output({"judge", "--help"}).find("\n  FILE[:NAME]   "), std::string::npos);
  EXPECT_NE(output({"mask", "--help"}).find("\n  EXPR REQUIRED   "), std::string::npos);
  for (const char* name : {"attend", "layer", "train", "generate", "map", "bench"}) {
    const std::string help = output({name, "--help"});
    EXPECT_NE(help.find("--threads"), std::string::npos) << name;
    EXPECT_NE(help.find("--isa"), std::string::npos) << name;
    for (const IsaCandidate& candidate : isa_candidates()) {
      EXPECT_NE(help.find(isa_name(candidate.isa)), std::string::npos) << name << ": " << isa_name(candidate.isa);
    }
  }
  EXPECT_TRUE(output({"--version"}).starts_with("qkv "));
}

TEST_F(House, WrongUseIsOneLineAndTwo) {
  expect_refused({}, {"train", "attend"});
  expect_refused({"nonsense"}, {"\"nonsense\"", "attend"});
  expect_refused({"attend"}, {"--out"});
  expect_refused({"attend", "--nonsense"}, {"qkv attend --help"});
  expect_refused("info --threads 0", {"qkv info: no option is called --threads (see qkv info --help)"});
  expect_refused("info zh --json=3", {"the word \"zh\" was not expected"});
  expect_refused("--json info", {"qkv: --json stands behind the command: qkv COMMAND --json"});
  expect_refused("--lang zh --help", {"--lang stands behind the command"});
  expect_refused({"-x"}, {"no option is called -x"});
  expect_refused({"train", "--steps", "many"}, {"--steps"});
  expect_refused({"train", "--task", "guess"}, {"guess", "previous"});
  expect_refused({"bench", "nonsense"}, {"\"nonsense\"", "fwd, bwd, decode", "--list"});
  expect_refused({"bench", "fwd-f32", "--exact"}, {"\"fwd-f32\"", "--list"});
  expect_refused({"bench", "--suite", "huge"}, {"quick, full, forward, backward", "linattn"});
  expect_refused("generate --model missing.safetensors --prompt a", {"missing.safetensors", "No such file"});
}

TEST_F(House, BadInputsOfAttend) {
  expect_refused("attend --q q.npy --out out.npy", {"--k"});
  expect_refused("attend --q no.npy --k k.npy --v v.npy --out out.npy", {"no.npy", "--q"});
  expect_refused("attend --q torn.npy --k k.npy --v v.npy --out out.npy", {"torn.npy", "byte"});
  expect_refused("attend --q whole.npy --k k.npy --v v.npy --out out.npy", {"f32 or f64"});
  expect_refused("attend --q q.npy --k flat.npy --v v.npy --out out.npy", {"k", "[3, 4]"});
  expect_refused("attend --in torn.safetensors --out out.safetensors", {"torn.safetensors"});
  save("more.npy", Tensor<float>({2, 2, 3, 5}));
  expect_refused("attend --q q.npy --k more.npy --v v.npy --out out.npy", {"more.npy", "[2, 2, 3, 5]"});
  expect_refused(attend({"--causal=sideways"}), {"top-left", "bottom-right"});
  save("long.npy", Tensor<float>({2, 2, 9, 4}));
  const Words longer = "attend --q q.npy --k long.npy --v long.npy --out out.npy";
  expect_refused(longer + "--causal", {"--causal=bottom-right", "--causal=top-left", "Tk 9"});
  expect_refused(longer + "--window 1,0", {"--window L,R,bottom-right", "Tk 9"});
  expect_refused(attend({"--window", "3"}), {"--window", "255,0"});
  expect_refused(attend({"--window", "3,x"}), {"--window"});
  expect_refused(attend({"--window", "2,0,0"}), {"--window L,R,ALIGN: ALIGN must be one of top-left", "\"0\""});
  expect_refused(attend({"--window", "-2,0"}), {"attend: --window: ", "-2"});
  expect_refused(attend({"--offsets", "1,2"}), {"--causal"});
  expect_refused(attend({"--key-lengths", "3"}), {"--key-lengths takes a number for each of 2 sequences: got 1"});
  expect_refused(attend({"--key-lengths", "3,9"}), {"--key-lengths must be", "3 keys", "got 9 for sequence 1"});
  expect_refused(attend({"--keep", "flat.npy"}), {"--mask-axes"});
  expect_refused(attend({"--keep", "flat.npy", "--mask-axes", "xy"}), {"bqk"});
  expect_refused(attend({"--keep", "flat.npy", "--mask-axes", "bqk"}), {"[3, 4]"});
  expect_refused(attend({"--scale", "nan"}), {"--scale must be a number: got \"nan\""});
  expect_refused(attend({"--softcap", "-1"}), {"--softcap must be a number of at least 0"});
  expect_refused(attend({"--dropout", "1.5"}), {"--dropout must be a number from 0 to 1: got \"1.5\""});
  expect_refused(attend({"--empty-row", "half"}), {"zero", "mean", "nan"});
  expect_refused(attend({"--dq", "dq.npy"}), {"--dout"});
  expect_refused(attend({"--dout", "q.npy"}), {"--dq"});
  expect_refused(attend({"--dout", "q.npy", "--dbias", "db.npy"}), {"--bias"});
  expect_refused(attend({"--isa", "mmx"}), {"--isa must be one of scalar", "mmx"});
  for (const IsaCandidate& candidate : isa_candidates()) {
    if (!candidate.obstacle.empty())
      expect_refused(attend({"--isa", std::string(isa_name(candidate.isa))}), {"--isa ", candidate.obstacle});
  }
  expect_refused(attend({"--bits", "slow"}), {"--bits must be one of fast, invariant"});
  expect_refused(attend({"--lse", "out.npy"}), {"another output"});
  expect_refused(attend({"--lse", "./k.npy"}), {"--lse", "is an input"});
  StateDict all;
  for (const char* name : {"q", "k", "v"}) all.add(name, load(std::string(name) + ".npy"));
  io::save_safetensors(path("all.safetensors"), all);
  expect_refused("attend --in all.safetensors --out all.safetensors", {"--out", "is an input"});
  expect_refused("map all.safetensors", {"qkv attend --in \"all.safetensors\" --out o.safetensors --weights"});
  output("attend --in all.safetensors --out o.safetensors --weights");
  output("map o.safetensors");
}

TEST_F(House, UnwritableOutputs) {
  const Words start{"attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out"};
  for (const auto& [name, mend] : std::vector<std::pair<std::string, std::string>>{
           {"no/such/out.npy", "folder"}, {"out.txt", ".npy"}, {"/dev/null", "end in"}, {".", "end in"}}) {
    Words words = start;
    words.push_back(name);
    expect_refused(words, {name, mend});
  }
  std::filesystem::create_directory(path("taken.npy"));
  Words words = start;
  words.push_back("taken.npy");
  expect_refused(words, {"taken.npy", "directory"});
}

TEST_F(House, BadTexts) {
  expect_refused("train --text short.txt --out m.safetensors", {"short.txt", "3 characters", "context 16"});
  expect_refused({"train", "--text", "bytes.txt"}, {"bytes.txt", "UTF-8", "2"});
  expect_refused({"train", "--text", "no.txt"}, {"no.txt"});
  expect_refused({"train", "--sample", "Q"}, {"--sample", "Q", "'a'"});
  expect_refused({"train", "--heads", "5"}, {"--heads must divide --dim: got 5 heads for 32"});
  expect_refused({"train", "--context", "1000000"}, {"train: --context: ", "3600 characters"});
  expect_refused({"train", "--lr", "nan"}, {"--lr must be a number"});
  expect_refused({"train", "--clip", "-1"}, {"--clip must be a number of at least 0"});
  expect_refused({"train", "--steps", "-1"}, {"-1"});
  expect_refused({"train", "--init", "torn.safetensors"}, {"torn.safetensors"});
  Tensor<std::int64_t> batches({2, 3, 5});
  save("batches.npy", batches);
  expect_refused("train --batches batches.npy --steps 3", {"--steps", "2", "got 3"});
  EXPECT_NE(run({"train", "--batches", "batches.npy"}).out.find("task text on batches.npy, "), std::string::npos);
  batches.data()[7] = 99;
  save("batches.npy", batches);
  expect_refused({"train", "--batches", "batches.npy"}, {"batches.npy", "99"});
  expect_refused({"map", "q.npy"}, {"weights"});
  expect_refused("map torn.safetensors --out m.png", {"torn.safetensors"});
  expect_refused("map q.npy --out m.gif", {".png"});
}

TEST_F(House, HostileNamesCannotDriveATerminal) {
  expect_refused({"map", "\x1b[31m\nred.npy"}, {"\\x1b[31m"});
  expect_refused({"\x1b[31mred"}, {"\\x1b"});
  expect_refused({"train", "--\x1b[31m"}, {"\\x1b"});
}

/// Also where the command's own code is that of a finding.
TEST_F(House, AFullDiskIsAFailureOfTheWork) {
  output("train --steps 1 --out m.safetensors");
  save("x.npy", Tensor<float>({1, 3, 4}));
  for (const Words& words : {Words{"--help"}, Words{"--version"}, Words{"info"}, Words{"lesson"}, Words{"lesson", "1"},
           Words{"practice"}, Words{"practice", "sdpa"}, Words{"judge", "--catalogue"}, Words{"train", "--steps", "1"},
           Words{"generate", "--model", "m.safetensors", "--prompt", "a", "--tokens", "2"},
           Words{"map", "m.safetensors"}, Words{"forms", "--length", "8"}, Words{"ablate", "--steps", "1"},
           Words{"explain"}, attend({"--hash"}), Words{"layer", "--help"},
           Words{"mask", "causal", "--tq", "4", "--tk", "4"}, Words{"bench", "--list"}}) {
    SCOPED_TRACE(testing::PrintToString(words));
    const int status = status_of(start(words, [] { dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO); }));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    EXPECT_EQ(contents(path(".stderr")), "qkv: standard output could not be written\n");
  }
}

/// A name with the right ending that leads to a device.
TEST_F(House, AnOutputThatIsADeviceIsRefused) {
  output("train --steps 1 --out m.safetensors");
  save("x.npy", Tensor<float>({1, 3, 4}));
  for (const char* ending : {".npy", ".safetensors", ".svg", ".png", ".pdf", ".html"})
    std::filesystem::create_symlink("/dev/full", path(std::string("full") + ending));
  for (const Words& words : {Words{"attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "full.npy"},
           Words{"layer", "average", "--x", "x.npy", "--out", "full.npy"},
           Words{"train", "--steps", "1", "--out", "full.safetensors"},
           Words{"train", "--steps", "1", "--map", "full.svg"}, Words{"map", "m.safetensors", "--out", "full.svg"},
           Words{"map", "m.safetensors", "--out", "full.png"}, Words{"map", "m.safetensors", "--out", "full.pdf"},
           Words{"map", "m.safetensors", "--out", "full.html"},
           Words{"mask", "causal", "--tq", "4", "--tk", "4", "--out", "full.svg"},
           Words{"lesson", "--out", "full.html"}})
    expect_refused(words, {"not a regular file"});
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(House, InfoIsJson) {
  const nlohmann::json info = json({"info", "--json"});
  EXPECT_EQ(info["isa"]["supported"].size(), supported_isas().size());
  EXPECT_EQ(info["isa"]["supported"].size() + info["isa"]["skipped"].size(), isa_candidates().size());
  EXPECT_GE(info["threads"]["used"], 1);
  EXPECT_NE(output({"info"}).find(info["cpu"]["model"]), std::string::npos);
}

/// The tool's output on a terminal.
class OnATerminal : public House {
 protected:
  void SetUp() override {
    House::SetUp();
    int terminal = -1, other = -1;
    if (openpty(&terminal, &other, nullptr, nullptr, nullptr) != 0)
      GTEST_SKIP() << "this system gives no pseudo-terminal";
    close(terminal);
    close(other);
  }

  std::string screen(const Words& words, const Words& settings) const {
    winsize size{.ws_row = 40, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
    if (child == 0) become_tool(words, settings);
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(terminal, buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    close(terminal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0) << text;
    return text;
  }
};

TEST_F(OnATerminal, ABarThereAndColoursUnlessNoColor) {
  const Words train{"train", "--steps", "300"};
  const std::string colourful = screen(train, {"TERM=xterm", "LANG=C.UTF-8", "LC_ALL=C.UTF-8"});
  EXPECT_NE(colourful.find("\x1b[48;2;"), std::string::npos);
  EXPECT_NE(colourful.find("\x1b[K"), std::string::npos) << "no bar";
  const std::string plain = screen(train, {"TERM=xterm", "NO_COLOR=1"});
  EXPECT_EQ(plain.find("\x1b[48"), std::string::npos);
  EXPECT_EQ(plain.find("\x1b[1m"), std::string::npos);
  EXPECT_EQ(screen(train, {"TERM=dumb"}).find("\x1b[48"), std::string::npos);
  EXPECT_EQ(output(train).find('\x1b'), std::string::npos);
  const std::string ascii = screen(train, {"TERM=xterm", "LANG=C", "LC_ALL=C"});
  EXPECT_TRUE(std::ranges::all_of(ascii, [](char c) { return static_cast<signed char>(c) > 0; })) << ascii;
  EXPECT_NE(ascii.find("...."), std::string::npos) << "no bar";
}

TEST_F(OnATerminal, AModelsCharactersCannotDriveIt) {
  write("red.txt", "\x1b[31m\x07 red and \x1b[0m not, all the way");
  output("train --text red.txt --steps 1 --out m.safetensors");
  const Words generate{"generate", "--model", "m.safetensors", "--prompt", "\x1b[31m"};
  const std::string shown = screen(generate, {"TERM=xterm"});
  EXPECT_EQ(shown.find_first_of("\x1b\x07"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("\\x1b[31m"), 0U) << shown;
  EXPECT_TRUE(output(generate).starts_with("\x1b[31m"));
}

}  // namespace
}  // namespace qkv::test

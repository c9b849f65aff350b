// The tool as several ranks: what they must agree on, how they end when one does, what is left behind.
#include <signal.h>

#include <array>
#include <cmath>

#include "cli/mpirun.h"
#include "qkv/context.h"
#include "qkv/io/safetensors.h"

namespace qkv::test {
namespace {

class Ranks : public RanksTest {};

TEST_F(Ranks, CopiesThatWouldEachDoTheWholeWorkAreRefused) {
  for (const char* command : {"train --steps 1", "explain", "attend --in a.safetensors --out b.safetensors"}) {
    const Outcome outcome = shell(mpirun(3, command));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    ASSERT_EQ(own_lines(outcome).size(), 1U) << outcome.err;
    EXPECT_NE(own_lines(outcome)[0].find("mpirun started 3 copies"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(shell(mpirun(2, "info")).code, 0) << "it says what each rank sees";
  EXPECT_EQ(shell(mpirun(1, "train --steps 1 --json")).code, 0) << "one copy is no copy";
}

TEST_F(Ranks, WithoutMpirunParallelSaysHowToStart) {
  expect_refused({"train", "--parallel", "data"}, {"mpirun -n 4 qkv train", "openmpi-bin"});
  expect_refused({"train", "--timeout", "3"}, {"--parallel"});
  expect_refused("attend --in a.safetensors --out b.safetensors --parallel foo", {"--parallel must be one of", "foo"});
}

TEST_F(Ranks, ALauncherThatMpiDoesNotHearIsRefused) {
  const Outcome outcome = run("train --parallel data --out model.safetensors", {"PMI_SIZE=3", "PMI_RANK=0"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("it started 3 ranks, of which MPI sees 1"), std::string::npos) << outcome.err;
  EXPECT_TRUE(files().empty());
}

TEST_F(Ranks, WithoutTheLibraryParallelSaysSoInOneLine) {
  write("libmpi.so.40", "not a library");
  const Outcome outcome =
      run({"train", "--parallel", "data"}, {"OMPI_COMM_WORLD_SIZE=1", "LD_LIBRARY_PATH=" + path("").string()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("apt-get install openmpi-bin"), std::string::npos) << outcome.err;
}

/// The losses of `ranks` ranks, or of one machine where there is no method.
std::vector<double> losses_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  if (outcome.code != 0) return {};
  return nlohmann::json::parse(outcome.out)["losses"].get<std::vector<double>>();
}

// Two models: a plain one, whose first projections come from tables, and one with everything that ranks must count in
// the whole: rotary positions, dropout, norms, clipping. 36 tokens a rank are more than any SIMD register has lanes.
TEST_F(Ranks, SharedTrainingHasTheLossesOfOneMachine) {
  for (const std::string& words :
      {std::string("train --steps 12 --task masked --batch 4 --heads 6 --dim 24 --context 27 --json"),
          std::string("train --steps 6 --batch 4 --heads 6 --dim 24 --layers 2 --blocks --positions rotary --dropout "
                      "0.1 --clip 0.5 --weight-decay 0.1 --context 27 --json")}) {
    SCOPED_TRACE(words);
    const std::vector<double> alone = losses_of(shell("'" QKV_TOOL "' " + words));
    // The change by another order of the same f32 sums: the scalar kernels add in one. Ranks add in one more.
    const std::vector<double> other = losses_of(shell("'" QKV_TOOL "' " + words + " --isa scalar"));
    double bound = 0;
    for (std::size_t step = 0; step < alone.size(); ++step)
      bound = std::max(bound, 8 * std::abs(other.at(step) - alone[step]));
    // The mean of equal numbers: at most 4 x 27 of them, not negative, added in f64 in another order.
    const double first_bound = 4 * (4 * 27) * 0x1p-53 * (alone.at(0) + 1);
    const bool whole = words.find("--blocks") != std::string::npos;  // of the plain one three ranks are enough
    for (const std::string method : {"data", "all-gather", "ring", "ulysses", "heads"}) {
      if (whole && method != "heads") {
        EXPECT_EQ(losses_of(shell(mpirun(1, words + " --parallel " + method))), alone)
            << method << ": one rank, the same bits";
      }
      for (const int ranks : whole ? std::vector{2, 3} : std::vector{3}) {
        SCOPED_TRACE(method + ", " + std::to_string(ranks) + " ranks");
        const std::string line = words + " --parallel " + method;
        const std::vector<double> shared = losses_of(shell(mpirun(ranks, line + " --threads 1")));
        ASSERT_EQ(shared.size(), alone.size());
        if (whole && ranks == 3) {
          EXPECT_EQ(losses_of(shell(mpirun(ranks, line + " --threads 2"))), shared)
              << "runs of as many ranks: the same bits";
        }
        if (method != "heads") {
          EXPECT_NEAR(shared[0], alone[0], first_bound) << "the same logits, bit for bit";
        }
        if (bound == 0) continue;  // a machine that runs the scalar kernels alone has no other order to compare with
        for (std::size_t step = 0; step < alone.size(); ++step) EXPECT_NEAR(shared[step], alone[step], bound) << step;
      }
    }
  }
}

TEST_F(Ranks, WhatTheyTrainedGenerates) {
  for (const std::string method : {"all-gather", "heads"}) {
    const std::string words = "train --steps 30 --heads 2 --json --out " + method + ".safetensors --parallel " + method;
    const Outcome outcome = shell(mpirun(2, words));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const nlohmann::json report = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(report["parallel"]["method"], method);
    EXPECT_EQ(report["parallel"]["ranks"], 2);
    const Outcome text =
        run({"generate", "--model", method + ".safetensors", "--prompt", "ab", "--tokens", "5", "--greedy"});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out.substr(0, 2), "ab") << text.out;
  }
}

TEST_F(Ranks, TrainingThatDoesNotFitTheRanksIsRefused) {
  for (const auto& [words, part] :
      {std::pair("--batch 2 --parallel data", "--batch must be at least the number of ranks"),
          {"--context 2 --text short --parallel all-gather", "--context must be at least"},
          {"--heads 4 --parallel ulysses", "divides the key/value heads: got 3 ranks, 4 heads"},
          {"--heads 4 --parallel heads", "divides the key/value heads: got 3 ranks, 4 heads"},
          {"--parallel tensors", "all-gather"}, {"--parallel data --timeout 0", "above 0: got 0"}}) {
    write("short", "abcabc");
    const Outcome outcome = shell(mpirun(3, std::string("train --steps 1 ") + words));
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

TEST_F(Ranks, ADifferenceIsOneLineAndCode2) {
  const std::string tool = " '" QKV_TOOL "' train --parallel data ";
  const auto two = [&](const std::string& first, const std::string& second) {
    return shell(kMpirun + "-n 2" + tool + first + " : -n 1" + tool + second);
  };
  const Outcome steps = two("--steps 20", "--steps 21");
  EXPECT_EQ(steps.code, 2) << steps.err;
  ASSERT_EQ(own_lines(steps).size(), 1U) << steps.err;
  EXPECT_NE(own_lines(steps)[0].find("the same steps: rank 0 has 20, rank 2 has 21"), std::string::npos) << steps.err;
  const Outcome isa = two("--isa scalar", "--seed 1");  // one wish is for all; the weights differ
  EXPECT_NE(own_lines(isa).at(0).find("the same first batch"), std::string::npos) << isa.err;
}

TEST_F(Ranks, ASlowerInstructionSetForAllIsSaid) {
  if (supported_isas().size() == 1) GTEST_SKIP() << "this CPU has one instruction set";
  if (std::system("qemu-x86_64 -cpu Nehalem /bin/true 2>/dev/null") != 0) GTEST_SKIP() << "no qemu-x86_64 is installed";
  const std::string train = " '" QKV_TOOL "' train --steps 1 --parallel data --timeout 60";
  const Outcome outcome = shell(kMpirun + "-n 1" + train + " : -n 1 qemu-x86_64 -cpu Nehalem" + train);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(own_lines(outcome).size(), 1U) << outcome.err;
  EXPECT_NE(own_lines(outcome)[0].find("all ranks use scalar, which is all that rank 1 can run"), std::string::npos);
}

/// Three ranks that would work for hours or seconds; `signal` hits one of them; what the others said.
class Failures : public RanksTest {
 protected:
  Outcome hit_one(int signal, const std::string& flags, const std::string& words) const {
    // Each rank writes its number and process before it becomes the tool.
    const std::string line = kMpirun + flags +
                             " -n 3 sh -c 'echo $$ > pid$OMPI_COMM_WORLD_RANK; exec \"" QKV_TOOL "\" " + words +
                             " --threads 1 --timeout 2 --out out.safetensors > log$OMPI_COMM_WORLD_RANK'";
    pid_t process = 0;
    std::thread killer([&] {
      for (int waited = 0; waited < 3000 && !at_work(words); ++waited)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      process = static_cast<pid_t>(std::atoi(contents(path("pid1")).c_str()));
      if (process > 0) ::kill(process, signal);
    });
    const Outcome outcome = shell(line);
    killer.join();
    if (process > 0) ::kill(process, SIGKILL);  // one that was stopped
    return outcome;
  }

  /// Training says so; attention has taken more time than its start.
  bool at_work(const std::string& words) const {
    if (words.starts_with("train")) return contents(path("log0")).find("step 1 ") != std::string::npos;
    std::istringstream stat(contents("/proc/" + std::to_string(std::atoi(contents(path("pid1")).c_str())) + "/stat"));
    std::string field;
    for (int n = 0; n < 14; ++n) stat >> field;  // proc(5): utime
    return 5 * std::atol(field.c_str()) > 2 * sysconf(_SC_CLK_TCK);
  }

  /// The others said which rank is gone, one line each, and left nothing half-written.
  void expect_said(const Outcome& outcome) const {
    const std::vector<std::string> lines = own_lines(outcome);
    EXPECT_EQ(lines.size(), 2U) << outcome.err;
    for (const std::string& line : lines)
      EXPECT_NE(line.find("rank 1 of 3 has ended, is stopped"), std::string::npos) << line;
  }
  void expect_clean_end(std::vector<std::string> given = {}) const {
    for (const char* name : kNotes) given.emplace_back(name);
    EXPECT_EQ(files(), given) << "nothing half-written";
  }
  void remove_notes() const {
    for (const char* name : kNotes) std::filesystem::remove(path(name));
  }
  static constexpr std::array kNotes = {"log0", "log1", "log2", "pid0", "pid1", "pid2"};
};

constexpr const char* kTraining = "train --steps 100000000 --heads 3 --dim 24 --batch 6 --parallel ";

TEST_F(Failures, AKilledRankEndsAllOthers) {
  const Outcome outcome = hit_one(SIGKILL, "", std::string(kTraining) + "data");
  const std::vector<std::string> lines = own_lines(outcome);  // mpirun ends them, and may pass on the first alone
  EXPECT_TRUE(lines.size() == 1 || lines.size() == 2) << outcome.err;
  for (const std::string& line : lines) EXPECT_NE(line.find("another rank has ended"), std::string::npos) << line;
  EXPECT_NE(outcome.code, 0);
  expect_clean_end();
}

TEST_F(Failures, AKilledRankEndsAllOthersWhereTheLauncherDoesNot) {
  for (const std::string method : {"data", "all-gather", "ring", "ulysses", "heads"}) {
    SCOPED_TRACE(method);
    expect_said(hit_one(SIGKILL, "--enable-recovery", kTraining + method));
    expect_clean_end();
    remove_notes();
  }
}

TEST_F(Failures, ARankOfAttentionThatIsKilledEndsAllOthers) {
  StateDict state;
  for (const char* name : {"q", "k", "v"}) state.add(name, any_tensor(Tensor<float>({1, 3, 120000, 8})));
  io::save_safetensors(path("in.safetensors"), state);
  for (const std::string method : {"all-gather", "all-gather --chunk 512", "ring", "ulysses"}) {
    SCOPED_TRACE(method);
    expect_said(hit_one(SIGKILL, "--enable-recovery", "attend --in in.safetensors --causal --parallel " + method));
    expect_clean_end({"in.safetensors"});
    remove_notes();
  }
}

TEST_F(Failures, AStoppedRankEndsAllOthers) {
  const Outcome outcome = hit_one(SIGSTOP, "", std::string(kTraining) + "data");
  EXPECT_NE(outcome.err.find("rank 1 of 3 has ended, is stopped"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.code, 0);
  expect_clean_end();
}

}  // namespace
}  // namespace qkv::test

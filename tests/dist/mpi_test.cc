// MPI as a transport. Each test is both sides: started as always it runs itself under mpirun, there it is one of the
// ranks.
#include "qkv/dist/mpi.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "messages.h"
#include "qkv/dist/agree.h"
#include "qkv/dist/guarded.h"

namespace qkv::dist {
namespace {

bool is_rank() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }
bool has_mpirun() { return std::system("mpirun --version > /dev/null 2>&1") == 0; }

/// Whether the ranks end MPI: mpirun calls it a failure when they do not.
enum class End { kInOrder, kWithoutClose };

/// Runs the current test as `ranks` ranks. Root and more ranks than processors are fine for a test. Open MPI unloads
/// its plugins before leaks are looked for, so that no suppression can name theirs; it aborts a rank that copies from
/// the memory of one that has just ended.
void run_ranks(int ranks, End end = End::kInOrder) {
  if (!has_mpirun()) {
    GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  }
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string log =
      (std::filesystem::temp_directory_path() / ("qkv_mpi_test_" + std::to_string(::getpid()))).string();
  const std::string command =
      "ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" OMPI_MCA_btl_vader_single_copy_mechanism=none mpirun "
      "--allow-run-as-root --oversubscribe --bind-to none -n " +
      std::to_string(ranks) + " '" + self + "' --gtest_filter=" + info->test_suite_name() + "." + info->name() + " > " +
      log + " 2>&1";
  const int code = std::system(command.c_str());
  std::ifstream file(log);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(code == 0 || end == End::kWithoutClose) << text;
  EXPECT_EQ(text.find("FAILED"), std::string::npos) << text;
  std::size_t passed = 0;
  for (std::size_t at = 0; (at = text.find("PASSED", at)) != std::string::npos; ++at) ++passed;
  EXPECT_EQ(passed, static_cast<std::size_t>(ranks)) << text;
  std::filesystem::remove(log);
}

TEST(Mpi, MessagesOfEveryLengthInOrder) {
  if (!is_rank()) return run_ranks(3);
  Mpi mpi({.piece_bytes = 1 << 16});  // 0 bytes; below, at and above a piece; several pieces
  EXPECT_NE(mpi.version().find("Open MPI"), std::string::npos);
  exchange_messages(mpi.data(), {0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 0, 1 << 18});
  Guarded guarded(mpi.data(), mpi.control());
  agree(guarded, {{"test", "the same"}});
  exchange_messages(guarded, {5, 100000});
  guarded.finish();
  mpi.close();
}

/// The error of rank 1 that expects another number of bytes than rank 0 sends it.
std::string sent_and_expected(Transport& transport, std::size_t sent, std::size_t expected) {
  std::vector<std::byte> out(sent), in(expected);
  try {
    if (transport.rank() == 0) wait(transport, transport.send(1, out));
    if (transport.rank() == 1) wait(transport, transport.receive(0, in));
    return "no error";
  } catch (const TransportError& error) {
    EXPECT_THROW(transport.send(0, {}), TransportError) << "and stays broken";
    return error.what();
  }
}

TEST(Mpi, ALengthThatDiffersIsAnError) {
  if (!is_rank()) return run_ranks(2, End::kWithoutClose);
  Mpi mpi({.piece_bytes = 8});
  const std::string shorter = sent_and_expected(mpi.data(), 16, 20), longer = sent_and_expected(mpi.control(), 16, 15);
  if (mpi.data().rank() == 0) return;
  EXPECT_NE(shorter.find("sent 0 bytes, rank 1 expects 4"), std::string::npos) << shorter;  // of the last piece
  EXPECT_NE(longer.find("sent more bytes, rank 1 expects 7"), std::string::npos) << longer;
}

TEST(Mpi, ALengthThatDiffersFromOnesOwnIsAnError) {
  if (!is_rank()) return run_ranks(1, End::kWithoutClose);
  Mpi mpi({.piece_bytes = 8});
  std::vector<std::byte> bytes(20);
  mpi.data().send(0, std::span(bytes).first(16));
  EXPECT_THROW(mpi.data().receive(0, std::span(bytes).first(15)), TransportError);
}

TEST(Mpi, RefusesWhatIsNotOpenMpiByName) {
  const auto text = [](const std::string& library) -> std::string {
    try {
      Mpi mpi({.library = library});
      return "no error";
    } catch (const UnsupportedError& error) {
      return error.what();
    }
  };
  EXPECT_NE(text("libqkv_no_such_mpi.so").find("openmpi-bin"), std::string::npos) << text("libqkv_no_such_mpi.so");
  EXPECT_EQ(text("libqkv_no_such_mpi.so").find('\n'), std::string::npos);
  EXPECT_NE(text("libm.so.6").find("libm.so.6 is no MPI"), std::string::npos) << text("libm.so.6");
  EXPECT_THROW(Mpi({.piece_bytes = 0}), OptionError);
}

}  // namespace
}  // namespace qkv::dist

// Files appear whole or not at all: what is at the path, and beside it, after success and after each kind of failure.
#include "qkv/io/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <functional>

#include "core/escape.h"
#include "io/bytes.h"
#include "qkv/io/npy.h"
#include "qkv/io/safetensors.h"
#include "support/errors.h"

namespace qkv::test {
namespace {

namespace fs = std::filesystem;

template <class F> void expect_io_error(F&& call, std::string_view part) { expect_error<IoError>(call, {part}); }

TEST(File, WhatIsWrittenIsRead) {
  const Folder folder;
  const Bytes bytes = counting_tensor(DType::kU8, {1000}).bytes;
  io::write_file_atomically(folder / "a", bytes);
  EXPECT_EQ(io::read_file(folder / "a"), bytes);
  io::write_file_atomically(folder / "a", "text");
  EXPECT_EQ(io::read_file(folder / "a"), bytes_of("text"));
  io::write_file_atomically(folder / "empty", "");
  EXPECT_TRUE(io::read_file(folder / "empty").empty());
  EXPECT_EQ(folder.count(), 2u);
}

TEST(File, PermissionsOfTheOldFileStay) {
  const Folder folder;
  io::write_file_atomically(folder / "a", "1");
  fs::permissions(folder / "a", fs::perms(0640));
  io::write_file_atomically(folder / "a", "2");
  EXPECT_EQ(fs::status(folder / "a").permissions(), fs::perms(0640));
}

TEST(File, ASymbolicLinkIsFollowed) {
  const Folder folder;
  io::write_file_atomically(folder / "real", "1");
  fs::create_symlink("real", folder / "link");
  io::write_file_atomically(folder / "link", "2");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(io::read_file(folder / "real"), bytes_of("2"));
  fs::create_symlink("nowhere", folder / "dangling");
  expect_io_error([&] { io::write_file_atomically(folder / "dangling", "3"); }, "leads nowhere");
}

TEST(File, ErrorsNamePathAndReason) {
  const Folder folder;
  expect_io_error([&] { io::read_file(folder / "missing\x1b"); }, "missing\\x1b\": No such file");
  expect_io_error([&] { io::load_npy(folder / "missing"); }, "No such file");
  expect_io_error([&] { io::load_safetensors(folder / ""); }, "Is a directory");
  expect_io_error([&] { io::read_file("/dev/zero"); }, "not a regular file");
  expect_io_error([&] { io::write_file_atomically(folder / "", "x"); }, "directory");
  expect_io_error([&] { io::write_file_atomically(folder / "no/such/a", "x"); }, "No such file");
  expect_io_error([&] { io::write_file_atomically("/dev/null", "x"); }, "not a regular file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_io_error([&] { io::read_file(folder / "pipe"); }, "not a regular file");
  expect_io_error([&] { io::write_file_atomically(folder / "pipe", "x"); }, "not a regular file");
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.count(), 1u);
}

TEST(File, FormatErrorsOfFilesNameThePath) {
  const Folder folder;
  io::write_file_atomically(folder / "a.npy", "not an array");
  expect_format_error([&] { io::load_npy(folder / "a.npy"); }, 0, "a.npy\": a file begins with");
  expect_format_error([&] { io::load_safetensors(folder / "a.npy"); }, 0, "a.npy\": the header may have");
}

// A limit on the size of files simulates a full disk: write() fails midway.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int);
};

/// Of each writer, after every byte; of two files neither appears.
TEST(File, AFullDiskLeavesTheOldFileAndNothingElse) {
  const AnyTensor tensor = counting_tensor(DType::kF32, {2, 3});
  StateDict state;
  state.add("a", counting_tensor(DType::kF64, {5}));
  const Bytes small = counting_tensor(DType::kU8, {20}).bytes, large = counting_tensor(DType::kU8, {100'000}).bytes;
  const std::vector<std::pair<std::size_t, std::function<void(const fs::path&)>>> writers = {
      {large.size(), [&](const fs::path& path) { io::write_file_atomically(path, large); }},
      {small.size(), [&](const fs::path& path) { io::write_file_atomically(path, small); }},
      {io::write_npy(tensor).size(), [&](const fs::path& path) { io::save_npy(path, tensor); }},
      {io::write_safetensors(state).size(), [&](const fs::path& path) { io::save_safetensors(path, state); }},
      {small.size(), [&](const fs::path& path) {
         io::AtomicFiles files;
         files.add(path.string() + ".first", "1");
         files.add(path, small);
         files.commit();
       }}};
  for (const auto& [size, save] : writers) {
    const Folder folder;
    io::write_file_atomically(folder / "a", "old");
    for (std::size_t bytes = 0; bytes<size; bytes += size> 1000 ? 999 : 1) {
      {
        const SizeLimit limit(bytes);
        expect_io_error([&] { save(folder / "a"); }, "File too large");
        expect_io_error([&] { save(folder / "b"); }, "File too large");
      }
      EXPECT_EQ(io::read_file(folder / "a"), bytes_of("old")) << bytes;
      EXPECT_EQ(folder.count(), 1u) << bytes;
    }
    const SizeLimit limit(size);
    save(folder / "a");
    EXPECT_EQ(io::read_file(folder / "a").size(), size);
  }
}

TEST(AtomicFiles, AllAppearAtCommit) {
  const Folder folder;
  io::write_file_atomically(folder / "a", "old");
  io::AtomicFiles files;
  files.add(folder / "a", "new a");
  files.add(folder / "b", "new b");
  EXPECT_EQ(io::read_file(folder / "a"), bytes_of("old"));
  EXPECT_FALSE(fs::exists(folder / "b"));
  files.commit();
  EXPECT_EQ(io::read_file(folder / "a"), bytes_of("new a"));
  EXPECT_EQ(io::read_file(folder / "b"), bytes_of("new b"));
  EXPECT_EQ(folder.count(), 2u);
}

TEST(AtomicFiles, WithoutCommitNothingIsLeft) {
  const Folder folder;
  {
    io::AtomicFiles files;
    files.add(folder / "a", "x");
    EXPECT_EQ(folder.count(), 1u);
    EXPECT_THROW(files.add(folder / "no/such/b", "x"), IoError);
    io::AtomicFiles moved = std::move(files);
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(AtomicFiles, AFailedRenameUndoesTheOthers) {
  const Folder folder;
  io::write_file_atomically(folder / "old", "old");
  io::AtomicFiles files;
  files.add(folder / "old", "new");
  files.add(folder / "fresh", "new");
  files.add(folder / "blocked", "new");
  files.add(folder / "last", "new");
  fs::create_directories(folder / "blocked/by/this");
  expect_io_error([&] { files.commit(); }, "blocked\"");
  EXPECT_EQ(io::read_file(folder / "old"), bytes_of("old"));
  EXPECT_TRUE(fs::is_directory(folder / "blocked/by/this"));
  EXPECT_EQ(folder.count(), 2u);
}

TEST(AtomicFiles, TheSameFileTwiceIsRefused) {
  const Folder folder;
  io::AtomicFiles files;
  files.add(folder / "a", "1");
  EXPECT_THROW(files.add(folder / "./a", "2"), OptionError);
  io::write_file_atomically(folder / "real", "1");
  fs::create_symlink("real", folder / "link");
  files.add(folder / "real", "2");
  EXPECT_THROW(files.add(folder / "link", "3"), OptionError);
  io::AtomicFiles relative;  // of a name that is not there yet
  relative.add("qkv-new", "1");
  EXPECT_THROW(relative.add("./qkv-new", "2"), OptionError);
  EXPECT_THROW(relative.add(fs::current_path() / "qkv-new", "2"), OptionError);
}

TEST(Escaped, TextIsSafeToShow) {
  EXPECT_EQ(escaped("plain grüße 日本 😀"), "\"plain grüße 日本 😀\"");
  EXPECT_EQ(escaped("a\n\t\x1b[0m\x7f\"\\"), R"("a\n\x09\x1b[0m\x7f\"\\")");
  EXPECT_EQ(escaped("\xc2\x9b\xe2\x80\xae"), R"("\u{9b}\u{202e}")");
  EXPECT_EQ(escaped("\xff\xc0\xaf\xed\xa0\x80\xe2\x80"), R"("\xff\xc0\xaf\xed\xa0\x80\xe2\x80")");
  EXPECT_EQ(escaped(std::string(1'000'000, 'x')), "\"" + std::string(119, 'x') + "...\"");
}

}  // namespace
}  // namespace qkv::test

// Sources: POSIX open, fsync, rename; the order write, fsync, rename, fsync of the directory is that of every careful
// database.
#include "qkv/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "core/escape.h"
#include "io/file_reader.h"
#include "io/unfinished_files.h"
#include "qkv/error.h"

namespace qkv::inline v0::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* function, const fs::path& path, const std::string& reason) {
  throw IoError("[" + std::string(function) + "] " + escaped(path.native()) + ": " + reason);
}

[[noreturn]] void refuse(const char* function, const fs::path& path, int error) {
  refuse(function, path, std::system_category().message(error));
}

// An open file; closed on every way out.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// The file that is written: the path itself, or the target of a symbolic link, since renaming onto a link would replace
// the link.
fs::path real_target(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  if (error) refuse("write_file", path, "a symbolic link that leads nowhere: " + error.message());
  return target;
}

// The permissions of the file that is replaced; -1 when there is none. Renaming onto a device or a pipe would destroy
// it.
int checked_permissions(const fs::path& path, const fs::path& target) {
  struct stat status {};
  if (::stat(target.c_str(), &status) != 0) {
    if (errno == ENOENT && target.has_filename()) return -1;
    refuse("write_file", path, errno);
  }
  if (S_ISDIR(status.st_mode)) refuse("write_file", path, EISDIR);
  if (!S_ISREG(status.st_mode)) refuse("write_file", path, "not a regular file");
  if (::access(target.c_str(), W_OK) != 0) refuse("write_file", path, errno);
  return static_cast<int>(status.st_mode & 07777);
}

// A new name in the directory of `target`. It is not derived from the target's name, which may already be as long as
// names may be.
fs::path fresh_name(const fs::path& target) {
  static std::atomic<unsigned> counter{0};
  return target.parent_path() / (".qkv-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp");
}

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  constexpr std::size_t kMaxWrite = std::size_t{1} << 30;  // Linux writes at most 2 GiB per call
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse("write_file", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

// After the renames the bytes are in place: an error here is no reason to claim that nothing was written, so it is not
// reported.
void sync_directory(const fs::path& target) noexcept try {
  const Descriptor directory(
      ::open(target.has_parent_path() ? target.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
} catch (const std::bad_alloc&) {  // of the path
}

}  // namespace

FileReader::FileReader(const fs::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer; a pipe is refused below.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) refuse("read_file", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) refuse("read_file", path, errno);
  if (S_ISDIR(status.st_mode)) refuse("read_file", path, EISDIR);
  if (!S_ISREG(status.st_mode)) refuse("read_file", path, "not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
  descriptor_ = file.release();
}

FileReader::~FileReader() { ::close(descriptor_); }

void FileReader::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  constexpr std::size_t kMaxRead = std::size_t{1} << 30;
  if (offset > size_ || out.size() > size_ - offset) {
    refuse("read_file", path_,
        "bytes past the end asked for: " + std::to_string(offset) + " + " + std::to_string(out.size()));
  }
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), std::min(out.size(), kMaxRead), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse("read_file", path_, errno);
    if (got == 0) refuse("read_file", path_, "became shorter while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::vector<std::byte> read_file(const fs::path& path) {
  const FileReader reader(path);
  std::vector<std::byte> bytes(reader.size());
  reader.read_at(0, bytes);
  return bytes;
}

struct AtomicFiles::Stage {
  struct Entry {
    fs::path target, temporary;
    fs::path backup = {};  // a second name of the old file while commit runs; empty when there was none
    bool renamed = false;
    UnfinishedFile unfinished = {};  // the temporary one, for a signal
  };
  std::vector<Entry> entries;

  ~Stage() { undo(); }
  void add(const fs::path& path, std::span<const std::byte> bytes);
  void commit();
  void undo() noexcept;
  static int keep_old(Entry& entry);
};

void AtomicFiles::Stage::add(const fs::path& path, std::span<const std::byte> bytes) {
  const fs::path target = real_target(path);
  const int permissions = checked_permissions(path, target);
  const auto place = [](const fs::path& of) {  // relative paths of files that are not there yet would stay as spelled
    std::error_code error;
    return fs::weakly_canonical(fs::absolute(of, error), error);
  };
  const fs::path own = place(target);
  for (const Entry& other : entries) {
    if (place(other.target) == own) {
      throw OptionError("[write_file] each output must be a separate file: got " + escaped(path.native()) + " twice");
    }
  }
  Entry& entry = entries.emplace_back(Entry{target, {}});
  int number = -1;
  try {
    do {
      entry.temporary = fresh_name(target);
      entry.unfinished = UnfinishedFile(entry.temporary);
      number = ::open(entry.temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (number < 0 && errno == EEXIST);
  } catch (...) {  // out of memory: nothing of it is there
    entries.pop_back();
    throw;
  }
  Descriptor file(number);
  if (number < 0) {
    const int error = errno;
    entries.pop_back();
    refuse("write_file", path, error);
  }
  try {
    if (permissions >= 0 && ::fchmod(number, static_cast<mode_t>(permissions)) != 0) refuse("write_file", path, errno);
    write_all(number, bytes, path);
    if (::fsync(number) != 0) refuse("write_file", path, errno);
    if (::close(file.release()) != 0) refuse("write_file", path, errno);
  } catch (...) {
    ::unlink(entry.temporary.c_str());
    entries.pop_back();
    throw;
  }
}

// Gives the file that will be replaced a second name. Returns errno; 0 when there was no file or it has a second name
// now.
int AtomicFiles::Stage::keep_old(Entry& entry) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(entry.target, error);
  if (status.type() == fs::file_type::not_found) return 0;
  // Something else has appeared there since add().
  if (!fs::is_regular_file(status)) return fs::is_directory(status) ? EISDIR : EEXIST;
  fs::path backup = fresh_name(entry.target);
  // A file system without hard links: the old file is moved aside.
  if (::link(entry.target.c_str(), backup.c_str()) != 0 && ::rename(entry.target.c_str(), backup.c_str()) != 0)
    return errno;
  entry.backup = std::move(backup);
  return 0;
}

void AtomicFiles::Stage::commit() {
  for (Entry& entry : entries) {
    // The last rename needs no undo: nothing comes after it.
    int error = &entry == &entries.back() ? 0 : keep_old(entry);
    if (error == 0 && ::rename(entry.temporary.c_str(), entry.target.c_str()) != 0) error = errno;
    if (error != 0) {
      const fs::path target = entry.target;
      undo();
      refuse("write_file", target, error);
    }
    entry.renamed = true;
  }
  for (const Entry& entry : entries) {
    if (!entry.backup.empty()) ::unlink(entry.backup.c_str());
    sync_directory(entry.target);
  }
  entries.clear();
}

// Restores the state before commit: a replaced file gets its old name back, new and temporary files are removed.
void AtomicFiles::Stage::undo() noexcept {
  for (const Entry& entry : entries) {
    if (!entry.renamed) ::unlink(entry.temporary.c_str());
    if (!entry.backup.empty()) {
      if (::rename(entry.backup.c_str(), entry.target.c_str()) == 0) ::unlink(entry.backup.c_str());
    } else if (entry.renamed) {
      ::unlink(entry.target.c_str());
    }
  }
  entries.clear();
}

AtomicFiles::AtomicFiles() : stage_(std::make_unique<Stage>()) {}
AtomicFiles::AtomicFiles(AtomicFiles&&) noexcept = default;
AtomicFiles& AtomicFiles::operator=(AtomicFiles&&) noexcept = default;
AtomicFiles::~AtomicFiles() = default;

void AtomicFiles::add(const fs::path& path, std::span<const std::byte> bytes) { stage_->add(path, bytes); }
void AtomicFiles::add(const fs::path& path, std::string_view text) { add(path, std::as_bytes(std::span(text))); }
void AtomicFiles::commit() { stage_->commit(); }

void write_file_atomically(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFiles files;
  files.add(path, bytes);
  files.commit();
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace qkv::inline v0::io

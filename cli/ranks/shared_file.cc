#include "ranks/shared_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/escape.h"
#include "qkv/error.h"
#include "support/signals.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, int error) {
  throw IoError("[write_file] " + escaped(path.native()) + ": " + std::system_category().message(error));
}

/// The file that is written: what a link leads to.
fs::path target_of(const std::string& path) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(fs::absolute(path), error);
  return error ? fs::absolute(path) : target;
}

}  // namespace

SharedFile::SharedFile(const Ranks& ranks, const std::string& path, std::uint64_t bytes)
    : SharedFile(ranks, target_of(path)) {
  std::string name;
  if (ranks.first()) {
    struct stat old {};
    const bool replaces = ::stat(target_.c_str(), &old) == 0;
    for (int n = 0; descriptor_ < 0; ++n) {
      name = ".qkv-" + std::to_string(::getpid()) + "-" + std::to_string(n) + ".tmp";
      temporary_ = target_.parent_path() / name;
      unfinished_ = UnfinishedFile(temporary_);
      descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno != EEXIST) refuse(path, errno);
    }
    const bool ready = (!replaces || ::fchmod(descriptor_, old.st_mode & 07777) == 0) &&
                       ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0;
    if (!ready) refuse(path, errno);
  }
  name = dist::texts_of_ranks(ranks.transport(), name)[0];
  if (ranks.first()) return;
  temporary_ = target_.parent_path() / name;
  unfinished_ = UnfinishedFile(temporary_);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) {
    throw IoError("[write_file] " + escaped(path) + ": every rank must see the file system of --out: rank " +
                  std::to_string(ranks.rank()) + " does not find " + escaped(temporary_.native()));
  }
}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void SharedFile::write(std::uint64_t at, std::span<const std::byte> bytes) const {
  constexpr std::size_t kMaxWrite = std::size_t{1} << 30;  // Linux writes at most 2 GiB per call
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMaxWrite), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(target_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
}

void SharedFile::commit() {
  if (::fsync(descriptor_) != 0) refuse(target_, errno);
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) refuse(target_, errno);
  ranks_.barrier();
  if (ranks_.first()) {
    const SignalsHeld held;
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(target_, errno);
  }
  ranks_.barrier();
  temporary_.clear();
  unfinished_ = UnfinishedFile();
}

}  // namespace qkv::cli

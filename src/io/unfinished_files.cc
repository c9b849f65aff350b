// A table of C strings. Each belongs to whoever exchanges it for null: its holder, which frees it, or a handler, which
// removes the file and does not free the string.
#include "io/unfinished_files.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace qkv::inline v0 {
namespace {

using Slot = std::atomic<char*>;
static_assert(Slot::is_always_lock_free, "a handler may use lock-free atomics only");
std::array<Slot, kUnfinishedFiles> table{};

}  // namespace

UnfinishedFile::UnfinishedFile(const std::filesystem::path& path) {
  char* name = ::strdup(path.c_str());
  if (name == nullptr) return;  // the file is removed on every exit except a signal
  for (Slot& slot : table) {
    char* empty = nullptr;
    if (slot.compare_exchange_strong(empty, name)) {
      slot_ = &slot;
      return;
    }
  }
  std::free(name);
}

UnfinishedFile::UnfinishedFile(UnfinishedFile&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}

UnfinishedFile& UnfinishedFile::operator=(UnfinishedFile&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

UnfinishedFile::~UnfinishedFile() {
  if (slot_ != nullptr) std::free(slot_->exchange(nullptr));
}

void remove_unfinished_files() noexcept {
  for (Slot& slot : table) {
    const char* name = slot.exchange(nullptr);
    if (name != nullptr) ::unlink(name);
  }
}

}  // namespace qkv::inline v0

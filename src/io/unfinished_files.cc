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

using Place = std::atomic<char*>;
static_assert(Place::is_always_lock_free, "a handler may use lock-free atomics only");
std::array<Place, kUnfinishedFiles> table{};

}  // namespace

UnfinishedFile::UnfinishedFile(const std::filesystem::path& path) {
  char* name = ::strdup(path.c_str());
  if (name == nullptr) return;  // the file is removed on every exit except a signal
  for (Place& place : table) {
    char* empty = nullptr;
    if (place.compare_exchange_strong(empty, name)) {
      place_ = &place;
      return;
    }
  }
  std::free(name);
}

UnfinishedFile::UnfinishedFile(UnfinishedFile&& other) noexcept : place_(std::exchange(other.place_, nullptr)) {}

UnfinishedFile& UnfinishedFile::operator=(UnfinishedFile&& other) noexcept {
  std::swap(place_, other.place_);
  return *this;
}

UnfinishedFile::~UnfinishedFile() {
  if (place_ != nullptr) std::free(place_->exchange(nullptr));
}

void remove_unfinished_files() noexcept {
  for (Place& place : table) {
    const char* name = place.exchange(nullptr);
    if (name != nullptr) ::unlink(name);
  }
}

}  // namespace qkv::inline v0

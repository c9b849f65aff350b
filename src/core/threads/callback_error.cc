#include "core/threads/callback_error.h"

#include <exception>
#include <utility>

namespace qkv::inline v0 {
namespace {

thread_local std::exception_ptr kept;

}  // namespace

bool callback_failed() noexcept { return kept != nullptr; }

void keep_callback_error() noexcept { kept = std::current_exception(); }

void forget_callback_error() noexcept { kept = nullptr; }

void rethrow_callback_error() {
  if (kept != nullptr) std::rethrow_exception(std::exchange(kept, nullptr));
}

}  // namespace qkv::inline v0

// User code called from kernels, which throw nothing: an exception is kept for the thread it happened on, the kernel
// continues with whatever values it has, further callbacks of this thread do nothing, and the item that called the
// kernel throws when it ends (region.h). So an item never stops halfway, and nobody waits for its turn in vain.
#pragma once

#include "qkv/export.h"

namespace qkv::inline v0 {

/// Whether a callback of this thread has thrown an exception that has not been rethrown.
bool callback_failed() noexcept;
/// Keeps the exception being handled.
void keep_callback_error() noexcept;
QKV_API void forget_callback_error() noexcept;
/// Throws what was kept, if anything, and forgets it.
QKV_API void rethrow_callback_error();

/// Runs body(). Returns false if it or an earlier callback of this thread threw.
template <class Body> bool guard_callback(const Body& body) noexcept {
  if (callback_failed()) return false;
  try {
    body();
    return true;
  } catch (...) {
    keep_callback_error();
    return false;
  }
}

}  // namespace qkv::inline v0

#include "engine/face.h"

#include <cstdlib>
#include <typeinfo>
#include <utility>

namespace qkv::inline v0::lesson {
namespace {

std::string error_sentence;

}  // namespace

Context& context() {
  static Context one({.threads = 1, .isa = Isa::kScalar, .bits = Bits::kFast});
  return one;
}

std::vector<float>& results() {
  static std::vector<float> block;
  return block;
}

std::string& text() {
  static std::string one;
  return one;
}

void keep_error(const char* sentence) { error_sentence = sentence; }

}  // namespace qkv::inline v0::lesson

/// Memory for what goes in; the caller frees it.
QKV_LESSON void* lesson_alloc(int bytes) { return std::malloc(static_cast<std::size_t>(bytes)); }
QKV_LESSON void lesson_free(void* memory) { std::free(memory); }

/// The sentence of the last error since the last call of this function; empty: there was none.
QKV_LESSON const char* lesson_error() {
  static std::string told;
  told = std::exchange(qkv::lesson::error_sentence, {});
  return told.c_str();
}

#if defined(__EMSCRIPTEN__)
// The library is compiled without tables of exceptions, which would make it larger: what it throws ends in these,
// instead of emscripten's own, and engine.js leaves the call with the sentence. All that it throws are std::exceptions.
__attribute__((import_module("engine"), import_name("fail"))) extern "C" void engine_fail(const char* sentence);
extern "C" {
void* __cxa_allocate_exception(std::size_t bytes) noexcept { return std::malloc(bytes); }
void __cxa_free_exception(void* thrown) noexcept { std::free(thrown); }
[[noreturn]] void __cxa_throw(void* thrown, std::type_info*, void (*)(void*)) {
  engine_fail(static_cast<std::exception*>(thrown)->what());
  std::abort();
}
}
#endif

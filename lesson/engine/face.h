// What the functions of the lesson's engine share. engine.js calls them: numbers, texts (UTF-8, ended by 0) and arrays
// of floats go in; out come a number, a text, or one block of floats that holds the results one behind the other, valid
// until the next call. Nothing is thrown: an error is a sentence, which engine.js throws as WebAssembly (face.cc), and
// lesson_error() gives elsewhere.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "qkv/context.h"

#if defined(__EMSCRIPTEN__)
#define QKV_LESSON extern "C" __attribute__((used, visibility("default")))
#else
#define QKV_LESSON extern "C" __attribute__((visibility("default")))
#endif

namespace qkv::inline v0::lesson {

/// One thread, the portable kernels: the bits of `--isa scalar --threads 1`.
Context& context();
/// Where results lie until the next call.
std::vector<float>& results();
std::string& text();
/// Keeps the sentence of an error for lesson_error().
void keep_error(const char* sentence);

/// What `work` returns; T() where it throws.
template <class Work> auto answer(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    keep_error(error.what());
    return {};
  }
}

}  // namespace qkv::inline v0::lesson

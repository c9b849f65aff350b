// The exercises that are compiled in: skeleton and solution of each task. Not: which tasks there are, the verdict
// (src/judge).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::cli {

enum class Language { kNumpy, kTorch, kCpp };
std::string_view language_name(Language language);  ///< "numpy": its folder and its option

/// "self_attention": a file that Python can import, without its ending.
std::string file_of(std::string_view task);

/// In the order in which one is chosen where none is asked for: torch, numpy, cpp.
std::vector<Language> languages_of(std::string_view task);
/// The whole file with its markers; nothing when this task has none in this language.
std::optional<std::string_view> exercise(std::string_view task, Language language);

/// What every exercise in C++ includes: printed within each, so that its file compiles alone.
std::string_view given_in_cpp();

/// "sdpa(q, k, v, mask=None)", "SelfAttentionV1(width)": a function or class of an exercise in Python, as its file has
/// it; empty when it is in none.
std::string signature(std::string_view task, std::string_view name);

/// What a person fills in: each region `# solution: ...` to `# end` raises instead, with the words after the colon.
/// `solved`: the same file filled in, without markers. Precondition: there is one.
std::string printed_exercise(std::string_view task, Language language, bool solved);

}  // namespace qkv::cli

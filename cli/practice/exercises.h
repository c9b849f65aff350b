// The exercises that are compiled in: what each asks for, skeleton and solution in each language.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qkv::cli {

/// "self_attention": a file that Python can import, without its ending.
std::string file_of(std::string_view task);

/// "torch", "numpy", "cpp" as far as the task has them: the first is chosen where none is asked for.
std::vector<std::string> languages_of(std::string_view task);

/// "sdpa(q, k, v, mask=None)", "SelfAttentionV1(width)": a function or class of an exercise in Python, as its file has
/// it; empty when it is in none.
std::string signature(std::string_view task, std::string_view name);

/// The parts to fill in: what stands below `# solution: words` (`//` in C++), as far indented, raises instead, with the
/// words. `solved`: the same file filled in, without markers. Precondition: the task has the language.
std::string printed_exercise(std::string_view task, const std::string& language, bool solved);

}  // namespace qkv::cli

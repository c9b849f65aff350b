// The language that a command speaks: --lang, otherwise the environment's. Its sentences: zh/*.txt.
#pragma once

#include "core/sentences.h"

namespace qkv::cli {

/// Of --lang auto|en|zh among the words of the command line; auto: QKV_LANG, LC_ALL, LC_MESSAGES or LANG, the first
/// that is set, where it begins with "zh" and standard output is UTF-8. --json is English unless --lang says otherwise.
/// nullptr: English.
const Sentences* language(int argc, const char* const* argv);

/// Sentences that a command adds to those of zh/. Returns true, so that a namespace-scope constant can call it.
bool add_chinese(void (*add)(Sentences&));

}  // namespace qkv::cli

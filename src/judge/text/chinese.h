// The judge's sentences in Chinese, from zh/*.txt.
#pragma once

#include "core/sentences.h"

namespace qkv::judge {

void add_chinese(Sentences& to);
/// Of the judge alone.
const Sentences& chinese();

}  // namespace qkv::judge

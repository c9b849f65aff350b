// A finding for editors and code scanning: where in the file, and what. Not: as text for people (src/judge/report.h).
#pragma once

#include <string>

#include "judge/report.h"

namespace qkv::cli {

/// SARIF 2.1.0: a result for each mistake, or one for code that could not be judged; none where all is right. `hint`:
/// the rule is "wrong", the message a question.
std::string sarif_of(const judge::Finding& finding, bool hint);

/// "mine.py:12: error: The scores are not divided by sqrt(d). [no-scale]": the same as lines.
std::string problems_of(const judge::Finding& finding, bool hint);

}  // namespace qkv::cli

// Cases whose mask lists each query's keys, in lists so short that calls read them alone. Lists of any length beside
// other options: MaskKind::kKeys.
#pragma once

#include <vector>

#include "support/cases/cases.h"

namespace qkv::test {

/// One query and many, shared lists and each head's, groups for decode's kernel and for the tiled one, parts of lists.
/// NaN in every key and value that no query of the group attends.
std::vector<AttentionCase> list_cases();

/// Lists that only forward reads alone, and lists that are read alone only by fewer rows or heads.
std::vector<AttentionCase> long_list_cases();

/// The case's lists, ascending: keys of a row are Tk / width or more apart, the row's number decides where they begin.
/// Row 1 lists nothing, row 2 one key. A mask of the case's filters them.
MaskCase listed_mask(const AttentionCase& c);

}  // namespace qkv::test

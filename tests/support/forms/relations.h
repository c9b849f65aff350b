// Properties of every form: relation x form x case. One function a relation, each for one form and one case, on
// every instruction set.
#pragma once

#include "support/checks/bounds.h"
#include "support/forms/form.h"

namespace qkv::test {

/// `worst` notes what was held against bounds.
template <class T> using Check = void (*)(const Form<T>&, const AttentionCase&, Worst& worst);

template <class T> struct Relation {
  const char* name;
  Check<T> check;
  std::size_t step;  ///< every step-th case of the list in scripts/test, all in scripts/verify-release
};

/// textbook: bits of one call on the whole, or within bounds. threads: any number, and call after call. alone: each
/// sequence of a batch. nan: what lies behind a mask is invisible. mask: its pairs written out give the same bits.
/// everywhere: invariant bits are the same on every instruction set.
/// subset: each output without the others. accumulate: added to what is there. errors: write nothing. plan: says the
/// items and bytes that the call takes.
template <class T> const std::vector<Relation<T>>& relations();

/// The cases of a form for a relation, as the form takes them.
template <class T> std::vector<AttentionCase> cases_of(const Form<T>& form, const Relation<T>& relation);

}  // namespace qkv::test

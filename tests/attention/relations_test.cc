// Every way to compute attention under every relation, each type, on every instruction set: one test a form and
// relation. Forms are defined in support/forms/form.h; relations in support/forms/relations.cc.
#include "support/forms/relations.h"

#include <gtest/gtest.h>

namespace qkv::test {
namespace {

template <class T> void check(const Form<T>& form, const Relation<T>& relation, Worst& worst) {
  for (const AttentionCase& each : cases_of(form, relation)) {
    SCOPED_TRACE(each.name());
    relation.check(form, each, worst);
  }
}

/// Indices of a relation and a form.
class FormUnder : public testing::TestWithParam<std::pair<std::size_t, std::size_t>> {};

TEST_P(FormUnder, Relation) {
  const auto [relation, form] = GetParam();
  Worst worst;
  check(forms<float>()[form], relations<float>()[relation], worst);
  check(forms<double>()[form], relations<double>()[relation], worst);
  check(forms<BFloat16>()[form], relations<BFloat16>()[relation], worst);
  check(forms<Float16>()[form], relations<Float16>()[relation], worst);
  worst.print(forms<float>()[form].name);
}

std::vector<std::pair<std::size_t, std::size_t>> pairs() {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  for (std::size_t relation = 0; relation < relations<float>().size(); ++relation) {
    for (std::size_t form = 0; form < forms<float>().size(); ++form) all.emplace_back(relation, form);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, FormUnder, testing::ValuesIn(pairs()), [](const auto& instance) {
  return std::string(relations<float>()[instance.param.first].name) + "_" + forms<float>()[instance.param.second].name;
});

}  // namespace
}  // namespace qkv::test

// Runs a test body once for every instruction set that this machine can run, with the forced one checked; QKV_TEST_ISAS
// names fewer ("scalar,neon") where emulation or sanitizers make each slow.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/threads/context_impl.h"
#include "qkv/context.h"
#include "support/result_hash.h"

namespace qkv::test {

/// The instruction sets to test, slowest first. A name in QKV_TEST_ISAS that does not run here is an error, thrown.
const std::vector<Isa>& tested_isas();

/// body(context) for each ISA; `threads` workers.
template <class F> void for_each_isa(int threads, F&& body) {
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    Context context({.threads = threads, .isa = isa, .executor = nullptr});
    context.impl().region_flops = 0;  // regions even for little work
    ASSERT_EQ(context.isa(), isa) << "the forced instruction set is not active";
    ASSERT_EQ(context.threads(), threads);
    result_hash().use(std::string(isa_name(isa)));
    body(context);
  }
}

/// same(run(context), first result) for each ISA with invariant bits, 1 and 3 threads.
template <class Run, class Same> void expect_on_every_isa(const Run& run, const Same& same) {
  std::optional<decltype(run(Context::default_context()))> first;
  for (const Isa isa : tested_isas()) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " threads " + std::to_string(threads));
      Context context({.threads = threads, .isa = isa, .bits = Bits::kInvariant, .executor = nullptr});
      context.impl().region_flops = 0;
      auto result = run(context);
      first ? same(result, *first) : static_cast<void>(first.emplace(std::move(result)));
    }
  }
}

using FloatTypes = testing::Types<float, double>;
using StorageTypes = testing::Types<float, double, BFloat16, Float16>;

}  // namespace qkv::test

// Runs a test body once for every instruction set that this machine can run, with the forced one checked.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/context_impl.h"
#include "qkv/context.h"

namespace qkv::test {

/// body(context) for each ISA; `threads` workers.
template <class F>
void for_each_isa(int threads, F&& body) {
  for (const Isa isa : supported_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    Context context({.threads = threads, .isa = isa, .executor = nullptr});
    context.impl().region_flops = 0;  // regions however small the work
    ASSERT_EQ(context.isa(), isa) << "the forced instruction set is not active";
    ASSERT_EQ(context.threads(), threads);
    body(context);
  }
}

using FloatTypes = testing::Types<float, double>;
using StorageTypes = testing::Types<float, double, BFloat16, Float16>;

}  // namespace qkv::test

// Tests of one instruction set, QKV_TEST_ISA, for which their program is compiled: skipped where this CPU has it not.
#pragma once

#include <gtest/gtest.h>

#include "qkv/context.h"

namespace qkv {
namespace {  // each program has its own

class OnThisIsa : public testing::Test {
 protected:
  void SetUp() override {
    for (const Isa isa : supported_isas()) {  // this also asks the operating system for tiles
      if (isa_name(isa) == QKV_TEST_ISA) return;
    }
    GTEST_SKIP() << "this CPU has no " << QKV_TEST_ISA;
  }
};

}  // namespace
}  // namespace qkv

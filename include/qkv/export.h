// The visibility mark of everything public, and the language that all headers need.
#pragma once

#if __cplusplus < 202002L
#error "qkv needs C++20: compile with -std=c++20 or later"
#endif

#define QKV_API __attribute__((visibility("default")))

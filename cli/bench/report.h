// What `qkv bench` says: a table for people, one JSON document for programs. Not: what it measures.
#pragma once

#include <span>

#include "bench/measure.h"
#include "support/json.h"

namespace qkv::cli {

void print_bench_heading(const Context& context);
/// One line; a second one when the kernel differs from that of `previous`.
void print_case(const Measured& measured, const Measured* previous);
/// The peaks, and which cases the machine disturbed.
void print_summary(std::span<const Measured> measured, const Peak& peak);

Json bench_json(std::span<const Measured> measured, const Peak& peak, const std::string& suite, const Context& context);

}  // namespace qkv::cli

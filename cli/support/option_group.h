// Options under one heading of --help. Not: what they mean.
#pragma once

#include <string>

#include "support/integer_option.h"

namespace qkv::cli {

class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string heading) : app_(app), heading_(std::move(heading)) {}

  /// `type` stands for the value: "X", "N,N,...".
  template <class Value>
  CLI::Option* value(const std::string& name, Value& value, const std::string& type, const std::string& help) const {
    return app_.add_option(name, value, help)->type_name(type)->group(heading_);
  }
  CLI::Option* file(const std::string& name, std::string& path, const std::string& help) const {
    return value(name, path, "FILE", help);
  }
  template <class Value>
  CLI::Option* integer(const std::string& name, Value& value, const std::string& help,
                       typename IntegerOf<Value>::Type least = 0) const {
    return add_integer(app_, name, value, help, least)->group(heading_);
  }
  template <class Value>
  CLI::Option* flag(const std::string& name, Value& value, const std::string& help) const {
    return app_.add_flag(name, value, help)->group(heading_);
  }
  /// One that was added without a heading.
  void take(const std::string& name) const { app_.get_option(name)->group(heading_); }

 private:
  CLI::App& app_;
  std::string heading_;
};

}  // namespace qkv::cli

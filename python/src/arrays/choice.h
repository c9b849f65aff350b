// Options that Python names by a word, and keyword arguments that become the fields of a struct.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "qkv/attention.h"
#include "qkv/error.h"

namespace qkv::python {

template <class Value> using Word = std::pair<const char*, Value>;
template <class To> struct ValueOfField {
  using type = To;
};
template <class Value> struct ValueOfField<std::optional<Value>> {
  using type = Value;
};
template <class To> using ValueOf = typename ValueOfField<To>::type;  // of a field, which may be optional

/// The name of a value of this type.
template <class Value> constexpr const char* kind_of() {
  if constexpr (std::is_same_v<Value, bool>) return "True or False";
  if constexpr (std::is_unsigned_v<Value>) return "a whole number below 2^64 from 0 on";
  if constexpr (std::is_integral_v<Value>) return "a whole number";
  if constexpr (std::is_floating_point_v<Value>) return "a number";
  if constexpr (std::is_same_v<Value, std::string>) return "a string";
  return "of another type";
}

/// The value that `name` stands for. OptionError with `what`, "[function] option", and all names if there is none.
template <class Value, std::size_t kCount>
Value choice(const std::string& what, const std::string& name, const Word<Value> (&choices)[kCount]) {
  std::string names;
  for (std::size_t n = 0; n < kCount; ++n) {
    if (name == choices[n].first) return choices[n].second;
    names += (n == 0 ? "\"" : n + 1 == kCount ? " or \"" : ", \"") + std::string(choices[n].first) + "\"";
  }
  throw OptionError(what + " must be " + names + ": got \"" + name + "\"");
}

constexpr Word<EmptyRow> kEmptyRows[] = {{"zero", EmptyRow::kZero}, {"mean", EmptyRow::kMean}, {"nan", EmptyRow::kNaN}};

/// Keywords(function, given)("width", to.width).word("kind", to.kind, {{"a", kA}}).end(): a field keeps its value where
/// its name is not given or None. TypeError: a value of another kind; in end(), a name that is no field's.
class Keywords {
 public:
  Keywords(const char* function, const nanobind::kwargs& given) : function_(function), given_(given) {}

  template <class T> Keywords& operator()(const char* name, T& to) {
    const nanobind::object value = get(name);
    if (value.is_valid() && !read(value, to)) fail(name, value, kind_of<ValueOf<T>>());
    return *this;
  }
  template <class To, std::size_t kCount>
  Keywords& word(const char* name, To& to, const Word<ValueOf<To>> (&choices)[kCount]) {
    std::string text;
    if (const nanobind::object value = get(name); value.is_valid()) {
      if (!nanobind::try_cast(value, text)) fail(name, value, "a string");
      to = choice(prefix() + name, text, choices);
    }
    return *this;
  }
  void end() const {
    if (found_ == given_.size()) return;
    std::string all;
    for (std::ptrdiff_t n = 0; n < asked_; ++n)
      all += (n == 0 ? "" : ", ") + std::string(names_.at(static_cast<std::size_t>(n)));
    for (const auto [name, value] : given_) {
      const std::string text = nanobind::str(name).c_str();
      if (std::find(names_.begin(), names_.begin() + asked_, text) == names_.begin() + asked_) {
        throw nanobind::type_error((prefix() + "no option is called '" + text + "'; there are " + all).c_str());
      }
    }
  }

 private:
  template <class T> static bool read(const nanobind::object& value, T& to) {
    if (nanobind::try_cast(value, to)) return true;
    if constexpr (std::is_same_v<ValueOf<T>, bool>) {  // numpy.bool, numpy.bool_ before NumPy 2
      const std::string type = nanobind::str(value.type()).c_str();
      if (type.starts_with("<class 'numpy.bool")) {
        to = PyObject_IsTrue(value.ptr()) == 1;
        return true;
      }
    }
    return false;
  }
  std::string prefix() const { return "[" + std::string(function_) + "] "; }
  nanobind::object get(const char* name) {
    names_.at(static_cast<std::size_t>(asked_++)) = name;
    if (found_ == given_.size()) return {};
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(given_.ptr(), &at, &key, &value) != 0;) {
      if (PyUnicode_CompareWithASCIIString(key, name) != 0) continue;
      ++found_;
      return nanobind::borrow(value == Py_None ? nullptr : value);
    }
    return {};
  }
  [[noreturn]] void fail(const char* name, const nanobind::object& value, const char* wanted) const {
    const std::string got = nanobind::repr(value).c_str();
    throw nanobind::type_error((prefix() + name + " must be " + wanted + ": got " + got).c_str());
  }

  const char* function_;
  const nanobind::kwargs& given_;
  std::array<const char*, 24> names_{};
  std::ptrdiff_t asked_ = 0;
  std::size_t found_ = 0;
};

}  // namespace qkv::python

// The typed errors of the library. Text: "[function] requirement: got values". The library never prints or exits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "qkv/export.h"

namespace qkv::inline v0 {

/// Base of everything that qkv throws on purpose.
class QKV_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

/// Sizes, strides or axes that do not fit together; an output that overlaps an input.
class QKV_API ShapeError : public Error {
 public:
  using Error::Error;
  ~ShapeError() override;
};

/// An option whose value can never be valid: a scale that is non-finite, p outside [0, 1], an unknown name.
class QKV_API OptionError : public Error {
 public:
  using Error::Error;
  ~OptionError() override;
};

/// A combination that is valid but that qkv does not compute.
class QKV_API UnsupportedError : public Error {
 public:
  using Error::Error;
  ~UnsupportedError() override;
};

/// A key/value cache has no room for what is to be added: free something and call again.
class QKV_API CacheFullError : public Error {
 public:
  using Error::Error;
  ~CacheFullError() override;
};

/// A file or byte sequence that breaks its format. `byte_offset` says where, counted from the start of the file.
class QKV_API FormatError : public Error {
 public:
  FormatError(const std::string& text, std::uint64_t byte_offset);
  ~FormatError() override;
  std::uint64_t byte_offset() const noexcept { return byte_offset_; }

 private:
  std::uint64_t byte_offset_;
};

/// The operating system refused a request: a missing file, a full disk, no permission. The text names the path and the
/// reason.
class QKV_API IoError : public Error {
 public:
  using Error::Error;
  ~IoError() override;
};

}  // namespace qkv::inline v0

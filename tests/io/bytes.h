// Shared by the tests of the formats: files built by hand, tensors filled with known bytes, a temporary folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/error.h"
#include "qkv/state_dict.h"

namespace qkv::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline std::string little_endian_text(std::uint64_t value, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

/// Header text with a `^` before the faulty byte: the text without it, and its position.
struct Marked {
  explicit Marked(std::string marked) : text(std::move(marked)), at(text.find('^')) {
    if (at != std::string::npos) text.erase(at, 1);
  }
  std::string text;
  std::size_t at;
};

/// `text` with another text instead of the first `from`.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// A rule of a format's header: a marked header that breaks it alone, and a part of the message.
struct Rule {
  const char* what;
  std::string marked_header;
  const char* part;
};

/// Bytes 1, 2, 3, ...: no two neighbours are equal, so that a swap or a shift shows.
inline AnyTensor counting_tensor(DType dtype, std::vector<Index> sizes) {
  AnyTensor tensor;
  tensor.dtype = dtype;
  tensor.bytes.resize(static_cast<std::size_t>(checked_count(sizes)) * dtype_bytes(dtype));
  tensor.sizes = std::move(sizes);
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::byte>(i + 1);
  return tensor;
}

inline bool same(const AnyTensor& a, const AnyTensor& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.bytes == b.bytes;
}

inline bool same(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size() || a.metadata != b.metadata) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a.entries()[i].name != b.entries()[i].name || !same(a.entries()[i].tensor, b.entries()[i].tensor)) return false;
  }
  return true;
}

/// `parse` must throw a FormatError at `offset` whose text has `part`.
template <class Parse> void expect_format_error(const Parse& parse, std::uint64_t offset, std::string_view part) {
  try {
    parse();
    ADD_FAILURE() << "accepted; expected a FormatError at byte " << offset << " with: " << part;
  } catch (const FormatError& error) {
    EXPECT_EQ(error.byte_offset(), offset) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

/// parse(header) of each: a FormatError at the mark, `before` bytes into the file.
template <class Parse> void expect_rules(std::span<const Rule> rules, std::size_t before, const Parse& parse) {
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule.what);
    const Marked header(rule.marked_header);
    ASSERT_NE(header.at, std::string::npos);
    expect_format_error([&] { parse(header.text); }, before + header.at, rule.part);
  }
}

/// `parse` must return or throw FormatError, nothing else. True: it returned.
template <class Parse> bool parses_or_refuses(const Parse& parse, std::uint64_t size) {
  try {
    parse();
    return true;
  } catch (const FormatError& error) {
    EXPECT_LE(error.byte_offset(), size) << error.what();
    return false;
  }
}

/// Every shorter file is refused; every file with one bit flipped is read or refused, at least `refused` of them.
template <class Parse> void expect_whole_files_only(Bytes file, const Parse& parse, int refused) {
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parses_or_refuses([&] { parse(std::span(std::as_const(file)).first(size)); }, size)) << size;
  }
  int count = 0;
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    const std::byte mask = static_cast<std::byte>(1u << (bit % 8));
    file[bit / 8] ^= mask;
    count += parses_or_refuses([&] { parse(std::span(std::as_const(file))); }, file.size()) ? 0 : 1;
    file[bit / 8] ^= mask;
  }
  EXPECT_GT(count, refused);
}

/// An empty folder that is removed with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "qkv-io-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

/// A file that another program wrote; see tests/io/data/README.md.
inline std::filesystem::path data_file(std::string_view name) {
  return std::filesystem::path(QKV_ROOT) / "tests/io/data" / name;
}

inline const std::vector<DType> kAllDTypes = {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16,
    DType::kI32, DType::kU32, DType::kI64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

}  // namespace qkv::test

// Grammar: '{' [ key ':' value { ',' key ':' value } [','] ] '}' spaces '\n', each of the keys descr, fortran_order,
// shape once. Source: NumPy, numpy/lib/format.py, "Format Version 1.0" and the sections after it.
#include "io/npy_header.h"

#include <array>
#include <string_view>
#include <utility>

namespace qkv::inline v0::io {
namespace {

struct Name {
  std::string_view code;
  DType dtype;
};
constexpr std::array<Name, 12> kNames = {{{"b1", DType::kBool}, {"u1", DType::kU8}, {"i1", DType::kI8},
    {"u2", DType::kU16}, {"i2", DType::kI16}, {"u4", DType::kU32}, {"i4", DType::kI32}, {"u8", DType::kU64},
    {"i8", DType::kI64}, {"f2", DType::kF16}, {"f4", DType::kF32}, {"f8", DType::kF64}}};

class NpyHeaderReader {
 public:
  NpyHeaderReader(const std::string& text, std::uint64_t start, const Source& source)
      : text_(text), start_(start), source_(source) {}

  NpyHeader read() {
    expect('{', "a header must be a dict");
    skip_space();
    while (!try_consume('}')) {
      read_item();
      skip_space();
      if (!try_consume(',')) {
        expect('}', "an item of the header must be followed by a comma or }");
        break;
      }
      skip_space();
    }
    check(keys_ == (kDescr | kFortran | kShape), position_ - 1,
        "a header must have descr, fortran_order and shape: got fewer");
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
    check(position_ + 1 == text_.size() && text_[position_] == '\n', position_, [&] {
      return "the dict must be followed by spaces and one newline only: got " + escaped(text_.substr(position_));
    });
    return std::move(header_);
  }

 private:
  static constexpr unsigned kDescr = 1, kFortran = 2, kShape = 4;

  template <class Text> void check(bool holds, std::size_t at, const Text& text) const {
    source_.check(holds, start_ + at, text);
  }
  void skip_space() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\t')) ++position_;
  }
  bool try_consume(char wanted) {
    if (position_ == text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }
  void expect(char wanted, const char* requirement) {
    skip_space();
    const std::size_t at = position_;
    check(try_consume(wanted), at, [&] {
      return std::string(requirement) + ": got " + escaped(text_.substr(at, 16)) + " where " + wanted + " is needed";
    });
  }
  bool try_consume(std::string_view word) {
    if (std::string_view(text_).substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  // A Python string without escapes: no name that is read needs one.
  std::string read_string(const char* what) {
    const std::size_t at = position_;
    const char quote = at < text_.size() ? text_[at] : '\0';
    check(quote == '\'' || quote == '"', at,
        [&] { return std::string(what) + " must be a string: got " + escaped(text_.substr(at, 16)); });
    const std::size_t end = text_.find(quote, at + 1);
    check(end != std::string::npos, at,
        [&] { return std::string(what) + " must be a string with a closing quote: got " + escaped(text_.substr(at)); });
    position_ = end + 1;
    return text_.substr(at + 1, end - at - 1);
  }

  void read_item() {
    const std::size_t at = position_;
    const std::string key = read_string("a key of the header");
    const unsigned field = key == "descr" ? kDescr : key == "fortran_order" ? kFortran : key == "shape" ? kShape : 0;
    check(field != 0, at,
        [&] { return "a key of the header must be descr, fortran_order or shape: got " + escaped(key); });
    check((keys_ & field) == 0, at, [&] { return "a key of the header must not repeat: got a second " + key; });
    keys_ |= field;
    expect(':', "a key must be followed by a colon");
    skip_space();
    if (field == kDescr) {
      read_descr();
    } else if (field == kFortran) {
      read_fortran_order();
    } else {
      read_shape();
    }
  }

  void read_descr() {
    const std::size_t at = position_;
    check(at == text_.size() || text_[at] != '[', at,
        [&] { return "structured arrays are not read: got descr " + escaped(text_.substr(at)); });
    const std::string descr = read_string("descr");
    const Name* found = nullptr;
    for (const Name& name : kNames) {
      if (descr.size() == 3 && std::string_view(descr).substr(1) == name.code) found = &name;
    }
    const bool bfloat16 = descr.ends_with("V2");
    check(found != nullptr, at, [&] {
      return "the dtype must be one of b1, i1..i8, u1..u8, f2, f4, f8: got " + escaped(descr) +
             (bfloat16 ? ", perhaps bfloat16: save it as float32, or as safetensors" : "");
    });
    const bool one_byte = dtype_bytes(found->dtype) == 1;
    const char order = descr[0];
    check(order == '<' || order == '>' || (order == '|' && one_byte), at,
        [&] { return "a dtype must begin with its byte order, < or > (| for one byte): got " + escaped(descr); });
    header_.dtype = found->dtype;
    header_.big_endian = order == '>' && !one_byte;
  }

  void read_fortran_order() {
    const std::size_t at = position_;
    header_.fortran_order = try_consume("True");
    check(header_.fortran_order || try_consume("False"), at,
        [&] { return "fortran_order must be True or False: got " + escaped(text_.substr(at, 16)); });
  }

  // () or (3,) or (3, 4) or (3, 4,): as in Python, (3) is not a tuple.
  void read_shape() {
    header_.shape_at = start_ + position_;
    expect('(', "shape must be a tuple");
    skip_space();
    bool comma = true;
    while (!try_consume(')')) {
      check(comma, position_, [&] {
        return "sizes of the shape must be separated by a comma: got " + escaped(text_.substr(position_, 16));
      });
      check(header_.sizes.size() < kMaxAxes, position_, "at most 64 axes are read: got more");
      header_.sizes.push_back(read_size());
      skip_space();
      comma = try_consume(',');
      skip_space();
    }
    check(header_.sizes.size() != 1 || comma, position_ - 1,
        "shape must be a tuple, and one of a single size ends in a comma: got a number");
  }

  Index read_size() {
    const std::size_t at = position_;
    std::uint64_t value = 0;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9' && value <= kMaxSize) {
      value = value * 10 + static_cast<std::uint64_t>(text_[position_++] - '0');
    }
    const bool leading_zero = position_ > at + 1 && text_[at] == '0';
    check(position_ > at && value <= kMaxSize && !leading_zero, at,
        [&] { return "a size must be a whole number of at most 2^53: got " + escaped(text_.substr(at, 24)); });
    return static_cast<Index>(value);
  }

  const std::string& text_;
  std::uint64_t start_;
  const Source& source_;
  std::size_t position_ = 0;
  NpyHeader header_{};
  unsigned keys_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(const std::string& text, std::uint64_t start, const Source& source) {
  return NpyHeaderReader(text, start, source).read();
}

std::string npy_descr(DType dtype) {
  for (const Name& name : kNames) {
    if (name.dtype == dtype) return (dtype_bytes(dtype) == 1 ? "|" : "<") + std::string(name.code);
  }
  return {};
}

}  // namespace qkv::inline v0::io

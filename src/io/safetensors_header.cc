// A state machine over the events of nlohmann's SAX parser: it sees duplicate keys, and anything unexpected stops the
// parser at once, so that nesting and size of the document are bounded. Byte offsets of errors come from the iterator
// that feeds the parser.
#include "io/safetensors_header.h"

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

namespace qkv::inline v0::io {
namespace {

using Json = nlohmann::json;

// Advances the shared `*position`: every copy of the iterator moves with it.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit TrackedIterator(const char** position) : position_(position) {}
  reference operator*() const { return **position_; }
  TrackedIterator& operator++() {
    ++*position_;
    return *this;
  }
  bool operator==(const TrackedIterator& other) const { return *position_ == *other.position_; }
  bool operator!=(const TrackedIterator& other) const { return !(*this == other); }

 private:
  const char** position_;
};

std::optional<DType> dtype_of(std::string_view name) {
  constexpr std::array kAll = {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16, DType::kI32, DType::kU32,
      DType::kI64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
  for (const DType dtype : kAll) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& text, std::uint64_t start, const Source& source)
      : text_(text), start_(start), source_(source), position_(text.data()) {}

  Header read() {
    const char* end = text_.data() + text_.size();
    Json::sax_parse(TrackedIterator(&position_), TrackedIterator(&end), this);
    return std::move(header_);
  }

  bool key(std::string& name) override {
    const std::uint64_t at = string_start();
    if (level_ == Level::kTop) {
      entry_ = {};
      entry_.name = name;
      entry_.name_at = at;
      source_.check(
          names_.insert(name).second, at, [&] { return "a name must not repeat: got a second " + escaped(name); });
      source_.check(names_.size() <= kMaxTensors + 1, at, "at most 65536 tensors are read: got more");
    } else if (level_ == Level::kMetadata) {
      metadata_key_ = name;
      source_.check(!header_.metadata.contains(name), at,
          [&] { return "a __metadata__ key must not repeat: got a second " + escaped(name); });
      source_.check(header_.metadata.size() < kMaxTensors, at, "at most 65536 __metadata__ keys are read: got more");
    } else {
      field_ = name == "dtype" ? kDtype : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : kNoField;
      source_.check(field_ != kNoField, at,
          [&] { return of_entry("a field must be dtype, shape or data_offsets: got " + escaped(name)); });
      source_.check(
          (fields_ & field_) == 0, at, [&] { return of_entry("a field must not repeat: got a second " + name); });
      fields_ |= field_;
    }
    return true;
  }

  bool string(std::string& value) override {
    if (level_ == Level::kMetadata) {
      header_.metadata.emplace(metadata_key_, value);
    } else if (level_ == Level::kEntry && field_ == kDtype) {
      const std::optional<DType> dtype = dtype_of(value);
      if (!dtype) source_.refuse(string_start(), of_entry("the dtype must be a supported one: got " + escaped(value)));
      entry_.dtype = *dtype;
    } else {
      unexpected("a string", string_start());
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    const std::uint64_t at = number_start();
    if (level_ != Level::kList) unexpected("a number", at);
    source_.check(value <= kMaxSize, at, [&] {
      return of_entry("sizes and offsets must be whole numbers of at most 2^53: got " + std::to_string(value));
    });
    source_.check(list_.size() < (field_ == kOffsets ? 2 : kMaxAxes), at, [&] {
      return of_entry(
          field_ == kOffsets ? "data_offsets must be two numbers: got more" : "at most 64 axes are read: got more");
    });
    list_.push_back(static_cast<Index>(value));
    return true;
  }
  // "-0" and "-1" come here: the parser takes only digits as unsigned.
  bool number_integer(std::int64_t value) override { return not_whole("a negative number, " + std::to_string(value)); }
  bool number_float(double, const std::string& literal) override { return not_whole(escaped(literal)); }

  bool start_object(std::size_t) override {
    if (level_ == Level::kStart) {
      level_ = Level::kTop;
    } else if (level_ == Level::kTop) {
      level_ = entry_.name == "__metadata__" ? Level::kMetadata : Level::kEntry;
      fields_ = 0;
    } else {
      unexpected("an object", token_at());
    }
    return true;
  }

  bool end_object() override {
    if (level_ == Level::kEntry) {
      source_.check(fields_ == (kDtype | kShape | kOffsets), token_at(),
          [&] { return of_entry("dtype, shape and data_offsets are all required"); });
      header_.entries.push_back(std::move(entry_));
    }
    level_ = level_ == Level::kTop ? Level::kEnd : Level::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::kEntry || field_ == kDtype) unexpected("a list", token_at());
    level_ = Level::kList;
    list_.clear();
    (field_ == kShape ? entry_.shape_at : entry_.offsets_at) = token_at();
    return true;
  }

  bool end_array() override {
    level_ = Level::kEntry;
    if (field_ == kShape) {
      entry_.sizes = list_;
    } else {
      source_.check(list_.size() == 2, token_at(),
          [&] { return of_entry("data_offsets must be two numbers: got " + std::to_string(list_.size())); });
      entry_.begin = static_cast<std::uint64_t>(list_[0]);
      entry_.end = static_cast<std::uint64_t>(list_[1]);
    }
    return true;
  }

  bool null() override { unexpected("null", token_at()); }
  bool boolean(bool) override { unexpected("true or false", token_at()); }
  bool binary(Json::binary_t&) override { unexpected("binary data", token_at()); }

  bool parse_error(std::size_t, const std::string& last_token, const Json::exception&) override {
    source_.refuse(token_at(), "the header must be JSON in UTF-8: got something else at " + escaped(last_token));
  }

 private:
  enum class Level { kStart, kTop, kMetadata, kEntry, kList, kEnd };
  static constexpr unsigned kNoField = 0, kDtype = 1, kShape = 2, kOffsets = 4;

  std::uint64_t consumed() const { return static_cast<std::uint64_t>(position_ - text_.data()); }
  // The last character that the parser has read; the start of the header when it has read none.
  std::uint64_t token_at() const { return start_ + (consumed() == 0 ? 0 : consumed() - 1); }

  // The opening quote of the string that ends at the last character: the nearest one before it that no backslash
  // escapes. Every character is read once: where a quote is escaped, the backslashes before it are passed over
  // with it.
  std::uint64_t string_start() const {
    std::size_t quote = consumed() - 1;
    while (true) {
      do --quote;
      while (text_[quote] != '"');
      std::size_t first = quote;  // of the backslashes before the quote
      while (first > 0 && text_[first - 1] == '\\') --first;
      if ((quote - first) % 2 == 0) return start_ + quote;
      quote = first;
    }
  }

  // The parser has read one character past a number.
  std::uint64_t number_start() const {
    constexpr std::string_view kOfNumber = "0123456789+-.eE";
    std::size_t first = consumed() - 1;
    while (first > 0 && kOfNumber.find(text_[first - 1]) != std::string_view::npos) --first;
    return start_ + first;
  }

  std::string of_entry(const std::string& text) const { return "tensor " + escaped(entry_.name) + ": " + text; }

  [[noreturn]] void unexpected(const std::string& what, std::uint64_t at) const {
    switch (level_) {
      case Level::kStart: source_.refuse(at, "the header must be one JSON object: got " + what);
      case Level::kTop: source_.refuse(at, of_entry("its value must be an object: got " + what));
      case Level::kMetadata:
        source_.refuse(
            at, "__metadata__ must map strings to strings: got " + what + " under " + escaped(metadata_key_));
      default:
        source_.refuse(
            at, of_entry("dtype must be a string, shape and data_offsets lists of whole numbers: got " + what));
    }
  }

  bool not_whole(const std::string& what) const {
    const std::uint64_t at = number_start();
    if (level_ != Level::kList) unexpected("a number", at);
    source_.refuse(at, of_entry("sizes and offsets must be whole numbers of at most 2^53: got " + what));
  }

  const std::string& text_;
  std::uint64_t start_;
  const Source& source_;
  const char* position_;

  Header header_{};
  std::unordered_set<std::string> names_{};
  Level level_ = Level::kStart;
  HeaderEntry entry_{};
  std::string metadata_key_{};
  unsigned field_ = kNoField;
  unsigned fields_ = 0;
  std::vector<Index> list_{};
};

}  // namespace

Header parse_header(const std::string& text, std::uint64_t start, const Source& source) {
  source.check(!text.empty() && text.front() == '{', start, "the header must begin with {: got something else");
  // The parser takes a NUL as the end of its input and would ignore what follows.
  const std::size_t nul = text.find('\0');
  source.check(nul == std::string::npos, start + nul, "the header must be JSON in UTF-8: got a NUL byte");
  return HeaderReader(text, start, source).read();
}

}  // namespace qkv::inline v0::io

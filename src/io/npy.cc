// Layout of a file: magic, version, length, header, data. The header itself is npy_header.cc. Source: NumPy,
// numpy/lib/format.py.
#include "qkv/io/npy.h"

#include <algorithm>
#include <string_view>

#include "io/npy_header.h"
#include "io/source.h"
#include "qkv/io/file.h"

namespace qkv::inline v0::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kVersionAt = 6;
constexpr std::uint64_t kLengthAt = 8;
/// The largest header that version 1.0 can state; 2.0 exists for structured dtypes of many fields, which are not read.
constexpr std::uint64_t kMaxNpyHeaderBytes = 65'535;
constexpr std::size_t kAlignment = 64;

// Reverses the bytes of each element.
void swap_byte_order(std::vector<std::byte>& bytes, std::size_t element_bytes) {
  for (auto at = bytes.begin(); at != bytes.end(); at += static_cast<std::ptrdiff_t>(element_bytes)) {
    std::reverse(at, at + static_cast<std::ptrdiff_t>(element_bytes));
  }
}

// First axis fastest -> last axis fastest. Walks the output in order; `position` is the element's index in the input.
std::vector<std::byte> row_major(
    const std::vector<std::byte>& bytes, const std::vector<Index>& sizes, std::size_t element_bytes) {
  const std::size_t rank = sizes.size();
  std::vector<Index> strides(rank);
  std::vector<Index> index(rank);
  Index next = 1;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    strides[axis] = next;
    next *= sizes[axis];
  }
  std::vector<std::byte> out(bytes.size());
  Index position = 0;
  for (std::size_t to = 0; to < out.size(); to += element_bytes) {
    std::copy_n(bytes.data() + static_cast<std::size_t>(position) * element_bytes, element_bytes, out.data() + to);
    for (std::size_t axis = rank; axis-- > 0;) {
      position += strides[axis];
      if (++index[axis] < sizes[axis]) break;
      position -= strides[axis] * sizes[axis];
      index[axis] = 0;
    }
  }
  return out;
}

AnyTensor read_npy(const Source& source) {
  const auto check_size = [&](std::uint64_t wanted, const char* what) {
    source.check(source.size() >= wanted, source.size(), std::string("the file must hold ") + what + ": got its end");
  };
  const std::uint64_t prefix = std::min<std::uint64_t>(source.size(), kMagic.size());
  const std::string magic = source.read_text(0, prefix);
  const auto differs = std::mismatch(magic.begin(), magic.end(), kMagic.begin()).first - magic.begin();
  source.check(magic == kMagic, static_cast<std::uint64_t>(differs),
      [&] { return "a file begins with \\x93NUMPY: got " + escaped(magic); });
  check_size(kLengthAt, "a version");
  const std::vector<std::byte> version = source.read(kVersionAt, 2);
  const auto major = std::to_integer<unsigned>(version[0]);
  const auto minor = std::to_integer<unsigned>(version[1]);
  source.check(major >= 1 && major <= 3 && minor == 0, kVersionAt,
      "the version must be 1.0, 2.0 or 3.0: got " + std::to_string(major) + "." + std::to_string(minor));
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  const std::uint64_t header_at = kLengthAt + length_bytes;
  check_size(header_at, "the length of its header");
  const std::uint64_t header_bytes = little_endian(source.read(kLengthAt, length_bytes));
  source.check(header_bytes <= kMaxNpyHeaderBytes, kLengthAt,
      "the header may have at most 65535 bytes: got " + std::to_string(header_bytes));
  source.check(header_bytes <= source.size() - header_at, kLengthAt,
      "the header must end within the file, which has " + std::to_string(source.size()) + " bytes: got a header of " +
          std::to_string(header_bytes));
  NpyHeader header = parse_npy_header(source.read_text(header_at, header_bytes), header_at, source);

  const std::size_t element_bytes = dtype_bytes(header.dtype);
  const std::optional<std::uint64_t> wanted = checked_bytes(header.sizes, element_bytes);
  source.check(wanted.has_value(), header.shape_at, std::string("the array's ") + kCountable);
  const std::uint64_t data_at = header_at + header_bytes;
  const std::uint64_t got = source.size() - data_at;
  source.check(*wanted == got, data_at + std::min(*wanted, got),
      "data must be as long as shape and descr say, " + std::to_string(*wanted) + " bytes: got " + std::to_string(got));

  AnyTensor tensor;
  tensor.dtype = header.dtype;
  tensor.sizes = std::move(header.sizes);
  tensor.bytes = source.read(data_at, *wanted);
  if (header.big_endian) swap_byte_order(tensor.bytes, element_bytes);
  if (header.fortran_order) tensor.bytes = row_major(tensor.bytes, tensor.sizes, element_bytes);
  return tensor;
}

// As NumPy writes it: keys sorted, a comma after the last, padded with spaces and a newline to a multiple of 64 bytes.
std::string header_text(const AnyTensor& tensor) {
  std::string sizes;
  for (const Index size : tensor.sizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  if (tensor.sizes.size() == 1) sizes += ",";
  std::string text = "{'descr': '" + npy_descr(tensor.dtype) + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  const std::size_t before = kLengthAt + 2;
  const std::size_t total = (before + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  text.resize(total - before - 1, ' ');
  return text + '\n';
}

}  // namespace

AnyTensor parse_npy(std::span<const std::byte> bytes) { return read_npy(Source("parse_npy", bytes)); }

AnyTensor load_npy(const std::filesystem::path& path) { return read_npy(Source("load_npy", path)); }

std::vector<std::byte> write_npy(const AnyTensor& tensor) {
  check_tensor("write_npy", "the array", tensor);
  if (npy_descr(tensor.dtype).empty()) {
    throw UnsupportedError(
        "[write_npy] .npy must have a name for the dtype: got " + std::string(dtype_name(tensor.dtype)));
  }
  // At most 64 axes of 21 characters: the length fits in 16 bits.
  const std::string header = header_text(tensor);
  std::string front(kMagic);
  front += {'\x01', '\x00', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  front += header;
  std::vector<std::byte> out;
  out.reserve(front.size() + tensor.bytes.size());
  const auto append = [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); };
  append(std::as_bytes(std::span(front)));
  append(tensor.bytes);
  return out;
}

void save_npy(const std::filesystem::path& path, const AnyTensor& tensor) {
  write_file_atomically(path, write_npy(tensor));
}

}  // namespace qkv::inline v0::io

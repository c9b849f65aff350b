// Layout of a file: u64 length, JSON header, data. Checks the tensors' byte ranges and reads them;
// safetensors_header.cc reads the JSON. Source: github.com/huggingface/safetensors, safetensors/src/tensor.rs (but
// stricter about names and numbers).
#include "qkv/io/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/safetensors_header.h"
#include "io/source.h"
#include "qkv/io/file.h"

namespace qkv::inline v0::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;  // a file starts with the header's length, a little-endian u64
constexpr std::uint64_t kNpyStart = 0x59504d554e93, kNpyMask = (std::uint64_t{1} << 48) - 1;  // "\x93NUMPY"

std::string name_of(const HeaderEntry& entry) { return "tensor " + escaped(entry.name) + ": "; }

// Sorted by their offsets, the tensors must cover the data without hole or overlap, each with the bytes of its shape.
void check_layout(const std::vector<HeaderEntry>& entries, std::uint64_t data_at, const Source& source) {
  std::vector<const HeaderEntry*> in_order;
  for (const HeaderEntry& entry : entries) in_order.push_back(&entry);
  std::stable_sort(in_order.begin(), in_order.end(), [](const HeaderEntry* a, const HeaderEntry* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  const std::uint64_t data_bytes = source.size() - data_at;
  std::uint64_t covered = 0;
  for (const HeaderEntry* entry : in_order) {
    /// `number` ends the requirement, where it has one.
    const auto check_offsets = [&](bool holds, const char* requirement, std::optional<std::uint64_t> number = {}) {
      source.check(holds, entry->offsets_at, [&] {
        return name_of(*entry) + requirement + (number ? std::to_string(*number) : "") + ": got data_offsets [" +
               std::to_string(entry->begin) + ", " + std::to_string(entry->end) + "]";
      });
    };
    check_offsets(entry->begin <= entry->end, "data must not end before it begins");
    check_offsets(entry->end <= data_bytes, "data must end within the file, whose data ends at ", data_bytes);
    check_offsets(entry->begin >= covered, "data of two tensors must not overlap");
    check_offsets(entry->begin == covered, "data must leave no hole: the tensors before it end at ", covered);
    const std::optional<std::uint64_t> wanted = checked_bytes(entry->sizes, dtype_bytes(entry->dtype));
    source.check(wanted.has_value(), entry->shape_at, [&] { return name_of(*entry) + "its " + kCountable; });
    check_offsets(*wanted == entry->end - entry->begin, "data must be as long as shape and dtype say, ", *wanted);
    covered = entry->end;
  }
  source.check(covered == data_bytes, data_at + covered,
      "the file must end where its last tensor does: got " + std::to_string(data_bytes - covered) + " bytes more");
}

/// The header, checked; entries' bytes count from data_at.
struct Opened {
  Header header;
  std::uint64_t data_at = 0;
};

Opened read_header(const Source& source) {
  source.check(source.size() >= kLengthBytes, source.size(),
      "a file begins with 8 bytes of length: got " + std::to_string(source.size()));
  const std::uint64_t header_bytes = little_endian(source.read(0, kLengthBytes));
  source.check((header_bytes & kNpyMask) != kNpyStart, 0, "the file must be .safetensors: got a .npy file");
  source.check(header_bytes <= kMaxHeaderBytes, 0,
      "the header may have at most 100000000 bytes: got " + std::to_string(header_bytes));
  source.check(header_bytes <= source.size() - kLengthBytes, 0,
      "the header must end within the file, which has " + std::to_string(source.size()) + " bytes: got a header of " +
          std::to_string(header_bytes));
  const std::uint64_t data_at = kLengthBytes + header_bytes;
  Opened opened{parse_header(source.read_text(kLengthBytes, header_bytes), kLengthBytes, source), data_at};
  check_layout(opened.header.entries, data_at, source);
  return opened;
}

StateDict read_safetensors(const Source& source) {
  auto [header, data_at] = read_header(source);
  StateDict state;
  state.metadata = std::move(header.metadata);
  for (HeaderEntry& entry : header.entries) {
    AnyTensor tensor;
    tensor.dtype = entry.dtype;
    tensor.sizes = std::move(entry.sizes);
    tensor.bytes = source.read(data_at + entry.begin, entry.end - entry.begin);
    state.add(std::move(entry.name), std::move(tensor));
  }
  return state;
}

// `text` as a JSON string.
std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw OptionError("[write_safetensors] names and metadata must be UTF-8: got " + escaped(text));
  }
}

std::string entry_text(const TensorEntry& tensor, std::uint64_t begin) {
  std::string sizes;
  for (const Index size : tensor.sizes) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  return json_string(tensor.name) + ":{\"dtype\":\"" + std::string(dtype_name(tensor.dtype)) + "\",\"shape\":[" +
         sizes + "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(begin + tensor.bytes()) + "]}";
}

// Refuses what a reader would refuse.
void check_writable(const std::vector<TensorEntry>& tensors, std::size_t metadata) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  if (tensors.size() > kMaxTensors || metadata > kMaxTensors) {
    throw UnsupportedError("[write_safetensors] at most 65536 tensors and metadata keys are written: got " +
                           std::to_string(tensors.size()) + " and " + std::to_string(metadata));
  }
  std::uint64_t all = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == "__metadata__")
      throw OptionError("[write_safetensors] a tensor must not use the reserved name: got \"__metadata__\"");
    const std::optional<std::uint64_t> bytes = checked_bytes(tensor.sizes, dtype_bytes(tensor.dtype));
    if (!bytes || tensor.sizes.size() > kMaxAxes || *bytes > most - all) {
      throw ShapeError("[write_safetensors] the tensors up to " + escaped(tensor.name) +
                       " must take less than 2^63 bytes and each have at most 64 axes of 0 or more: got " +
                       shape_text(tensor.sizes.data(), static_cast<int>(tensor.sizes.size())));
    }
    all += *bytes;
  }
}

// The tensors by element size, largest first, equal ones in their order: each then starts at a multiple of its element
// size.
std::vector<std::size_t> data_order(const std::vector<TensorEntry>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
      [&](std::size_t a, std::size_t b) { return dtype_bytes(tensors[a].dtype) > dtype_bytes(tensors[b].dtype); });
  return order;
}

// The JSON, padded with spaces to a multiple of 8 bytes so that the data is aligned. The tensors' `at` counts from the
// data.
std::string header_text(const std::vector<TensorEntry>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      text += (text.back() == '{' ? "" : ",") + json_string(key) + ":" + json_string(value);
    text += "}";
  }
  for (const TensorEntry& tensor : tensors) text += (text.size() == 1 ? "" : ",") + entry_text(tensor, tensor.at);
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw UnsupportedError(
        "[write_safetensors] the header may have at most 100000000 bytes: got " + std::to_string(text.size()));
  }
  return text;
}

}  // namespace

StateDict parse_safetensors(std::span<const std::byte> bytes) {
  return read_safetensors(Source("parse_safetensors", bytes));
}

StateDict load_safetensors(const std::filesystem::path& path) {
  return read_safetensors(Source("load_safetensors", path));
}

std::uint64_t TensorEntry::bytes() const { return checked_bytes(sizes, dtype_bytes(dtype)).value_or(0); }

struct SafetensorsParts::Impl {
  explicit Impl(const std::filesystem::path& path) : source("load_safetensors", path) {
    auto [header, data_at] = read_header(source);
    for (HeaderEntry& entry : header.entries)
      tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.sizes), data_at + entry.begin});
  }
  Source source;
  std::vector<TensorEntry> tensors;
};

SafetensorsParts::SafetensorsParts(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
SafetensorsParts::~SafetensorsParts() = default;
SafetensorsParts::SafetensorsParts(SafetensorsParts&&) noexcept = default;
SafetensorsParts& SafetensorsParts::operator=(SafetensorsParts&&) noexcept = default;

const std::vector<TensorEntry>& SafetensorsParts::tensors() const { return impl_->tensors; }

const TensorEntry* SafetensorsParts::find(std::string_view name) const {
  const auto found = std::ranges::find(impl_->tensors, name, &TensorEntry::name);
  return found == impl_->tensors.end() ? nullptr : &*found;
}

void SafetensorsParts::read(const TensorEntry& tensor, std::uint64_t from, std::span<std::byte> out) const {
  if (from > tensor.bytes() || out.size() > tensor.bytes() - from) {
    throw OptionError("[SafetensorsParts::read] a part must lie in its tensor of " + std::to_string(tensor.bytes()) +
                      " bytes: got " + std::to_string(out.size()) + " from " + std::to_string(from));
  }
  impl_->source.read_into(tensor.at + from, out);
}

SafetensorsPlan plan_safetensors(std::vector<TensorEntry> tensors, const std::map<std::string, std::string>& metadata) {
  check_writable(tensors, metadata.size());
  std::uint64_t next = 0;
  for (const std::size_t i : data_order(tensors)) {
    tensors[i].at = next;
    next += tensors[i].bytes();
  }
  const std::string header = header_text(tensors, metadata);
  SafetensorsPlan plan;
  for (std::uint64_t i = 0; i < kLengthBytes; ++i)
    plan.head.push_back(static_cast<std::byte>(header.size() >> (8 * i)));
  const auto text = std::as_bytes(std::span(header));
  plan.head.insert(plan.head.end(), text.begin(), text.end());
  for (TensorEntry& tensor : tensors) tensor.at += plan.head.size();
  plan.tensors = std::move(tensors);
  plan.bytes = plan.head.size() + next;
  return plan;
}

std::vector<std::byte> write_safetensors(const StateDict& state) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : state.entries()) {
    check_tensor("write_safetensors", escaped(name), tensor);
    entries.push_back({name, tensor.dtype, tensor.sizes, 0});
  }
  const SafetensorsPlan plan = plan_safetensors(std::move(entries), state.metadata);
  std::vector<std::byte> out;
  out.reserve(plan.bytes);
  out.assign(plan.head.begin(), plan.head.end());
  out.resize(plan.bytes);
  for (std::size_t i = 0; i < plan.tensors.size(); ++i)
    std::ranges::copy(state.entries()[i].tensor.bytes, out.begin() + static_cast<std::ptrdiff_t>(plan.tensors[i].at));
  return out;
}

void save_safetensors(const std::filesystem::path& path, const StateDict& state) {
  write_file_atomically(path, write_safetensors(state));
}

}  // namespace qkv::inline v0::io

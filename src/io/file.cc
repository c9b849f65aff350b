// The public functions of io/file.h. Not: their implementation (core/file.h), which pictures use without qkv::io.
#include "qkv/io/file.h"

#include "core/file.h"

namespace qkv::inline v0::io {

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  const FileReader reader(path);
  std::vector<std::byte> bytes(reader.size());
  reader.read_at(0, bytes);
  return bytes;
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  v0::write_file_atomically(path, bytes);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) { v0::write_file_atomically(path, text); }

class AtomicFiles::Stage : public FileStage {};

AtomicFiles::AtomicFiles() : stage_(std::make_unique<Stage>()) {}
AtomicFiles::AtomicFiles(AtomicFiles&&) noexcept = default;
AtomicFiles& AtomicFiles::operator=(AtomicFiles&&) noexcept = default;
AtomicFiles::~AtomicFiles() = default;

void AtomicFiles::add(const std::filesystem::path& path, std::span<const std::byte> bytes) { stage_->add(path, bytes); }
void AtomicFiles::add(const std::filesystem::path& path, std::string_view text) { add(path, std::as_bytes(std::span(text))); }
void AtomicFiles::commit() { stage_->commit(); }

}  // namespace qkv::inline v0::io

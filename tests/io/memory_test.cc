// Readers and writers when memory is out: std::bad_alloc, no file beside the old one, and the next call is whole.
#include <gtest/gtest.h>

#include "io/bytes.h"
#include "qkv/io/file.h"
#include "qkv/io/npy.h"
#include "qkv/io/safetensors.h"
#include "support/allocations.h"

namespace qkv::test {
namespace {

StateDict two_tensors() {
  StateDict state;
  state.metadata["of"] = "a test";
  state.add("a tensor whose name is long", counting_tensor(DType::kF32, {2, 3}));
  state.add("b", counting_tensor(DType::kBF16, {5}));
  return state;
}

TEST(Memory, OutInFilesIsBadAlloc) {
  const Folder folder;
  const auto left = [&] {  // counted with memory
    const bool before = std::exchange(spared, true);
    const std::vector<double> count{static_cast<double>(folder.count())};
    spared = before;
    return count;
  };
  expect_only_bad_alloc_of({
      {"npy",
          [&] {
            const AnyTensor tensor = counting_tensor(DType::kF32, {2, 3});
            io::save_npy(folder / "a.npy", tensor);
            const AnyTensor parsed = io::parse_npy(io::write_npy(tensor));
            return numbers_of(io::load_npy(folder / "a.npy").bytes, parsed.bytes, parsed.sizes, left());
          }},
      {"safetensors",
          [&] {
            io::save_safetensors(folder / "a.safetensors", two_tensors());
            const StateDict parsed = io::parse_safetensors(io::write_safetensors(two_tensors()));
            return numbers_of(
                io::load_safetensors(folder / "a.safetensors").at("b").bytes, parsed.metadata.at("of"), left());
          }},
      {"parts of safetensors",
          [&] {
            const io::SafetensorsParts parts(folder / "a.safetensors");
            const io::TensorEntry* entry = parts.find("b");
            std::vector<std::byte> bytes(4);
            parts.read(*entry, 2, bytes);
            return numbers_of(bytes, io::plan_safetensors(parts.tensors(), {{"of", "a test"}}).head);
          }},
      {"several files",
          [&] {
            io::AtomicFiles files;
            files.add(folder / "b", "1");
            files.add(folder / "c", std::string(100, 'x'));
            files.commit();
            return numbers_of(io::read_file(folder / "b"), io::read_file(folder / "c"), left());
          }},
      {"broken",
          [&] {
            try {
              io::parse_safetensors(bytes_of(little_endian_text(12, 8) + "{\"a\":[1,2]} "));
            } catch (const FormatError& error) {
              return numbers_of(std::string_view(error.what()));
            }
            return std::vector<double>{};
          }},
  });
}

}  // namespace
}  // namespace qkv::test

// libFuzzer: any text is the tokens of `qkv map --qk`: a page is written, or they are refused with UsageError or Error.
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "qkv/error.h"
#include "qkv/io/safetensors.h"
#include "support/command.h"

namespace {

/// A file in memory, by the name that opens it.
std::string in_memory(int file, const void* data, std::size_t size) {
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  static const int heads = memfd_create("heads", 0), tokens = memfd_create("tokens", 0);
  static const std::filesystem::path page =
      std::filesystem::temp_directory_path() / ("qkv-fuzz-tokens-" + std::to_string(getpid()) + ".html");
  static const std::string qk = [] {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();  // "wrote ..."
    std::atexit([] { std::filesystem::remove(page); });
    StateDict state;
    state.add("q", any_tensor(Tensor<float>({1, 3, 2})));
    state.add("k", any_tensor(Tensor<float>({1, 3, 2})));
    const std::vector<std::byte> bytes = io::write_safetensors(state);
    return in_memory(heads, bytes.data(), bytes.size());
  }();
  const auto map = std::ranges::find(cli::commands(), "map", &cli::Command::name);
  CLI::App app("qkv");
  cli::Options add(app);
  const std::function<int()> run = map->declare(add);
  app.parse("--threads 1 --out " + page.string() + " --qk " + qk + " --tokens " + in_memory(tokens, data, size), false);
  try {
    if (run() != 0) std::abort();
  } catch (const cli::UsageError&) {
  } catch (const Error& error) {
    if (dynamic_cast<const IoError*>(&error) != nullptr) std::abort();
  }
  return 0;
}

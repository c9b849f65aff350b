// libFuzzer: any safetensors file is an explorer's in its full form or its small one, or refused with an Error. The
// small form's heads are the full form's, and no text of the file stands in the page as it was written.
#include <cstdint>
#include <cstdlib>

#include "qkv/error.h"
#include "qkv/io/safetensors.h"
#include "qkv/view/explorer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  static Context context(ContextOptions{.threads = 1});
  try {
    StateDict state = io::parse_safetensors(std::as_bytes(std::span(data, size)));
    if (!state.metadata.contains("explorer")) state = view::explorer_of_heads(state, {}, {}, context);
    constexpr std::string_view kScript = "</script><script>";
    std::string& title = state.metadata["title"];
    title = title.substr(0, 50) + std::string(kScript);
    if (view::render_explorer(state).find(kScript) != std::string::npos) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

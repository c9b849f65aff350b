// libFuzzer: any safetensors file is a trained model or refused with an Error; a model that was read is the same after
// a write and another read.
#include <cstdint>
#include <cstdlib>

#include "io/bytes.h"
#include "qkv/io/safetensors.h"
#include "qkv/lm/trainer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  try {
    const lm::Checkpoint read = lm::checkpoint_from_state(io::parse_safetensors(std::as_bytes(std::span(data, size))));
    const auto written = [](const lm::Checkpoint& c) {
      return lm::checkpoint_to_state(c.model, c.tokenizer, c.task, c.step, c.adam ? &*c.adam : nullptr);
    };
    const StateDict state = written(read);
    if (!test::same(written(lm::checkpoint_from_state(state)), state)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

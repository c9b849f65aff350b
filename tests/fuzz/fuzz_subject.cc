// libFuzzer: what code that is judged may write of itself as JSON, and --sizes: understood or refused, never a fault.
#include <cstdint>
#include <string>

#include "judge/json.h"
#include "qkv/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const judge::Subject subject = judge::subject_of(text);
  judge::Finding finding = judge::not_judged("failed", subject.says, subject.traceback);
  judge::set_line(finding, text);
  static_cast<void>(judge::to_json(finding));
  try {
    static_cast<void>(judge::sizes_of("gqa", text));
  } catch (const OptionError&) {
  }
  return 0;
}

// The page in the tool: docs/lesson.html, kept compressed (CMakeLists.txt).
#include <zlib.h>

#include <cstdint>
#include <stdexcept>

#include "lesson/lesson.h"

// The linker's view of the file: no compiler reads half a megabyte of numbers. Its first eight bytes are gzip's without
// the time at which it was compressed: a build gives the same bytes tomorrow.
asm(R"(
.pushsection .rodata
.globl qkv_lesson_page, qkv_lesson_page_end
.hidden qkv_lesson_page, qkv_lesson_page_end
qkv_lesson_page:
.byte 0x1f, 0x8b, 8, 0, 0, 0, 0, 0
.incbin ")" QKV_LESSON_PAGE R"(", 8
qkv_lesson_page_end:
.byte 0
.popsection
)");
extern "C" const unsigned char qkv_lesson_page[], qkv_lesson_page_end[];

namespace qkv::cli {

std::string lesson_page() {
  const auto size = static_cast<std::size_t>(qkv_lesson_page_end - qkv_lesson_page);
  // The last four bytes of a gzip file: the size of what it holds.
  std::uint32_t bytes = 0;
  for (int n = 1; n <= 4; ++n) bytes = bytes << 8 | qkv_lesson_page_end[-n];
  std::string page(bytes, '\0');
  z_stream stream{};
  stream.next_in = const_cast<unsigned char*>(qkv_lesson_page);
  stream.avail_in = static_cast<unsigned>(size);
  stream.next_out = reinterpret_cast<unsigned char*>(page.data());
  stream.avail_out = bytes;
  constexpr int kGzip = 16;
  const bool whole = inflateInit2(&stream, kGzip + MAX_WBITS) == Z_OK && inflate(&stream, Z_FINISH) == Z_STREAM_END;
  inflateEnd(&stream);
  if (!whole) throw std::runtime_error("the page in this program cannot be unpacked");
  return page;
}

}  // namespace qkv::cli

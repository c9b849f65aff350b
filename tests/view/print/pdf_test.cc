// PDF: the file's frame is checked here; what a reader makes of it by poppler's tools, where they are installed.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "qkv/error.h"
#include "qkv/view/pictures.h"
#include "view/maps.h"
#include "view/print/typesetter.h"

namespace qkv::view {
namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A command's output; empty when it fails.
std::string output(const std::string& command) {
  std::string out;
  FILE* const pipe = popen(("(" + command + ") 2>/dev/null").c_str(), "r");
  std::array<char, 4096> piece;
  for (std::size_t n = 0; (n = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;) out.append(piece.data(), n);
  return pclose(pipe) == 0 ? out : "";
}

TEST(Pdf, HasItsFrame) {
  for (const AttentionMap& map : {causal_map(1, 1, 4), empty_map(0, 3), nan_map(), causal_map(1, 2, 300)}) {
    const std::string pdf = text_of(render_pdf(map));
    EXPECT_EQ(pdf.substr(0, 7), "%PDF-1.");
    EXPECT_EQ(pdf.substr(pdf.size() - 6), "%%EOF\n");
    const std::size_t at = pdf.rfind("startxref\n");
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(pdf.substr(std::strtoul(pdf.c_str() + at + 10, nullptr, 10), 4), "xref");
  }
}

TEST(Pdf, TheSamePictureIsTheSameBytes) {
  const AttentionMap map = causal_map(1, 2, 5, characters("注意力 a"), "title");
  EXPECT_EQ(render_pdf(map), render_pdf(map));
  EXPECT_EQ(text_of(render_pdf(map)).find("CreationDate"), std::string::npos);
}

TEST(Pdf, ReadersFindTheText) {
  if (output("pdftotext -v; pdfinfo -v && echo both").empty()) {
    GTEST_SKIP() << "pdftotext (Debian: poppler-utils) is not installed";
  }
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "qkv_view_pdf_test.pdf";
  const AttentionMap map = causal_map(1, 1, 4, {"naïve", "注意力", "<b>&amp;", "внимание"}, "two (words)");
  std::ofstream(path, std::ios::binary) << text_of(render_pdf(map));
  const std::string text = output("pdftotext " + path.string() + " -"), info = output("pdfinfo " + path.string());
  for (const char* word :
      {"naïve", "注意力", "<b>&amp;", "внимание", "two (words)", "100%", "weight", "query", "key", "head 0"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
  }
  EXPECT_NE(info.find("two (words)"), std::string::npos) << info;
  const Typesetter typesetter;
  const Layout layout = lay_out(map, {}, typesetter.text_width());
  double width = 0, height = 0;
  const std::size_t size = info.find("Page size:");
  ASSERT_NE(size, std::string::npos) << info;
  ASSERT_EQ(std::sscanf(info.c_str() + size, "Page size: %lf x %lf pts", &width, &height), 2) << info;
  EXPECT_EQ(width, 0.75 * layout.width);  // a unit is 1/96 inch
  EXPECT_EQ(height, 0.75 * layout.height);
  std::filesystem::remove(path);
}

TEST(Pdf, APageIsAtMost200InchesLong) {
  AttentionMap map;
  map.weights = Tensor<float>({130, 1, 2, 2});
  for (Index n = 0; n < map.weights.count(); ++n) map.weights.data()[n] = 0.5f;
  const Typesetter typesetter;
  ASSERT_GT(0.75 * lay_out(map, {}, typesetter.text_width()).height, 14400);
  const std::string pdf = text_of(render_pdf(map));
  const std::size_t at = pdf.find("/MediaBox [ 0 0 ");
  double width = 0, height = 0;
  ASSERT_EQ(std::sscanf(pdf.c_str() + at, "/MediaBox [ 0 0 %lf %lf ]", &width, &height), 2);
  EXPECT_EQ(height, 14400);
}

TEST(Pdf, HostileMapsAreDrawn) {
  EXPECT_GT(render_pdf(causal_map(1, 1, 8, hostile_tokens(), hostile_tokens()[2])).size(), 0u);
  EXPECT_THROW(render_pdf(causal_map(1, 2, 3), {.heads = {2}}), OptionError);
}

}  // namespace
}  // namespace qkv::view

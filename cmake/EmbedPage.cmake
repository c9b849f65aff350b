# cmake -DFOLDER=src/view/page -DOUT=page.cc -P EmbedPage.cmake: page.html with page.css and page.js in their places, cut at its
# title and its data into the three strings of src/view/page.h.
foreach(part html css js)
  file(READ "${FOLDER}/page.${part}" ${part})
endforeach()
string(REPLACE "{{style}}" "${css}" html "${html}")
string(REPLACE "{{script}}" "${js}" html "${html}")

# Everything up to `mark` into `out`; what comes after it stays in `html`.
macro(cut mark out)
  string(FIND "${html}" "${mark}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${FOLDER}/page.html must hold ${mark}")
  endif()
  string(SUBSTRING "${html}" 0 ${at} ${out})
  string(LENGTH "${mark}" length)
  math(EXPR at "${at} + ${length}")
  string(SUBSTRING "${html}" ${at} -1 html)
endmacro()
cut("{{title}}" head)
cut("{{data}}" body)

file(WRITE "${OUT}" "// Made by cmake/EmbedPage.cmake from src/view/page/.
#include \"view/page.h\"

namespace qkv::inline v0::view {

const std::string_view kPageHead = R\"page(${head})page\";
const std::string_view kPageBody = R\"page(${body})page\";
const std::string_view kPageScript = R\"page(${html})page\";

}  // namespace qkv::inline v0::view
")

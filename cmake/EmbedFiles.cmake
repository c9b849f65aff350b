# Files compiled into a library or a program as text.
#   qkv_embed_files(variable function folder patterns...)
# names in `variable` a generated .cc that defines `std::span<const qkv::EmbeddedFile> qkv::function()` (src/core/embedded_file.h):
# the files of the folder and those below it that match a pattern, named from the folder, in alphabetical order.
#   qkv_embed_page(variable function folder)
# one HTML page, compressed: `std::span<const unsigned char> qkv::function()` is a gzip file of the folder's page.html, in which
# {{style}} stands for its *.css and {{script}} for its *.js, each in alphabetical order.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(QKV_EMBED_FILES "${CMAKE_CURRENT_LIST_FILE}")
  function(qkv_embed_files variable function folder)
    list(TRANSFORM ARGN PREPEND "${folder}/" OUTPUT_VARIABLE globs)
    file(GLOB_RECURSE paths CONFIGURE_DEPENDS ${globs})
    file(GLOB_RECURSE names CONFIGURE_DEPENDS RELATIVE "${folder}" ${globs})
    list(SORT names)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/embedded/${function}.cc")
    add_custom_command(OUTPUT "${source}"
      COMMAND ${CMAKE_COMMAND} "-DFUNCTION=${function}" "-DFOLDER=${folder}" "-DNAMES=${names}" "-DOUT=${source}" -P "${QKV_EMBED_FILES}"
      DEPENDS ${paths} "${QKV_EMBED_FILES}"
      VERBATIM)
    set(${variable} "${source}" PARENT_SCOPE)
  endfunction()
  function(qkv_embed_page variable function folder)
    file(GLOB paths CONFIGURE_DEPENDS "${folder}/page.html" "${folder}/*.css" "${folder}/*.js")
    list(SORT paths)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/embedded/${function}.cc")
    add_custom_command(OUTPUT "${source}"
      COMMAND ${CMAKE_COMMAND} -DPAGE=1 "-DFUNCTION=${function}" "-DNAMES=${paths}" "-DOUT=${source}" -P "${QKV_EMBED_FILES}"
      DEPENDS ${paths} "${QKV_EMBED_FILES}"
      VERBATIM)
    set(${variable} "${source}" PARENT_SCOPE)
  endfunction()
  return()
endif()

# As a script, during the build.
if(PAGE)
  set(html "")
  set(style "")
  set(script "")
  foreach(path IN LISTS NAMES)
    file(READ "${path}" text)
    if(path MATCHES "[.]css$")
      string(APPEND style "${text}")
    elseif(path MATCHES "[.]js$")
      string(APPEND script "${text}")
    else()
      set(html "${text}")
    endif()
  endforeach()
  string(REPLACE "{{style}}" "${style}" html "${html}")
  string(REPLACE "{{script}}" "${script}" html "${html}")
  file(WRITE "${OUT}.html" "${html}")
  file(ARCHIVE_CREATE OUTPUT "${OUT}.gz" PATHS "${OUT}.html" FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9 MTIME 0)
  file(READ "${OUT}.gz" bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(0x[^,]*,0x[^,]*,0x[^,]*,0x[^,]*,0x[^,]*,0x[^,]*,0x[^,]*,0x[^,]*,)" "\\1\n" bytes "${bytes}")
  file(WRITE "${OUT}" "// Made by cmake/EmbedFiles.cmake.
#include <span>

namespace qkv::inline v0 {

std::span<const unsigned char> ${FUNCTION}();

std::span<const unsigned char> ${FUNCTION}() {
  static constexpr unsigned char kBytes[] = {
${bytes}};
  return kBytes;
}

}  // namespace qkv::inline v0
")
  return()
endif()

set(rows "")
foreach(name IN LISTS NAMES)
  file(READ "${FOLDER}/${name}" text)
  string(FIND "${text}" ")embedded\"" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${FOLDER}/${name} holds )embedded\", which ends the string that it becomes")
  endif()
  string(APPEND rows "    {\"${name}\", R\"embedded(${text})embedded\"},\n")
endforeach()
file(WRITE "${OUT}" "// Made by cmake/EmbedFiles.cmake.
#include <vector>

#include \"core/embedded_file.h\"

namespace qkv::inline v0 {

std::span<const EmbeddedFile> ${FUNCTION}();

std::span<const EmbeddedFile> ${FUNCTION}() {
  static const std::vector<EmbeddedFile> files = {
${rows}  };
  return files;
}

}  // namespace qkv::inline v0
")

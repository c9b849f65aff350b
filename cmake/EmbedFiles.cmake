# Files compiled into a library or a program as text.
#   qkv_embed_files(variable function folder patterns...)
# names in `variable` a generated .cc that defines `std::span<const qkv::EmbeddedFile> qkv::function()` (src/core/embedded_file.h):
# the files of the folder and those below it that match a pattern, named from the folder, in alphabetical order.
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
  return()
endif()

# As a script, during the build.
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

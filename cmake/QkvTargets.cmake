# How every target of qkv is compiled, and how a library becomes a component of the installed package.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_UNITY_BUILD OFF)  # a parent's may be on; what can be compiled as one file is qkv_unity's

# A compiler cache is used if it is installed; it is never required.
if(PROJECT_IS_TOP_LEVEL)
  find_program(QKV_CCACHE ccache)
  mark_as_advanced(QKV_CCACHE)
endif()
if(QKV_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${QKV_CCACHE}")
  # The units of QKV_UNITY lie in the build's folder: the cache knows them under the names that they have below it, the same in every build.
  find_program(QKV_ENV env)
  mark_as_advanced(QKV_ENV)
  if(QKV_ENV)
    set(CCACHE_BASEDIR "${CMAKE_BINARY_DIR}")
    set(CCACHE_SLOPPINESS pch_defines,time_macros)  # as precompiled headers need it
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER "${QKV_ENV}")
    foreach(name CCACHE_SLOPPINESS CCACHE_BASEDIR)
      if(NOT DEFINED ENV{${name}})  # what the environment says goes first
        list(INSERT CMAKE_CXX_COMPILER_LAUNCHER 1 "${name}=${${name}}")
      endif()
    endforeach()
  endif()
endif()

# Warnings are an interface target that is never exported.
add_library(qkv_warnings INTERFACE)
target_compile_options(qkv_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow $<$<BOOL:${QKV_WERROR}>:-Werror>)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of an overlap inside std::string's operator+ where there is none (GCC bug 105651, fixed in 13).
  target_compile_options(qkv_warnings INTERFACE -Wno-restrict)
endif()

if(QKV_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Types of an anonymous namespace in members: each source is still the only one that names them.
  target_compile_options(qkv_warnings INTERFACE -Wno-subobject-linkage)
endif()

# qkv_unity(target [MOST n] [ACROSS] [APART regex...] [EXCEPT regex...]): where QKV_UNITY is on, up to n (8) sources of a folder are
# compiled as one file, so that headers which cost each file as much as itself are read once. ACROSS: of the target, whatever their
# folders. APART: those that match an expression in units of their own, because names of their own meet others elsewhere, or for what
# they include. Except those that match, and those with compile options of their own: each alone.
function(qkv_unity target)
  cmake_parse_arguments(ARG "ACROSS" "MOST" "APART;EXCEPT" ${ARGN})
  if(NOT QKV_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(NOT ARG_MOST)
    set(ARG_MOST 8)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX TARGET_OBJECTS)
  foreach(regex ${ARG_EXCEPT})
    list(FILTER sources EXCLUDE REGEX "${regex}")
  endforeach()
  foreach(source ${sources})
    get_filename_component(path "${source}" DIRECTORY)
    get_filename_component(folder "${path}" NAME)
    if(ARG_ACROSS)
      set(folder all)
    endif()
    set(part 0)
    foreach(regex ${ARG_APART})
      math(EXPR part "${part} + 1")
      if(source MATCHES "${regex}")
        set(folder apart${part})
      endif()
    endforeach()
    math(EXPR number_${folder} "${number_${folder}} + 1")
    math(EXPR batch "(${number_${folder}} - 1) / ${ARG_MOST}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${folder}_${batch}")
  endforeach()
endfunction()

# qkv_small_program(target): with QKV_UNITY, what examples and programs like them include is compiled once for all (examples/).
function(qkv_small_program target)
  if(TARGET qkv_small_programs)
    target_precompile_headers(${target} REUSE_FROM qkv_small_programs)
  endif()
endfunction()

# The components that were built, dependencies first; QkvInstall.cmake reads it.
set_property(GLOBAL PROPERTY QKV_COMPONENTS "")

# qkv_add_library(target alias SOURCES ... LINK ... PRIVATE_LINK ... REQUIRES ... STATIC_LIBS ... SUMMARY text)
# creates a component: the library, its alias qkv::<alias>, its entry in the package. REQUIRES: components; STATIC_LIBS: what a
# program must link beside a static build, in pkg-config's syntax.
function(qkv_add_library target alias)
  cmake_parse_arguments(ARG "" "SUMMARY;STATIC_LIBS" "SOURCES;LINK;PRIVATE_LINK;REQUIRES" ${ARGN})
  add_library(${target} ${ARG_SOURCES})
  add_library(qkv::${alias} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${alias}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH "$ORIGIN"
    DEFINE_SYMBOL ""  # nothing reads it, and static and shared objects are then one in a compiler cache
    QKV_REQUIRES "${ARG_REQUIRES}"
    QKV_STATIC_LIBS "${ARG_STATIC_LIBS}"
    QKV_SUMMARY "${ARG_SUMMARY}")
  set_property(GLOBAL APPEND PROPERTY QKV_COMPONENTS ${target})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                       PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(BUILD_SHARED_LIBS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # Instances of std's templates are visible by themselves; no program may bind to our copies.
    set(exports ${PROJECT_BINARY_DIR}/exports.map)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/exports.map.in ${exports} @ONLY)
    target_link_options(${target} PRIVATE LINKER:--version-script=${exports})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
  endif()
  if(BUILD_SHARED_LIBS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A shared library with an undefined symbol fails here, not in its user's program.
    target_link_options(${target} PRIVATE LINKER:--no-undefined)
  endif()
  target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK} $<BUILD_INTERFACE:qkv_warnings>)
endfunction()

# qkv_sources(out folder): every .cc file in a folder and the folders below it.
function(qkv_sources out folder)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc")
  if(NOT found)
    # A library needs one file: an empty one replaces it until the folder has its first.
    set(found ${PROJECT_BINARY_DIR}/empty.cc)
    file(TOUCH ${found})
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

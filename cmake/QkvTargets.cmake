# How every target of qkv is compiled. Warnings are an interface target that is never exported.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_library(qkv_warnings INTERFACE)
target_compile_options(qkv_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)

# qkv_add_library(NAME name SOURCES ... LINK ... PRIVATE_LINK ...): the library qkv_<name> (qkv for the core), alias qkv::<name>.
function(qkv_add_library target alias)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(${target} ${ARG_SOURCES})
  add_library(qkv::${alias} ALIAS ${target})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
                                       PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK} $<BUILD_INTERFACE:qkv_warnings>)
endfunction()

# qkv_sources(out folder): every .cc file directly in a folder.
function(qkv_sources out folder)
  file(GLOB found CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

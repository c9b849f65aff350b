# Installed by `cmake --install`: libraries, headers, the CMake package with one targets file per component, one .pc file each.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)  # the rest is the component tool; packages are made of both (packaging/package.cmake)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qkv)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The .pc files state the prefix relative to their own location, so that an installed tree may be moved; folders outside it as they are.
file(RELATIVE_PATH QKV_PC_PREFIX "/prefix/${pkgconfig_dir}" "/prefix")
string(REGEX REPLACE "/$" "" QKV_PC_PREFIX "\${pcfiledir}/${QKV_PC_PREFIX}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(QKV_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
  set(QKV_PC_${folder} "\${prefix}")
  cmake_path(APPEND QKV_PC_${folder} "${CMAKE_INSTALL_${folder}}")
endforeach()

get_property(components GLOBAL PROPERTY QKV_COMPONENTS)
set(QKV_COMPONENT_NAMES "")
foreach(target ${components})
  get_target_property(name ${target} EXPORT_NAME)
  get_target_property(requires ${target} QKV_REQUIRES)
  get_target_property(QKV_PC_SUMMARY ${target} QKV_SUMMARY)
  get_target_property(static_libs ${target} QKV_STATIC_LIBS)
  get_target_property(type ${target} TYPE)
  list(APPEND QKV_COMPONENT_NAMES ${name})
  set(QKV_REQUIRES_${name} "${requires}")

  install(TARGETS ${target} EXPORT qkv-${name}-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT qkv-${name}-targets NAMESPACE qkv:: DESTINATION ${package_dir})

  # A shared library records its own dependencies; beside a static one the program must link them.
  set(QKV_PC_NAME qkv-${name})
  if(name STREQUAL qkv)
    set(QKV_PC_NAME qkv)
  endif()
  set(QKV_PC_LIB ${target})
  list(TRANSFORM requires PREPEND "qkv-" OUTPUT_VARIABLE pc_requires)
  list(TRANSFORM pc_requires REPLACE "^qkv-qkv$" "qkv")
  list(JOIN pc_requires ", " QKV_PC_REQUIRES)
  set(QKV_PC_STATIC_LIBS "")
  if(type STREQUAL STATIC_LIBRARY AND static_libs)
    set(QKV_PC_STATIC_LIBS " ${static_libs}")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/qkv.pc.in ${PROJECT_BINARY_DIR}/package/${QKV_PC_NAME}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${QKV_PC_NAME}.pc DESTINATION ${pkgconfig_dir})
endforeach()

# Headers of components that were not built are not installed.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/qkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN nn EXCLUDE PATTERN lm EXCLUDE PATTERN io EXCLUDE PATTERN view EXCLUDE PATTERN dist EXCLUDE)
foreach(name ${QKV_COMPONENT_NAMES})
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/include/qkv/${name})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/qkv/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qkv
      FILES_MATCHING PATTERN "*.h")
  endif()
endforeach()

set(QKV_REQUIRES_LINES "")
foreach(name ${QKV_COMPONENT_NAMES})
  string(APPEND QKV_REQUIRES_LINES "set(_qkv_requires_${name} ${QKV_REQUIRES_${name}})\n")
endforeach()
set(QKV_IS_STATIC ON)
if(BUILD_SHARED_LIBS)
  set(QKV_IS_STATIC OFF)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/qkv-config.cmake.in ${PROJECT_BINARY_DIR}/package/qkv-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/qkv-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/qkv-config.cmake ${PROJECT_BINARY_DIR}/package/qkv-config-version.cmake
  DESTINATION ${package_dir})
if(TARGET qkv_tool)
  if(BUILD_SHARED_LIBS)
    # The tool finds shared libraries of its own prefix, wherever that was moved.
    file(RELATIVE_PATH libraries_from_tool "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${CMAKE_INSTALL_LIBDIR}")
    if(IS_ABSOLUTE "${CMAKE_INSTALL_BINDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
      set_target_properties(qkv_tool PROPERTIES INSTALL_RPATH "${CMAKE_INSTALL_FULL_LIBDIR}")  # which is not moved
    else()
      set_target_properties(qkv_tool PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_tool}")
    endif()
  endif()
  install(TARGETS qkv_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
endif()
set(doc_dir ${CMAKE_INSTALL_DOCDIR})
if(NOT PROJECT_IS_TOP_LEVEL)
  set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/qkv)  # the other is the parent's
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/README.zh-CN.md
  ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/packaging/copyright
  DESTINATION ${doc_dir} COMPONENT tool)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${doc_dir} COMPONENT tool FILES_MATCHING PATTERN "*.md"
  PATTERN benchmarks EXCLUDE PATTERN images EXCLUDE)
set(QKV_PACKAGE_FILES "" CACHE PATH "Files of Debian packages, which CPack then makes (scripts/release)")
mark_as_advanced(QKV_PACKAGE_FILES)
if(QKV_PACKAGE_FILES)
  include(${PROJECT_SOURCE_DIR}/packaging/package.cmake)
endif()

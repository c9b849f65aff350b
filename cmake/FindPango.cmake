# Pango with Cairo, by pkg-config: the target PkgConfig::QKV_PANGO. An installed qkv asks for the same (qkv-config.cmake.in).
include(FindPackageHandleStandardArgs)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  # 1.44 keeps distances that do not depend on pixels.
  pkg_check_modules(QKV_PANGO QUIET IMPORTED_TARGET GLOBAL pangocairo>=1.44)
endif()
find_package_handle_standard_args(Pango REQUIRED_VARS QKV_PANGO_LIBRARIES VERSION_VAR QKV_PANGO_VERSION
  REASON_FAILURE_MESSAGE "it needs pkg-config and pangocairo 1.44 (Debian: libpango1.0-dev)")

# vcpkg: vcpkg install qkv --overlay-ports=packaging/vcpkg, of the tree it lies in. For a registry, vcpkg_from_github or
# vcpkg_download_distfile with the SHA512 of a release's source takes the place of this line.
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../..")

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES
  io QKV_BUILD_IO
  view QKV_BUILD_VIEW
  tool QKV_BUILD_CLI
)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${features} -DQKV_TEXT=none -DQKV_BUILD_EXAMPLES=OFF -DQKV_BUILD_TESTS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/qkv)
vcpkg_fixup_pkgconfig()
if("tool" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES qkv AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share" "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE" "${SOURCE_PATH}/packaging/copyright")

# Debian packages by CPack: qkv (the tool) and libqkv-dev (headers, static libraries). scripts/release asks for them: QKV_PACKAGE_FILES is
# the folder in which it lays what Debian wants beside (manual page, changelog, copyright), a folder for each component.
foreach(component tool dev)
  install(DIRECTORY "${QKV_PACKAGE_FILES}/${component}/" DESTINATION . COMPONENT ${component})
endforeach()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME qkv)
set(CPACK_PACKAGE_CONTACT "qkv maintainers <maintainers@qkv.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL tool dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME qkv)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOL_PACKAGE_RECOMMENDS "python3-numpy, fonts-wqy-microhei")
set(CPACK_DEBIAN_TOOL_PACKAGE_SUGGESTS "openmpi-bin, g++")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libqkv-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libpango1.0-dev, zlib1g-dev")
set(CPACK_COMPONENT_TOOL_DESCRIPTION "The program qkv trains a toy language model and shows what it attends to,
draws attention as pictures and pages, computes it over tensors in files,
teaches it in a lesson of twelve steps, and judges attention that you have
written: it names the mistake and the line.")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Headers and static libraries: every form of attention, forward and backward,
exact and fast on CPUs; masks, biases, caches, layers, several ranks. For CMake
(find_package(qkv)) and pkg-config.")
include(CPack)

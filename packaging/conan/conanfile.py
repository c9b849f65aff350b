"""Conan 2: conan create packaging/conan --build=missing. Of the tree it lies in; the installed CMake package serves find_package(qkv)."""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

PARTS = ("nn", "io", "view", "dist")


class Qkv(ConanFile):
    name = "qkv"
    license = "Apache-2.0"
    description = "Attention for CPUs: exact, fast, visible"
    topics = "attention", "transformer", "simd"
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], **{part: [True, False] for part in PARTS}}
    default_options = {"shared": False, "fPIC": True, **{part: True for part in PARTS}}
    implements = ["auto_shared_fpic"]
    generators = "CMakeDeps"

    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._root(), "include/qkv/version.h"))
        self.version = re.search(r'QKV_VERSION "(.*)"', header).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "NOTICE", "*.md", "cmake/*", "include/*", "packaging/*", "src/*"):
            copy(self, pattern, self._root(), self.export_sources_folder, excludes="build/*")

    def requirements(self):
        if self.options.io or self.options.view:
            self.requires("nlohmann_json/[>=3.10]", visible=False)
        if self.options.view:
            self.requires("zlib/[>=1.2]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in PARTS:
            toolchain.cache_variables[f"QKV_BUILD_{part.upper()}"] = bool(self.options.get_safe(part))
        for off in ("QKV_BUILD_CLI", "QKV_BUILD_EXAMPLES", "QKV_BUILD_TESTS"):
            toolchain.cache_variables[off] = False
        toolchain.cache_variables["QKV_TEXT"] = "none"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "NOTICE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/qkv"]

"""Builds and runs tests/consumer against the package."""

import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain


class Consumer(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        self.folders.root = "../../.."
        self.folders.source = "tests/consumer"
        self.folders.build = "build/conan"
        self.folders.generators = "build/conan/generators"

    def generate(self):
        options = self.dependencies["qkv"].options
        parts = [part for part in ("nn", "io", "view", "dist") if options.get_safe(part)] + ["lm"] * bool(options.nn)
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables["COMPONENTS"] = ";".join(parts)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        for program in sorted(os.listdir(self.build_folder)):
            if program.startswith("consumer_"):
                self.run(os.path.join(self.build_folder, program), env="conanrun")

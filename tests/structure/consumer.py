"""Installs qkv into a fresh prefix, moves it, and builds and runs tests/consumer from there, by find_package and by pkg-config.

Usage: consumer.py --cmake C --compiler CXX --pkg-config P --work FOLDER --components "nn io ..."
                   (--build TREE | --source TREE [-DX=Y...])
--build installs a tree that is built already; --source configures and builds the libraries as shared ones first.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headers import WARNINGS, clang

CONSUMER = Path(__file__).resolve().parents[1] / "consumer"


def run(*command, **options):
    """Runs a command and ends the test with its output when it fails."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        print("$", *command)
        print(result.stdout, result.stderr, sep="\n")
        sys.exit(1)
    return result.stdout.strip()


def build_shared(arguments, options, tree):
    """Configures and builds the libraries as shared ones."""
    off = [f"-DQKV_BUILD_{part}=OFF" for part in ("CLI", "TESTS", "EXAMPLES")]
    run(arguments.cmake, "-S", arguments.source, "-B", tree, "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON", *off, *options)
    run(arguments.cmake, "--build", tree)


def by_find_package(arguments, prefix, folder):
    run(arguments.cmake, "-S", CONSUMER, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={arguments.compiler}", f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)}", "-DCMAKE_NO_SYSTEM_FROM_IMPORTED=ON",
        f"-DCOMPONENTS={';'.join(arguments.components.split())}")
    run(arguments.cmake, "--build", folder)
    programs = sorted(path for path in folder.glob("consumer_*") if os.access(path, os.X_OK) and path.is_file())
    return [(path.name, run(path)) for path in programs]


def by_pkg_config(arguments, prefix, folder):
    """By Clang where it is installed: another compiler's program, the same libraries, the headers without a warning of either."""
    folder.mkdir()
    environment = {**os.environ, "PKG_CONFIG_PATH": ":".join(str(path.parent) for path in prefix.rglob("qkv.pc"))}
    compiler = clang() or arguments.compiler

    def build(name):
        package = name if name == "qkv" else f"qkv-{name}"
        flags = run(arguments.pkg_config, "--cflags", "--libs", package, env=environment).split()
        library_folder = next(flag[2:] for flag in flags if flag.startswith("-L"))
        program = folder / f"consumer_{name}"
        run(compiler, "-std=c++20", *WARNINGS, CONSUMER / f"{name}.cc", "-o", program, *flags, f"-Wl,-rpath,{library_folder}")
        return program.name, run(program)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(build, ["qkv", *arguments.components.split()]))


def exports(arguments, prefix):
    """Ends the test where a shared library is missing, or exports what is not of namespace qkv, of one of its hidden structures, or unversioned."""
    libraries = sorted(prefix.rglob("libqkv*.so"))
    if arguments.source and {library.stem for library in libraries} != {"libqkv", *(f"libqkv_{name}" for name in arguments.components.split())}:
        sys.exit(f"of the components {arguments.components} there are {libraries}")
    for library in libraries:
        text = run(arguments.nm, "--dynamic", "--defined-only", "--format=posix", library)
        names = [line.split()[0] for line in text.splitlines() if not line.startswith("qkv_")]
        node = "@@qkv_" + os.readlink(library).removeprefix(f"{library.name}.")  # libqkv.so is a link to libqkv.so.0.2
        leaks = [name for name in names
                 if not re.match(r"_Z(NK?|T[VIST]N|T[hv]\w*?)3qkv", name) or "4Impl" in name or not name.endswith(node)]
        if leaks or not names:
            sys.exit(f"{library.name} exports {len(leaks)} of {len(names)} symbols that are nobody's business: {leaks}")
        print(f"{library.name}: {len(names)} symbols, all of qkv")


def unknown_component(arguments, prefix, folder):
    """Asking for a component that does not exist must name it, and those that do."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES CXX)\nfind_package(qkv REQUIRED COMPONENTS tensors)\n")
    command = [arguments.cmake, "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
               f"-DCMAKE_CXX_COMPILER={arguments.compiler}"]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    message = " ".join(result.stderr.split())
    if result.returncode == 0 or 'no component "tensors"' not in message:
        sys.exit(f"find_package of an unknown component: {result.returncode}, {message}")


def main():
    parser = argparse.ArgumentParser()
    for option in ("--cmake", "--compiler", "--pkg-config", "--work", "--components", "--build", "--source", "--nm"):
        parser.add_argument(option, default="")
    arguments, options = parser.parse_known_args()

    work = Path(arguments.work)
    for folder in ("first", "moved", "find", "pc", "unknown"):
        shutil.rmtree(work / folder, ignore_errors=True)
    tree = arguments.build
    if arguments.source:
        tree = work / "tree"
        build_shared(arguments, options, tree)
    run(arguments.cmake, "--install", tree, "--prefix", work / "first")
    # Nothing installed may know where it was installed to.
    (work / "first").rename(work / "moved")

    exports(arguments, work / "moved")
    unknown_component(arguments, work / "moved", work / "unknown")
    documents = work / "moved" / "share" / "doc" / "qkv"
    for document in ("LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "docs/README.md", "docs/concepts/semantics.md"):
        if not (documents / document).is_file():
            sys.exit(f"{document} is not installed in {documents}")

    wanted = 1 + len(arguments.components.split())
    for way, build in (("find_package", by_find_package), ("pkg-config", by_pkg_config)):
        found = build(arguments, work / "moved", work / ("find" if way == "find_package" else "pc"))
        for name, text in found:
            print(f"{way}: {name}: {text}")
        if len(found) != wanted:
            sys.exit(f"{way}: {len(found)} programs ran, wanted {wanted}")
    tool = work / "moved" / "bin" / "qkv"
    if tool.is_file():
        print(f"tool: {run(tool, 'info').splitlines()[0]}")


if __name__ == "__main__":
    main()

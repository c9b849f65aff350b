"""A configure step that misses packages says so once, with all their names; a wheel without the tool's libraries leaves the tool out;
a folder outside the prefix stands in .pc files as it is.

    Arguments: CMAKE COMPILER WORK
"""

import subprocess
from pathlib import Path

import tree

HIDDEN = {"CLI11": "libcli11-dev", "fmt": "libfmt-dev", "nlohmann_json": "nlohmann-json3-dev", "ZLIB": "zlib1g-dev",
          "Pango": "libpango1.0-dev"}


def configure(cmake, compiler, work, hidden, *options):
    """CMake's output as one line, and whether it succeeded; `hidden` are not found."""
    hide = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in hidden]
    command = [cmake, "-S", str(tree.ROOT), "-B", work, f"-DCMAKE_CXX_COMPILER={compiler}", *hide, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split()), done.returncode == 0


def main(cmake, compiler, work):
    problems = []
    text, passed = configure(cmake, compiler, f"{work}/all", HIDDEN)
    if passed or text.count("CMake Error") != 1:
        problems.append(f"one error was expected: got {text}")
    problems += [f"{name} is not named: {text}" for name in HIDDEN.values() if name not in text]
    text, _ = configure(cmake, compiler, f"{work}/wheel", ("CLI11", "fmt"), "-DQKV_BUILD_PYTHON=ON", "-DBUILD_SHARED_LIBS=ON")
    if "the tool (`qkv`, `python -m qkv`) is left out" not in text or "packages are missing" in text:
        problems.append(f"the tool was to be left out: got {text}")
    off = [f"-DQKV_BUILD_{part}=OFF" for part in ("NN", "IO", "VIEW", "DIST", "TESTS")]
    text, _ = configure(cmake, compiler, f"{work}/folders", (), *off, "-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_INSTALL_INCLUDEDIR=/elsewhere")
    folders = Path(f"{work}/folders/package/qkv.pc").read_text(encoding="utf-8")
    if "prefix=${pcfiledir}/../..\nlibdir=${prefix}/lib\nincludedir=/elsewhere\n" not in folders:
        problems.append(f"qkv.pc: {folders}, {text}")
    return problems, "3 configure steps"

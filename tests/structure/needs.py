"""A configure step that misses packages says so once, with all their names; a wheel without the tool's libraries leaves the tool out.

    Arguments: CMAKE COMPILER WORK
"""

import subprocess

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
    return problems, "2 configure steps"

"""The source tree as the structure tests see it: files by folder, and the includes in them. Not: a C++ parser."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("include", "src", "cli", "lesson", "tests", "bench", "examples", "fuzz", "scripts", "cmake", "docs", "python", ".ci",
                  ".github", "packaging")
CPP_SUFFIXES = (".h", ".cc")
# Folders between the sources that are none: what Python and its tests keep, and the package built in place.
NOT_SOURCES = {"__pycache__", ".hypothesis", ".pytest_cache", "bin"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def files(folders=SOURCE_FOLDERS):
    """Every file below the folders, and the files that lie in the root itself when all folders are asked for."""
    found = [path for path in ROOT.iterdir() if path.is_file()] if folders is SOURCE_FOLDERS else []
    for folder in folders:
        for directory, subdirectories, names in os.walk(ROOT / folder):
            subdirectories[:] = [name for name in subdirectories if name not in NOT_SOURCES]
            found += [Path(directory) / name for name in names if not name.endswith(".so")]
    return sorted(found)


def cpp_files(folders=SOURCE_FOLDERS):
    return [path for path in files(folders) if path.suffix in CPP_SUFFIXES]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def includes(path):
    """(line number, '"' or '<', text between) of each include."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)

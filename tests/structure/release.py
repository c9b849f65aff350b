"""A release says one thing everywhere: its version, its address, links of its page on PyPI; actions of workflows are pinned by hash.

check.py release TAG: as well, whether this tree may be published under the tag, which takes every stage of scripts/verify-release at 24 hours.
"""

import re
import subprocess
import sys

import tree

sys.path.append(str(tree.ROOT / "packaging"))
import pypi_readme  # noqa: E402

VERSIONED = {
    "CITATION.cff": "\nversion: {}\n",
    "CHANGELOG.md": "\n## [{}] - ",
    "packaging/conda/recipe.yaml": "\n  version: {}\n",
    "packaging/vcpkg/vcpkg.json": '\n  "version": "{}",\n',
    "README.md": "\nVersion {}: ",
    "README.zh-CN.md": "\n版本 {}：",
}
# Who says where the repository is.
ADDRESSED = {"cli/judge/places.cc": "https://{address}/blob/main/", "SECURITY.md": " --repo {name} "}
# What holds until a package is published.
UNPUBLISHED = {
    "README.md": "on no package index",
    "README.zh-CN.md": "尚未发布到任何软件源",
    "docs/python.md": "is not on PyPI",
    "pyproject.toml": "nothing is published there yet",
    "packaging/package.cmake": "qkv.invalid",
    "scripts/release": "qkv.invalid",
}


def read(name):
    return (tree.ROOT / name).read_text(encoding="utf-8")


def unready(tag, version, changelog):
    """What keeps a tree of a version and a changelog from being published under a tag."""
    first = re.search(r"^## (.*)", re.sub(r"^## \[Unreleased\]\n+(?=## )", "", changelog, flags=re.M), re.M)[1]
    if tag != f"v{version}":
        yield f"the tag {tag} is not v{version}, the version of include/qkv/version.h"
    if not first.startswith(f"[{version}] - "):
        yield f"CHANGELOG.md has entries above [{version}], under {first}"


def main(tag=None):
    version = re.search(r'QKV_VERSION "(.*)"', read("include/qkv/version.h")).group(1)
    address = re.search(r'Repository = "https://(.*)"', read("pyproject.toml")).group(1)
    problems = [f"{name}: not of {version}" for name, text in VERSIONED.items() if text.format(version) not in read(name)]
    said = {name: text.format(address=address, name=address.partition("/")[2]) for name, text in ADDRESSED.items()}
    problems += [f"{name}: another address than pyproject.toml's" for name, text in said.items() if text not in read(name)]
    changes = "# Changelog\n\n## [Unreleased]\n\n{}## [1.2.3] - 2026-01-01\n"
    for name, text, refused in (("v1.2.3", "", 0), ("v1.2.3-rc1", "", 1), ("v1.2.4", "", 1), ("v1.2.3", "### Added\n- A\n\n", 1)):
        if len(list(unready(name, "1.2.3", changes.format(text)))) != refused:
            problems.append(f"a release {name} with {text!r} unreleased must be refused {refused} times")
    if tag:
        problems += unready(tag, version, read("CHANGELOG.md"))
        stages = subprocess.run(["scripts/verify-release", "--list"], cwd=tree.ROOT, capture_output=True, text=True)
        problems += [f"scripts/verify-release: {line}" for line in stages.stdout.splitlines() if not line.startswith("holds ")]
        problems += [f"scripts/verify-release --list: {stages.returncode}, {stages.stderr}"] if stages.returncode not in (0, 1) else []
        problems += [f"{name} says: {text}" for name, text in UNPUBLISHED.items() if text in read(name)]
    page = pypi_readme.page(f"https://{address}", version)
    problems += [f"README.md on PyPI: {link} leads nowhere" for link in re.findall(r'(?:\]\(|src=")(?!https:)([^)"]+)', page)]
    for path in sorted((tree.ROOT / ".github" / "workflows").glob("*.yml")):
        used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
        problems += [
            f"{path.name}: {action} is no hash with its version behind it"
            for action, rest in used
            if not re.search(r"@[0-9a-f]{40}$", action) or not re.match(r" # v\d", rest)
        ]
    return problems, f"version {version}"

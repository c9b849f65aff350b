"""A release says one thing everywhere: its version, its address, links of its page on PyPI; actions of workflows are pinned by hash."""

import re
import sys

import tree

sys.path.append(str(tree.ROOT / "packaging"))
import pypi_readme  # noqa: E402

VERSIONED = {
    "CITATION.cff": "\nversion: {}\n",
    "CHANGELOG.md": "\n## [{}] - ",
    "packaging/conda/recipe.yaml": "\n  version: {}\n",
    "packaging/vcpkg/vcpkg.json": '\n  "version": "{}",\n',
}


def read(name):
    return (tree.ROOT / name).read_text(encoding="utf-8")


def main():
    version = re.search(r'QKV_VERSION "(.*)"', read("include/qkv/version.h")).group(1)
    address = re.search(r'Repository = "https://(.*)"', read("pyproject.toml")).group(1)
    problems = [f"{name}: not of {version}" for name, text in VERSIONED.items() if text.format(version) not in read(name)]
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

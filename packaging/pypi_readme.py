"""README.md for PyPI, where a relative link leads nowhere: each leads to this version's file in the repository instead.

scikit-build-core calls it (pyproject.toml).
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELATIVE = re.compile(r'(!?)(\[[^\]]*\]\(|<img src=")(?![a-z]+:)([^)"]+)')


def page(repository, version):
    def absolute(link):
        shown, opening, target = link.groups()
        view = "raw" if shown or opening.startswith("<") else "blob"
        return f"{shown}{opening}{repository}/{view}/v{version}/{'README.md' if target.startswith('#') else ''}{target}"

    return RELATIVE.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


def dynamic_metadata(_field, _settings, project):
    return {"content-type": "text/markdown", "text": page(project["urls"]["Repository"], project["version"])}

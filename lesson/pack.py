"""The lesson's page from its parts: markup, styles, words, scripts, and the engine as base64 of gzip. The same parts give the same bytes.

python3 lesson/pack.py ENGINE OUT.html; ENGINE: engine.wasm, or a page, whose engine it then is. --check: whether docs/lesson.html is made of them.
"""

import base64
import gzip
import json
import sys
from pathlib import Path

LESSON = Path(__file__).resolve().parent
EXPLORER = LESSON.parent / "src/view/explore/page"
# Scripts of the explorer that serve here as they are; they come before the lesson's own, folder by folder in alphabetical order.
SHARED = ("base.js", "words.js", "colour.js", "cells.js", "bars.js")


def scripts() -> list[Path]:
    own = [path for folder in ("engine", "figures", "page") for path in sorted((LESSON / folder).glob("*.js"))]
    palette = LESSON / "page/palette.js"  # colour.js reads it at once
    return [palette, *(EXPLORER / name for name in SHARED), *(path for path in own if path != palette)]


def words(language: str) -> str:
    """JSON that may stand inside a script."""
    text = json.loads((LESSON / f"text/{language}.json").read_text(encoding="utf-8"))
    return json.dumps(text, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


def page(engine: bytes) -> str:
    def read(paths: list[Path]) -> str:
        return "".join(path.read_text(encoding="utf-8") for path in paths)

    parts = {
        "title": json.loads((LESSON / "text/en.json").read_text(encoding="utf-8"))["shell.title"],
        "style": read([EXPLORER / "style.css", LESSON / "page/style.css", LESSON / "page/steps.css"]),
        "wasm": base64.b64encode(gzip.compress(engine, 9, mtime=0)).decode(),
        "en": words("en"),
        "zh": words("zh"),
        "script": read(scripts()),
    }
    text = (LESSON / "page/page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def engine_of(path: Path) -> bytes:
    if path.suffix != ".html":
        return path.read_bytes()
    text = path.read_text(encoding="utf-8").split('id="wasm">', 1)[1].split("<", 1)[0]
    return gzip.decompress(base64.b64decode(text))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        made = LESSON.parent / "docs/lesson.html"
        stale = page(engine_of(made)) != made.read_text(encoding="utf-8")
        sys.exit("docs/lesson.html is not what its parts make: ./scripts/lesson --page-only" if stale else 0)
    Path(sys.argv[2]).write_text(page(engine_of(Path(sys.argv[1]))), encoding="utf-8")

"""The explorer's page from its file, by the C++ library. Not: what is in the file (file.py)."""

from __future__ import annotations

import json as encoder
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from .. import _nn, io
from .file import FORMAT


def finite(x: Any) -> Any:
    """None in place of NaN and infinity, which JSON does not have: of a model that gives NaN, everything else is shown."""
    if isinstance(x, dict):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def write_file(path: str | os.PathLike[str], json: dict[str, Any], tensors: dict[str, Any]) -> None:
    """The explorer's file."""
    text = encoder.dumps(finite(json), ensure_ascii=False, allow_nan=False)
    io.save_safetensors(path, tensors, {"format": FORMAT, "explorer": text, "title": json["title"]})


def page_of(json: dict[str, Any], tensors: dict[str, Any]) -> str:
    """The page as HTML."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "explorer.safetensors")
        write_file(file, json, tensors)
        return _nn.explorer_page(os.fspath(file))

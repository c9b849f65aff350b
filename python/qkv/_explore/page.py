"""The explorer's page from its file, by the C++ library. Not: what is in the file (file.py)."""

from __future__ import annotations

import json as encoder
import os
import tempfile
from pathlib import Path
from typing import Any

from .. import _nn, io
from .file import FORMAT


def write_file(path: str | os.PathLike[str], json: dict[str, Any], tensors: dict[str, Any]) -> None:
    """The explorer's file."""
    text = encoder.dumps(json, ensure_ascii=False, allow_nan=False)
    io.save_safetensors(path, tensors, {"format": FORMAT, "explorer": text, "title": json["title"]})


def page_of(json: dict[str, Any], tensors: dict[str, Any]) -> str:
    """The page as HTML."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "explorer.safetensors")
        write_file(file, json, tensors)
        return _nn.explorer_page(os.fspath(file))

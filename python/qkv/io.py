"""Files of tensors: safetensors. Every rule of the format is checked; files are written whole or not at all.

Not supported: sharded checkpoints, pickles. Format: github.com/huggingface/safetensors.
"""

import os
from collections.abc import Mapping
from typing import Any

from . import _nn
from ._tensors import entries_of, file_name, tensors_of

__all__ = ["Tensors", "load_safetensors", "save_safetensors"]


class Tensors(dict[str, Any]):
    """A dict of arrays by name, in the file's order, and the file's ``metadata`` (strings by name)."""

    metadata: dict[str, str]

    def __init__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.metadata = dict(metadata)


def load_safetensors(path: str | os.PathLike[str], *, framework: str = "numpy") -> Tensors:
    """Every tensor of a file, as arrays that own their memory.

    framework: "numpy" or "torch"; ValueError for another. bfloat16 in NumPy: ml_dtypes.bfloat16 where that package is installed,
    otherwise float32, which holds the same numbers.
    Raises FormatError (a ValueError) with the byte offset when the file breaks the format, IoError (an OSError) with path and
    reason when it cannot be read.
    """
    entries, metadata = _nn.load_safetensors(file_name(path))
    return Tensors(tensors_of(entries, framework), metadata)


def save_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes NumPy, PyTorch or JAX arrays by name. A file that is at ``path`` already stays as it is when anything fails.

    metadata: strings by name. Raises TypeError for an element type that the format has not, or metadata that are no strings, IoError (an
    OSError) with path and reason when it cannot be written.
    """
    for name, text in (metadata or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"[save_safetensors] metadata must be strings by name: got {name!r}: {text!r}")
    _nn.save_safetensors(file_name(path), entries_of(tensors), dict(metadata or {}))

"""Files of tensors: safetensors and .npy. Every rule of the formats is checked; files are written whole or not at all.

Not supported: .npz, sharded checkpoints, pickles. Formats: github.com/huggingface/safetensors; numpy.lib.format.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _nn
from ._tensors import entries_of, entry_of, tensor_of, tensors_of

__all__ = ["Tensors", "load_npy", "load_safetensors", "save_npy", "save_safetensors"]


class Tensors(dict[str, Any]):
    """A dict of arrays by name, in the file's order, and the file's ``metadata`` (strings by name)."""

    metadata: dict[str, str]

    def __init__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.metadata = dict(metadata)


def load_safetensors(path: str | os.PathLike[str], *, framework: str = "numpy") -> Tensors:
    """Every tensor of a file, as arrays that own their memory.

    bfloat16 in NumPy: ml_dtypes.bfloat16 where that package is installed, otherwise float32, which holds the same numbers.
    Raises FormatError (a ValueError) with the byte offset when the file breaks the format, IoError (an OSError) with path and
    reason when it cannot be read.
    """
    entries, metadata = _nn.load_safetensors(os.fspath(path))
    return Tensors(tensors_of(entries, framework), metadata)


def save_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes NumPy, PyTorch or JAX arrays by name. A file that is at ``path`` already stays as it is when anything fails."""
    _nn.save_safetensors(os.fspath(path), entries_of(tensors), dict(metadata or {}))


def load_npy(path: str | os.PathLike[str], *, framework: str = "numpy") -> Any:
    """The array of a file, row-major whatever the file's order. Raises as :func:`load_safetensors`."""
    return tensor_of(_nn.load_npy(os.fspath(path)), framework)


def save_npy(path: str | os.PathLike[str], array: Any) -> None:
    """Writes one NumPy, PyTorch or JAX array. Raises UnsupportedError for bfloat16, which the format has no name for."""
    _nn.save_npy(os.fspath(path), *entry_of("array", array)[1:])

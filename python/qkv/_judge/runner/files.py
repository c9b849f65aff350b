"""safetensors files, as small as an exchange needs: F64, F32, I64, I32 and BOOL, metadata of strings. 8 bytes (length of the
header), the header as JSON, the bytes of the tensors. Not: other types, lazy reading."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .slots import Tensors, Words

CODES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BOOL": "|b1"}
_NAMES = {np.dtype(dtype): code for code, dtype in CODES.items()}


def decode(raw: bytes) -> tuple[Tensors, dict[str, str]]:
    """(tensors, metadata); the tensors own their memory."""
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length].decode("utf-8"))
    metadata = header.pop("__metadata__", {})
    body = memoryview(raw)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in CODES:
            raise ValueError(f"{name} must have one of the types {', '.join(CODES)}: got {entry['dtype']}")
        first, last = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[first:last], dtype=CODES[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors, metadata


def encode(tensors: dict[str, Any], metadata: Words | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": {key: str(value) for key, value in (metadata or {}).items()}}
    blobs, offset = [], 0
    for name, tensor in tensors.items():
        array = np.asarray(tensor)  # a scalar keeps its shape []
        if array.dtype not in _NAMES:
            raise TypeError(f"{name} must have one of the types {', '.join(CODES)}: got {array.dtype}")
        blob = array.tobytes()
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def read(path: Any) -> tuple[Tensors, dict[str, str]]:
    return decode(Path(path).read_bytes())


def write(path: Any, content: bytes) -> None:
    """Written beside its place and renamed, so that nobody reads half a file."""
    part = Path(f"{path}.part")
    part.write_bytes(content)
    os.replace(part, path)

"""Named tensors between Python and files or layers: dicts of arrays <-> what _nn exchanges.

_nn's form of a tensor is (name, dtype, sizes, bytes): dtype as safetensors writes it ("F32"), bytes an array of uint8.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ._arrays import _is_torch, require_unmasked

__all__ = ["code_of", "entries_of", "file_name", "tensors_of"]

_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}

Entry = tuple[str, str, tuple[int, ...], Any]


def file_name(path: str | os.PathLike[str]) -> str:
    """A path as the extension takes it. ValueError: for a NUL, where C would end it, and for bytes that are no UTF-8."""
    name = os.fsdecode(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a path must be UTF-8: got {name!r}") from None
    if "\0" in name:
        raise ValueError(f"a path must not hold a NUL: got {name!r}")
    return name


def code_of(dtype: Any) -> str:
    """An element type's name in safetensors: from a name, or NumPy's or PyTorch's type."""
    name = dtype if isinstance(dtype, str) else str(dtype)[6:] if str(dtype).startswith("torch.") else np.dtype(dtype).name
    if name not in _CODES:
        raise TypeError(f"dtype must be one of {', '.join(_CODES)}: got {dtype!r}")
    return _CODES[name]


def entry_of(name: str, tensor: Any) -> Entry:
    """A NumPy, PyTorch (copied to the CPU if it is elsewhere) or JAX array, in native byte order and contiguous."""
    if _is_torch(tensor):
        torch = sys.modules["torch"]
        tensor = tensor.detach().cpu().resolve_neg().contiguous()
        dtype, sizes = str(tensor.dtype)[6:], tuple(tensor.shape)
        array = tensor.reshape(-1).view(torch.uint8).numpy()
    else:
        require_unmasked(tensor, name)
        array = np.asarray(tensor)
        dtype, sizes = array.dtype.name, array.shape
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if dtype in _CODES:
            array = np.asarray(array, order="C").reshape(-1).view(np.uint8)
    if dtype not in _CODES:
        raise TypeError(f"{name} must have one of the element types {', '.join(_CODES)}: got {dtype}")
    return (name, _CODES[dtype], sizes, array)


def entries_of(state: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> list[Entry]:
    """A dict of arrays, or pairs of name and array (PyTorch's state_dict() is a dict)."""
    if hasattr(state, "state_dict"):
        raise TypeError(f"a dict of arrays is wanted: got {type(state).__name__}; pass its state_dict()")
    pairs = state.items() if isinstance(state, Mapping) else state
    return [entry_of(str(name), tensor) for name, tensor in pairs]


def tensor_of(entry: Entry, framework: str) -> Any:
    """The array of an entry; it owns its memory: "numpy" or "torch"."""
    _, code, sizes, raw = entry
    dtype = _NAMES[code]
    if framework == "torch":
        import torch

        if not raw.size:
            return torch.empty(sizes, dtype=getattr(torch, dtype))
        return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(sizes)
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:  # NumPy has no such type: float32 holds the same numbers exactly
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(sizes)
        return raw.view(ml_dtypes.bfloat16).reshape(sizes)
    return raw.view(dtype).reshape(sizes)


def tensors_of(entries: Iterable[Entry], framework: str = "numpy") -> dict[str, Any]:
    """A dict of arrays, in the order of the entries."""
    if framework not in ("numpy", "torch"):
        raise ValueError(f'framework must be "numpy" or "torch": got {framework!r}')
    return {entry[0]: tensor_of(entry, framework) for entry in entries}

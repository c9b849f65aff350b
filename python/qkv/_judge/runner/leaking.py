"""Whether a masked call depends on what the mask hides: that tells a mask that is added to the scores from one of True and False.

Not: which forms there are (masks.py), the verdict on a leak (the tool's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .frameworks import to_numpy

Call = Callable[[dict[str, np.ndarray]], Any]


def _keys_of(tensors: dict[str, np.ndarray]) -> list[str]:
    """The inputs that the keys and values are made of."""
    return ["memory"] if "memory" in tensors else ["x"] if "x" in tensors else ["k", "v"]


def _out(call: Call, tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(to_numpy(call(tensors).out), np.float64)


def _far(one: np.ndarray, other: np.ndarray) -> bool:
    """Further apart than rounding to float32 explains; NaN is far from everything."""
    return one.shape != other.shape or not bool((np.abs(one - other) <= 1e-4 * (1 + np.abs(one))).all())


def leaks(call: Call, tensors: dict[str, np.ndarray], mask: np.ndarray) -> bool:
    """Other values of keys that the mask [B, 1, Tq, Tk] hides from the first query change the output where they are hidden."""
    hidden = ~mask[:, 0, 0]  # [B, Tk]
    rows = ~(mask[:, 0] & hidden[:, None]).any(-1)  # [B, Tq]: the queries that see none of these keys
    names = _keys_of(tensors)
    if names == ["x"]:
        rows &= ~hidden
    other = dict(tensors)
    for name in names:
        where = hidden.reshape(hidden.shape[0], *(1,) * (tensors[name].ndim - 3), hidden.shape[1], 1)
        other[name] = np.where(where, 1.5 - 2 * tensors[name], tensors[name])
    one, two = _out(call, {**tensors, "mask": mask}), _out(call, {**other, "mask": mask})
    if one.ndim < 3 or one.shape != two.shape or one.shape[0] != len(rows) or one.shape[-2] != rows.shape[1]:
        return True
    return any(_far(one[b][..., rows[b], :], two[b][..., rows[b], :]) for b in range(len(rows)))


def adds(plain: Call, shifted: Call, tensors: dict[str, np.ndarray], mask: np.ndarray) -> bool:
    """A mask of one number everywhere changes nothing, whatever the number: so does what is added before a softmax."""
    everything = np.ones_like(mask)
    call = {**tensors, "mask": everything}
    return not _far(_out(plain, call), _out(shifted, call))

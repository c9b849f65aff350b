"""A segmentation fault."""

import ctypes


def sdpa(q, k, v, mask=None):
    ctypes.string_at(0)
    return v


EXPECTED = {"sdpa": "failed"}

"""Recursion without end."""

import sys

sys.setrecursionlimit(1 << 30)


def sdpa(q, k, v, mask=None):
    return sdpa(q, k, v, mask)


EXPECTED = {"sdpa": "failed"}

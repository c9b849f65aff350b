"""Memory without end."""

import numpy as np


def sdpa(q, k, v, mask=None):
    kept = []
    while True:
        kept.append(np.ones((1024, 1024, 32)))


EXPECTED = {"sdpa": "failed"}

"""A shape that does not fit."""

import numpy as np


def sdpa(q, k, v, mask=None):
    return np.matmul(q, k) @ v


EXPECTED = {"sdpa": "failed"}

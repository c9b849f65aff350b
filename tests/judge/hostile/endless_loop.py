"""A loop without end in a call: the time limit ends it."""

import numpy as np


def sdpa(q, k, v, mask=None):
    scores = np.zeros(1)
    while True:
        scores = scores + 1


EXPECTED = {"sdpa": "failed"}

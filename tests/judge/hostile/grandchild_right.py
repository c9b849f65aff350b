"""Right, but leaves a process of its own behind."""

import os
import time

import numpy as np


def sdpa(q, k, v, mask=None):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("/proc/self/comm", "w") as name:
                name.write("qkv-grandchild")
            time.sleep(600)
        os._exit(0)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


EXPECTED = {"sdpa": ("right", "convention", "failed")}

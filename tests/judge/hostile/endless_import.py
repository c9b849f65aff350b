"""A training loop at the file's end, as left from trying it."""

import time


def sdpa(q, k, v, mask=None):
    return v


while True:
    time.sleep(0.05)

EXPECTED = {"sdpa": "failed"}

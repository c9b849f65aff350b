"""os._exit(0): no cleaning up, no last words."""

import os


def sdpa(q, k, v, mask=None):
    os._exit(0)


EXPECTED = {"sdpa": "failed"}

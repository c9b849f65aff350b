"""sys.exit(0) while the file is read."""

import sys


def sdpa(q, k, v, mask=None):
    return v


sys.exit(0)

EXPECTED = {"sdpa": "failed"}

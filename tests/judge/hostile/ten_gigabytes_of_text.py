"""Prints 10 GB."""


def sdpa(q, k, v, mask=None):
    line = "x" * (1 << 20)
    for _ in range(10_000):
        print(line)
    return v


EXPECTED = {"sdpa": ("failed", "wrong", "unknown")}

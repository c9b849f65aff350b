"""The traceback shall be the person's."""


def sdpa(q, k, v, mask=None):
    return v


raise RuntimeError("the data set is not here")

EXPECTED = {"sdpa": "failed"}

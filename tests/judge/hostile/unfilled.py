"""A skeleton as it is handed out."""


def sdpa(q, k, v, mask=None):
    raise NotImplementedError("fill in: scores, softmax, values")


EXPECTED = {"sdpa": "unfilled"}

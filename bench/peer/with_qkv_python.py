"""qkv's own Python package, timed as the peers are: what a call from Python costs beside `qkv bench`. Not a peer: no ratio."""

import itertools

import numpy as np

NAME = "qkv in Python"


def settings(threads):
    import qkv

    qkv.set_num_threads(threads)
    return f"{threads} thread(s), {qkv.isa()}"


def version():
    import qkv

    return qkv.__version__


def variants(case):
    makers = {"forward": _forward, "decode": _forward, "weights": _weights, "backward": _backward, "fwdbwd": _both}
    return dict(makers[case.kind](case)) if case.kind in makers else {}


def attend(q, k, v, causal):
    import qkv

    return qkv.attention(q, k, v, causal="bottom_right" if causal else False)


def _typed(x, dtype):
    if dtype == "f32":
        return x
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16)


def _options(case):
    options = {"causal": "bottom_right"} if case.causal else {}
    if case.extra == "window":
        options |= {"window": (case.window - 1, 0)}
    if case.extra == "lengths":
        options |= {"key_lengths": case.key_lengths()}
    if case.extra == "dropout":
        options |= {"dropout": 0.1, "seed": 1}
    if case.extra == "bias":
        from . import textbook

        options |= {"bias": textbook.bias_of(case)}
    return options


def _forward(case):
    import qkv

    from . import textbook

    q, k, v = (_typed(x, case.dtype) for x in textbook.numbers(case)[:3])
    caches = [(k, v)]
    if case.kind == "decode":
        caches += [(k.copy(), v.copy()) for _ in range(int(2**29 // case.cache_bytes()))]
    turns, options = itertools.cycle(caches), _options(case)
    rows, expected = textbook.rows_of(case, *(x.astype(np.float32) for x in (q, k, v)))
    out = qkv.attention(q, k, v, **options)
    error = textbook.difference(out[-1, -1, rows].astype(np.float32), expected)
    yield "attention", (lambda: qkv.attention(q, *next(turns), **options), error)


def _weights(case):
    import qkv

    from . import textbook

    q, k, v, _ = textbook.numbers(case)
    expected = textbook.weights_of(q, k, textbook.keep_of(case)[:, None] if case.causal else None)
    _, weights = qkv.attention(q, k, v, weights="all", **_options(case))
    error = textbook.difference(weights, expected)
    yield 'weights="all"', (lambda: qkv.attention(q, k, v, weights="all", **_options(case)), error)


def _gradient_error(case):
    """The error of a small case of the same kind; dropout has nothing to compare with."""
    import qkv

    from . import textbook

    if case.extra == "dropout":
        return None
    small = case.small()
    q, k, v, dout = (_typed(x, case.dtype) for x in textbook.numbers(small))
    out, lse = qkv.attention(q, k, v, return_lse=True, **_options(small))
    got = qkv.attention_backward(dout, q, k, v, out, lse, **_options(small))[:3]
    expected = textbook.gradients(small, *(x.astype(np.float32) for x in (q, k, v, dout)))[1:4]
    return max(textbook.difference(a.astype(np.float32), b) for a, b in zip(got, expected))


def _backward(case):
    import qkv

    from . import textbook

    q, k, v, dout = (_typed(x, case.dtype) for x in textbook.numbers(case))
    options = _options(case)
    out, lse = qkv.attention(q, k, v, return_lse=True, **options)
    yield "attention_backward", (lambda: qkv.attention_backward(dout, q, k, v, out, lse, **options), _gradient_error(case))


def _both(case):
    import qkv

    from . import textbook

    q, k, v, dout = (_typed(x, case.dtype) for x in textbook.numbers(case))
    options = _options(case)
    need = ("q", "k", "v", "bias") if case.extra == "bias" else ("q", "k", "v")

    def run():
        out, lse = qkv.attention(q, k, v, return_lse=True, **options)
        return qkv.attention_backward(dout, q, k, v, out, lse, need=need, **options)

    yield "forward and backward", (run, _gradient_error(case))

"""qkv's own Python package, timed as the peers are: what a call from Python costs beside `qkv bench`. Not a peer: no ratio."""

import itertools

import numpy as np

from . import textbook

NAME = "qkv in Python"


def settings(threads):
    global qkv
    import qkv

    qkv.set_num_threads(threads)
    return f"{threads} thread(s), {qkv.isa()}"


def version():
    return qkv.__version__


def variants(case):
    makers = {"forward": _forward, "decode": _forward, "weights": _weights, "backward": _gradients, "fwdbwd": _gradients}
    return dict(makers[case.kind](case)) if case.kind in makers else {}


def attend(q, k, v, causal):
    return qkv.attention(q, k, v, causal="bottom_right" if causal else False)


def _arrays(case):
    if case.dtype == "f32":
        return textbook.numbers(case)
    import ml_dtypes

    return [x.astype(ml_dtypes.bfloat16) for x in textbook.numbers(case)]


def _options(case):
    options = {"causal": "bottom_right"} if case.causal else {}
    return options | {
        "window": lambda: {"window": (case.window - 1, 0)},
        "lengths": lambda: {"key_lengths": case.key_lengths()},
        "dropout": lambda: {"dropout": 0.1, "seed": 1},
        "bias": lambda: {"bias": textbook.bias_of(case)},
    }.get(case.extra, dict)()


def _forward(case):
    q, k, v, _ = _arrays(case)
    turns, options = itertools.cycle(textbook.caches(case, [k, v], np.copy)), _options(case)
    out = qkv.attention(q, k, v, **options)
    error = textbook.row_error(case, *(x.astype(np.float32) for x in (out, q, k, v)))
    yield "attention", (lambda: qkv.attention(q, *next(turns), **options), error)


def _weights(case):
    q, k, v, _ = textbook.numbers(case)
    expected = textbook.weights_of(q, k, textbook.keep_of(case)[:, None] if case.causal else None)

    def run():
        return qkv.attention(q, k, v, weights="all", **_options(case))

    yield 'weights="all"', (run, textbook.difference(run()[1], expected))


def _gradients(case):
    """Backward alone, or both; the error is that of a small case, and none with dropout."""
    error = None
    if case.extra != "dropout":
        small = case.small()
        got = _calls(small)[1]()[:3]
        error = textbook.gradient_error([x.astype(np.float32) for x in got], small, [x.astype(np.float32) for x in _arrays(small)])
    both, backward = _calls(case)
    yield ("attention_backward", (backward, error)) if case.kind == "backward" else ("forward and backward", (both, error))


def _calls(case):
    """(forward and backward, backward alone)"""
    q, k, v, dout = _arrays(case)
    options = _options(case)
    need = ("q", "k", "v", "bias") if case.extra == "bias" else ("q", "k", "v")

    def forward():
        return qkv.attention(q, k, v, return_lse=True, **options)

    def backward(results):
        return qkv.attention_backward(dout, q, k, v, *results, need=need, **options)

    kept = forward()
    return lambda: backward(forward()), lambda: backward(kept)

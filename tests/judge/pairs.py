"""Two mistakes in one multi-head attention: a NumPy mha of stages, any of which can be exchanged for a wrong one.

`choose(n, seed)` draws pairs of stages that differ, and keeps a pair only where it differs from either mistake alone;
`source(pair)` is the file that a person would hand in.
"""

import random
from dataclasses import dataclass

import numpy as np

STAGES = {
    "project": "return x @ W[0] + b[0], x @ W[1] + b[1], x @ W[2] + b[2]",
    "split": "return y.reshape(y.shape[0], y.shape[1], heads, -1).transpose(0, 2, 1, 3)",
    "product": "return q @ k.swapaxes(-1, -2)",
    "scale": "return scores / np.sqrt(width)",
    "hide": "return np.where(mask, scores, -1e9)",
    "normalise": "return softmax(scores)",
    "late": "return weights",
    "mix": "return weights @ v",
    "merge": "return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)",
    "output": "return y @ W_o + b_o",
}
ARGUMENTS = {
    "project": "x, W, b",
    "split": "y, heads",
    "product": "q, k",
    "scale": "scores, width, embed",
    "hide": "scores, mask",
    "normalise": "scores",
    "late": "weights, mask",
    "mix": "weights, v",
    "merge": "y",
    "output": "x, y, W_o, b_o",
}
HEAD = '''"""Multi-head attention by hand."""

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)
'''
TAIL = '''

def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    q, k, v = (split(y, num_heads) for y in project(x, (W_q, W_k, W_v), (b_q, b_k, b_v)))
    scores = scale(product(q, k), q.shape[-1], x.shape[-1])
    if mask is not None:
        scores = hide(scores, mask)
    weights = normalise(scores)
    if mask is not None:
        weights = late(weights, mask)
    return output(x, merge(mix(weights, v)), W_o, b_o)
'''


@dataclass(frozen=True)
class Mistake:
    id: str
    stage: str
    body: str


def order(names):
    """Slices of a merged projection, named in this order."""
    places = ", ".join(f"x @ W[{names.index(n)}] + b[{names.index(n)}]" for n in "qkv")
    return f"return {places}"


MISTAKES = [
    Mistake("k-uses-q-weights", "project", "return x @ W[0] + b[0], x @ W[0] + b[0], x @ W[2] + b[2]"),
    Mistake("weight-not-transposed", "project", "return x @ W[0].T + b[0], x @ W[1].T + b[1], x @ W[2].T + b[2]"),
    Mistake("no-qkv-bias", "project", "return x @ W[0], x @ W[1], x @ W[2]"),
    Mistake("v-unprojected", "project", "return x @ W[0] + b[0], x @ W[1] + b[1], x"),
    Mistake("queries-as-values", "project", "return x @ W[0] + b[0], x @ W[1] + b[1], x @ W[0] + b[0]"),
    Mistake("values-from-keys", "project", "return x @ W[0] + b[0], x @ W[1] + b[1], x @ W[1] + b[1]"),
    *(Mistake(f"order-{names}", "project", order(names)) for names in ("kqv", "vkq", "qvk", "kvq", "vqk")),
    Mistake("split-without-transpose", "split", "return y.reshape(y.shape[0], heads, y.shape[1], -1)"),
    Mistake("scores-transposed", "product", "return k @ q.swapaxes(-1, -2)"),
    Mistake("absolute-scores", "product", "return np.abs(q @ k.swapaxes(-1, -2))"),
    Mistake("no-scale", "scale", "return scores"),
    Mistake("scale-sqrt-embed", "scale", "return scores / np.sqrt(embed)"),
    Mistake("scale-1-over-d", "scale", "return scores / width"),
    Mistake("scale-multiplied", "scale", "return scores * np.sqrt(width)"),
    Mistake("scale-negative", "scale", "return -scores / np.sqrt(width)"),
    Mistake("scale-other", "scale", "return 0.37 * scores"),
    Mistake("tanh-scores", "scale", "return np.tanh(scores / np.sqrt(width))"),
    Mistake("mask-polarity", "hide", "return np.where(mask, -1e9, scores)"),
    Mistake("mask-on-queries", "hide", "return np.where(mask.swapaxes(-1, -2), scores, -1e9)"),
    Mistake("mask-first-of-batch", "hide", "return np.where(mask[:1], scores, -1e9)"),
    Mistake("mask-last-of-batch", "hide", "return np.where(mask[-1:], scores, -1e9)"),
    Mistake("no-mask", "hide", "return scores"),
    Mistake("fill-zero", "hide", "return np.where(mask, scores, 0.0)"),
    Mistake("fill-other", "hide", "return np.where(mask, scores, -5.0)"),
    Mistake(
        "mask-first-head-only", "hide", "return np.concatenate([np.where(mask, scores[:, :1], -1e9), scores[:, 1:]], axis=1)"
    ),
    Mistake("softmax-over-queries", "normalise", "return softmax(scores, axis=-2)"),
    Mistake("softmax-over-heads", "normalise", "return softmax(scores, axis=1)"),
    Mistake("softmax-over-batch", "normalise", "return softmax(scores, axis=0)"),
    Mistake("sigmoid", "normalise", "return 1 / (1 + np.exp(-scores))"),
    Mistake("softmax-twice", "normalise", "return softmax(softmax(scores))"),
    Mistake("relu-weights", "normalise", "return np.maximum(scores, 0)"),
    Mistake("weights-not-normalised", "normalise", "return np.exp(scores)"),
    Mistake("normalised-by-length", "normalise", "return softmax(scores) / scores.shape[-1]"),
    Mistake("weights-mean-of-heads", "mix", "return weights.mean(axis=1, keepdims=True) @ v"),
    Mistake("heads-averaged", "mix", "return np.broadcast_to((weights @ v).mean(axis=1, keepdims=True), v.shape)"),
    Mistake("merge-without-transpose", "merge", "return y.reshape(y.shape[0], y.shape[2], -1)"),
    Mistake("heads-reversed", "merge", "return y[:, ::-1].transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)"),
    Mistake("no-output-projection", "output", "return y"),
    Mistake("no-output-bias", "output", "return y @ W_o"),
    Mistake("residual-added", "output", "return x + y @ W_o + b_o"),
    Mistake("output-transposed-weight", "output", "return y @ W_o.T + b_o"),
    Mistake("output-bias-twice", "output", "return y @ W_o + 2 * b_o"),
]


def source(mistakes):
    """The file with these mistakes in it."""
    bodies = STAGES | {mistake.stage: mistake.body for mistake in mistakes}
    return HEAD + "".join(f"\n\ndef {stage}({ARGUMENTS[stage]}):\n    {body}\n" for stage, body in bodies.items()) + TAIL


def answers(mistakes, seed):
    """What the file computes for a random problem, with and without a mask."""
    random_numbers = np.random.default_rng(seed)
    batch, length, embed, heads = 2, 7, 30, 3
    arguments = {"x": random_numbers.normal(size=(batch, length, embed))}
    for letter in "qkvo":
        arguments[f"W_{letter}"] = random_numbers.normal(size=(embed, embed)) * 0.3
        arguments[f"b_{letter}"] = random_numbers.normal(size=embed)
    mask = random_numbers.random((batch, 1, length, length)) < 0.6
    mask[..., 0] = True
    names = {}
    exec(source(mistakes), names)
    return np.concatenate([names["mha"](**arguments, num_heads=heads), names["mha"](**arguments, num_heads=heads, mask=mask)])


def choose(count, seed):
    """Pairs of different stages whose function is that of neither alone."""
    draw, chosen = random.Random(seed), []
    while len(chosen) < count:
        pair = tuple(draw.sample(MISTAKES, 2))
        if pair[0].stage == pair[1].stage or pair in chosen or pair[::-1] in chosen:
            continue
        together = answers(pair, seed)
        if all(np.abs(together - answers([one], seed)).max() > 1e-6 for one in pair):
            chosen.append(pair)
    return chosen

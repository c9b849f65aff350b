"""Right functions beside attention whose whole way is a person's own: one row at a time, on lists and numbers; a class of arrays."""

import math
import random

import numpy as np


class LayerNorm:
    def __init__(self, dim, eps=1e-5):
        self.gamma, self.beta, self.eps = np.ones(dim), np.zeros(dim), eps

    def __call__(self, x):
        return self.gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.eps) + self.beta


def stable_softmax(row):
    top = max(row)
    exponentials = [math.exp(number - top) for number in row]
    return [number / sum(exponentials) for number in exponentials]


def merge_states(m_a, l_a, o_a, m_b, l_b, o_b):
    m = max(m_a, m_b)
    fa, fb = math.exp(m_a - m), math.exp(m_b - m)
    return m, fa * l_a + fb * l_b, fa * o_a + fb * o_b


def combine_partials(o1, m1, l1, o2, m2, l2):
    m = np.maximum(m1, m2)
    a, b = np.exp(m1 - m), np.exp(m2 - m)
    return a[..., None] * o1 + b[..., None] * o2, m, a * l1 + b * l2


def one_row(query, keys):
    scores = [sum(a * b for a, b in zip(query, key)) for key in keys]
    scaled = [score / math.sqrt(len(query)) for score in scores]
    return scores, scaled, stable_softmax(scaled)


def lora(x, W, A, B, alpha, r):
    return x @ W + alpha / r * (x @ A @ B)


def cross_entropy_with_grad(scores, y):
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    grad = np.exp(logs)
    grad[np.arange(len(y)), y] -= 1
    return -logs[np.arange(len(y)), y].mean(), grad / len(y)


def cross_entropy(logits, targets):
    """The loss, and probabilities, for a gradient later."""
    logs = logits - logits.max(1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    return -logs[np.arange(len(targets)), targets].mean(), np.exp(logs)


def top_k_gating(router_logits, top_k):
    exponentials = np.exp(router_logits - router_logits.max(-1, keepdims=True))
    index = np.argsort(-exponentials, axis=-1)[:, :top_k]
    best = np.take_along_axis(exponentials, index, -1)
    return index, best / best.sum(-1, keepdims=True)


class Sampler:
    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def shares(self, logits):
        return stable_softmax([one / self.temperature for one in logits])

    def __call__(self, logits):
        return random.choices(range(len(logits)), self.shares(logits))[0]


def filtered_probabilities(logits, temperature):
    return np.array(stable_softmax(logits / temperature))


def swiglu(x, expert):
    gate = x @ expert["gate"]
    return gate / (1 + np.exp(-gate)) * (x @ expert["up"]) @ expert["down"]


def layernorm_of_rows(x, gamma, beta):
    centred = x - x.mean(axis=1, keepdims=True)
    return gamma * centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) + beta


class SwiGLU:
    def __init__(self, W_gate, W_up, W_down):
        self.W_gate, self.W_up, self.W_down = W_gate, W_up, W_down

    def __call__(self, x):
        gate = x @ self.W_gate
        return (gate / (1 + np.exp(-gate)) * (x @ self.W_up)) @ self.W_down


RIGHT = ["LayerNorm", "stable_softmax", "merge_states", "combine_partials", "one_row", "lora", "cross_entropy_with_grad", "top_k_gating"]
RIGHT += ["cross_entropy", "Sampler", "filtered_probabilities", "swiglu", "layernorm_of_rows", "SwiGLU"]

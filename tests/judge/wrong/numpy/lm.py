"""A training step of the toy model by hand gone wrong."""

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class Step:
    """Right: forward, loss, gradients; what follows changes one part."""

    def inputs(self, params, tokens):
        return params["embed"][tokens] + params["position"][: tokens.shape[1]]

    def keep(self, T):
        return np.tri(T, dtype=bool)

    def targets(self, tokens):
        return tokens[:, 1:]

    def scale(self, E):
        return E**-0.5

    def loss(self, logits, targets):
        """(loss, its gradient by the logits)"""
        p = softmax(logits)
        rows, columns = np.indices(targets.shape)
        one_hot = np.zeros_like(p)
        one_hot[rows, columns, targets] = 1
        return -np.log(p[rows, columns, targets]).mean(), (p - one_hot) / targets.size

    def gradients(self, params, tokens):
        seen, targets = tokens[:, :-1], self.targets(tokens)
        T = seen.shape[1]
        h = self.inputs(params, seen)
        q, k, v = h @ params["W_q"], h @ params["W_k"], h @ params["W_v"]
        c = self.scale(h.shape[-1])
        w = softmax(np.where(self.keep(T), q @ k.swapaxes(1, 2) * c, -np.inf))
        a = w @ v
        loss, dlogits = self.loss(a @ params["head"] + params["head_bias"], targets)
        g = {"head": np.einsum("bte,btv->ev", a, dlogits), "head_bias": dlogits.sum(axis=(0, 1))}
        da = dlogits @ params["head"].T
        dw = da @ v.swapaxes(1, 2)
        ds = w * (dw - (w * dw).sum(axis=-1, keepdims=True)) * c
        dq, dk, dv = ds @ k, ds.swapaxes(1, 2) @ q, w.swapaxes(1, 2) @ da
        for name, d in (("W_q", dq), ("W_k", dk), ("W_v", dv)):
            g[name] = np.einsum("bte,btf->ef", h, d)
        dh = dq @ params["W_q"].T + dk @ params["W_k"].T + dv @ params["W_v"].T
        g["embed"] = np.zeros_like(params["embed"])
        np.add.at(g["embed"], seen, dh)
        g["position"] = np.zeros_like(params["position"])
        g["position"][:T] = dh.sum(axis=0)
        return loss, g

    def update(self, params, g, lr):
        for name in params:
            params[name] = params[name] - lr * g[name]

    def __call__(self, params, tokens, lr):
        loss, g = self.gradients(params, tokens)
        self.update(params, g, lr)
        return loss, params


class NotShifted(Step):
    def targets(self, tokens):
        return tokens[:, :-1]


class OverTokens(Step):
    def loss(self, logits, targets):
        p = softmax(logits, axis=1)
        rows, columns = np.indices(targets.shape)
        one_hot = np.zeros_like(p)
        one_hot[rows, columns, targets] = 1
        gradient = p * one_hot.sum(axis=1, keepdims=True) - one_hot
        return -np.log(p[rows, columns, targets]).mean(), gradient / targets.size


class Uncaused(Step):
    def keep(self, T):
        return np.ones((T, T), dtype=bool)


class Unplaced(Step):
    def inputs(self, params, tokens):
        return params["embed"][tokens]

    def update(self, params, g, lr):
        for name in set(params) - {"position"}:
            params[name] = params[name] - lr * g[name]


class Uphill(Step):
    def update(self, params, g, lr):
        for name in params:
            params[name] = params[name] + lr * g[name]


class Summed(Step):
    def loss(self, logits, targets):
        loss, gradient = super().loss(logits, targets)
        return loss * targets.size, gradient * targets.size


class LastOnly(Step):
    def loss(self, logits, targets):
        loss, gradient = super().loss(logits[:, -1:], targets[:, -1:])
        whole = np.zeros_like(logits)
        whole[:, -1:] = gradient
        return loss, whole


class Unscaled(Step):
    def scale(self, E):
        return 1.0


def train_step(params, tokens, lr):
    """The model learns to repeat what it sees."""
    return NotShifted()(params, tokens, lr)


def train_step_over_tokens(params, tokens, lr):
    return OverTokens()(params, tokens, lr)


def train_step_uncaused(params, tokens, lr):
    return Uncaused()(params, tokens, lr)


grads = {}


def train_step_gathers(params, tokens, lr):
    """grads is a global that is added to and never emptied."""
    loss, g = Step().gradients(params, tokens)
    for name in g:
        grads[name] = grads[name] + g[name] if name in grads and grads[name].shape == g[name].shape else g[name]
        params[name] = params[name] - lr * grads[name]
    return loss, params


def train_step_unplaced(params, tokens, lr):
    return Unplaced()(params, tokens, lr)


def train_step_uphill(params, tokens, lr):
    return Uphill()(params, tokens, lr)


def train_step_summed(params, tokens, lr):
    return Summed()(params, tokens, lr)


def train_step_last_only(params, tokens, lr):
    return LastOnly()(params, tokens, lr)


def train_step_unscaled(params, tokens, lr):
    return Unscaled()(params, tokens, lr)


EXPECTED = {
    "train_step": "lm-targets-not-shifted",
    "train_step_over_tokens": "lm-loss-axis",
    "train_step_uncaused": ("lm-no-causal-mask", "no-causal"),
    "train_step_gathers": "lm-gradients-not-zeroed",
    "train_step_unplaced": "lm-no-positions",
    "train_step_uphill": "lm-step-ascent",
    "train_step_summed": "lm-loss-sum",
    "train_step_last_only": "lm-last-token-only",
    "train_step_unscaled": "no-scale",
}
TASK = {name: "lm" for name in EXPECTED}

"""More of a training step by hand gone wrong."""

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

    def logits(self, a, params):
        return a @ params["head"] + params["head_bias"]

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
        loss, dlogits = self.loss(self.logits(a, params), targets)
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


class Rolled(Step):
    def targets(self, tokens):
        return np.roll(tokens[:, :-1], -1, axis=1)


class Backwards(Step):
    def targets(self, tokens):
        seen = tokens[:, :-1]
        return np.concatenate([seen[:, :1], seen[:, :-1]], axis=1)


class Viewed(Step):
    """reshape for transpose: [B, V, T] of [B, T, V]."""

    def loss(self, logits, targets):
        B, T, V = logits.shape
        mixed = logits.reshape(B, V, T).transpose(0, 2, 1)
        loss, gradient = super().loss(mixed, targets)
        return loss, gradient.transpose(0, 2, 1).reshape(B, T, V)


class OfProbabilities(Step):
    def loss(self, logits, targets):
        p = softmax(logits)
        loss, gradient = super().loss(p, targets)
        return loss, p * (gradient - (p * gradient).sum(axis=-1, keepdims=True))


class WithoutSoftmax(Step):
    """d -log p / d logits is taken for -1 at the target."""

    def loss(self, logits, targets):
        loss, gradient = super().loss(logits, targets)
        return loss, gradient - softmax(logits) / targets.size


class NotAveraged(Step):
    def loss(self, logits, targets):
        loss, gradient = super().loss(logits, targets)
        return loss, gradient * targets.size


class Still(Step):
    def update(self, params, g, lr):
        pass


class FullRate(Step):
    def update(self, params, g, lr):
        for name in params:
            params[name] = params[name] - g[name]


class WithoutLast(Step):
    def loss(self, logits, targets):
        loss, gradient = super().loss(logits[:, :-1], targets[:, :-1])
        return loss, np.pad(gradient, ((0, 0), (0, 1), (0, 0)))


class WithoutFirst(Step):
    def loss(self, logits, targets):
        loss, gradient = super().loss(logits[:, 1:], targets[:, 1:])
        return loss, np.pad(gradient, ((0, 0), (1, 0), (0, 0)))


class Keeps(Step):
    """Some parameters are left out of the update."""

    def __init__(self, *kept):
        self.kept = kept

    def update(self, params, g, lr):
        for name in params:
            if name not in self.kept:
                params[name] = params[name] - lr * g[name]


class Overwrites(Step):
    """g[tokens] += dh: a token that stands twice counts once."""

    def gradients(self, params, tokens):
        loss, g = super().gradients(params, tokens)
        seen = tokens[:, :-1]
        g["embed"] = np.zeros_like(params["embed"])
        g["embed"][seen] += self.dh(params, tokens)
        return loss, g

    def dh(self, params, tokens):
        """The gradient by the embedded tokens: that of a model whose tokens are all different."""
        seen = tokens[:, :-1]
        places = np.arange(seen.size).reshape(seen.shape)
        spread = dict(params, embed=params["embed"][seen].reshape(seen.size, -1))
        everything = Apart(seen.size, self.targets(tokens))
        _, g = everything.gradients(spread, np.concatenate([places, places[:, :1]], axis=1))
        return g["embed"].reshape(*seen.shape, -1)


class Apart(Step):
    def __init__(self, size, targets):
        self.size, self.own_targets = size, targets

    def targets(self, tokens):
        return self.own_targets


class MeanPositions(Step):
    def gradients(self, params, tokens):
        loss, g = super().gradients(params, tokens)
        g["position"] = g["position"] / len(tokens)
        return loss, g


class NoHeadBias(Keeps):
    def __init__(self):
        super().__init__("head_bias")

    def logits(self, a, params):
        return a @ params["head"]


class NoAttention(Step):
    """The head reads what the attention reads."""

    def gradients(self, params, tokens):
        seen, targets = tokens[:, :-1], self.targets(tokens)
        h = self.inputs(params, seen)
        loss, d = self.loss(self.logits(h, params), targets)
        g = {name: np.zeros_like(value) for name, value in params.items()}
        g["head"], g["head_bias"] = np.einsum("bte,btv->ev", h, d), d.sum(axis=(0, 1))
        dh = d @ params["head"].T
        np.add.at(g["embed"], seen, dh)
        g["position"][: seen.shape[1]] = dh.sum(axis=0)
        return loss, g


def probabilities_and_targets(logits, targets):
    return softmax(logits), np.eye(logits.shape[-1])[targets]


class SummedGradient(Step):
    """p - one_hot, as in the formula for one token."""

    def loss(self, logits, targets):
        p, one_hot = probabilities_and_targets(logits, targets)
        return -(one_hot * np.log(p)).sum(axis=-1).mean(), p - one_hot


class TargetsOnly(Step):
    """-one_hot / N: softmax is forgotten."""

    def loss(self, logits, targets):
        p, one_hot = probabilities_and_targets(logits, targets)
        return -(one_hot * np.log(p)).sum(axis=-1).mean(), -one_hot / targets.size


class LastWins(Overwrites):
    """= in a loop, where += is meant."""

    def gradients(self, params, tokens):
        loss, g = Step.gradients(self, params, tokens)
        g["embed"] = np.zeros_like(params["embed"])
        for row, gradients in zip(tokens[:, :-1], self.dh(params, tokens)):
            for token, gradient in zip(row, gradients):
                g["embed"][token] = gradient
        return loss, g


class AveragedPlaces(Step):
    """The learning rate of the positions is that of one sequence."""

    def update(self, params, g, lr):
        for name in params:
            params[name] = params[name] - (lr / self.batch if name == "position" else lr) * g[name]

    def __call__(self, params, tokens, lr):
        self.batch = tokens.shape[0]
        return super().__call__(params, tokens, lr)


def train_step_rolled(params, tokens, lr):
    return Rolled()(params, tokens, lr)


def train_step_backwards(params, tokens, lr):
    return Backwards()(params, tokens, lr)


def train_step_viewed(params, tokens, lr):
    return Viewed()(params, tokens, lr)


def train_step_of_probabilities(params, tokens, lr):
    return OfProbabilities()(params, tokens, lr)


def train_step_without_softmax(params, tokens, lr):
    return WithoutSoftmax()(params, tokens, lr)


def train_step_not_averaged(params, tokens, lr):
    return NotAveraged()(params, tokens, lr)


def train_step_still(params, tokens, lr):
    return Still()(params, tokens, lr)


def train_step_full_rate(params, tokens, lr):
    return FullRate()(params, tokens, lr)


def train_step_without_last(params, tokens, lr):
    return WithoutLast()(params, tokens, lr)


def train_step_without_first(params, tokens, lr):
    return WithoutFirst()(params, tokens, lr)


def train_step_positions_kept(params, tokens, lr):
    return Keeps("position")(params, tokens, lr)


def train_step_embedding_kept(params, tokens, lr):
    return Keeps("embed")(params, tokens, lr)


def train_step_overwrites(params, tokens, lr):
    return Overwrites()(params, tokens, lr)


def train_step_mean_positions(params, tokens, lr):
    return MeanPositions()(params, tokens, lr)


def train_step_no_head_bias(params, tokens, lr):
    return NoHeadBias()(params, tokens, lr)


def train_step_no_attention(params, tokens, lr):
    return NoAttention()(params, tokens, lr)


def train_step_summed_gradient(params, tokens, lr):
    return SummedGradient()(params, tokens, lr)


def train_step_targets_only(params, tokens, lr):
    return TargetsOnly()(params, tokens, lr)


def train_step_last_wins(params, tokens, lr):
    return LastWins()(params, tokens, lr)


def train_step_averaged_places(params, tokens, lr):
    return AveragedPlaces()(params, tokens, lr)


EXPECTED = {
    "train_step_rolled": "lm-targets-rolled",
    "train_step_backwards": "lm-targets-backwards",
    "train_step_viewed": "lm-logits-viewed",
    "train_step_of_probabilities": "lm-softmax-before-loss",
    "train_step_without_softmax": "lm-gradient-without-softmax",
    "train_step_not_averaged": "lm-gradient-not-averaged",
    "train_step_still": "lm-no-step",
    "train_step_full_rate": "lm-rate-ignored",
    "train_step_without_last": "lm-last-token-missing",
    "train_step_without_first": "lm-first-token-missing",
    "train_step_positions_kept": "lm-positions-not-trained",
    "train_step_embedding_kept": "lm-embedding-not-trained",
    "train_step_overwrites": "lm-embedding-gradient-overwritten",
    "train_step_mean_positions": "lm-position-gradient-mean",
    "train_step_no_head_bias": "lm-no-head-bias",
    "train_step_no_attention": "lm-no-attention",
    "train_step_summed_gradient": "lm-gradient-not-averaged",
    "train_step_targets_only": "lm-gradient-without-softmax",
    "train_step_last_wins": "lm-embedding-gradient-overwritten",
    "train_step_averaged_places": "lm-position-gradient-mean",
}
TASK = {name: "lm" for name in EXPECTED}

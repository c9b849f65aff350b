"""One training step of the toy language model, gradients by hand. Article 003.

    params["embed"]              [V, E]       a row for each character
    params["position"]           [T, E]       a row for each position
    params["W_q", "W_k", "W_v"]  [E, E]       y = h W, no biases; one causal head, scale 1/sqrt(E)
    params["head"]               [E, V]       logits of the next character
    params["head_bias"]          [V]
    tokens                       [B, T + 1]   integers: T inputs, and what follows each of them
    lr                                        step of plain SGD
    returns (loss, params): loss before the step, a number; params after it (a new dict, or the same one changed)

    h = embed[input] + position;  a = causal attention of h, without W_o;  logits = a head + head_bias
    loss = mean over all B T places of -log softmax(logits)[the character that follows]

Judged: three steps one after the other: loss and every parameter, so a gradient that is missing, or summed wrongly, is named.
"""

import numpy as np


def softmax(x):
    # solution: over the last axis
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)
    # end


def train_step(params, tokens, lr):
    # solution: forward, loss, backward, step
    inputs, targets = tokens[:, :-1], tokens[:, 1:]                  # [B, T] each: what follows token t is token t + 1
    B, T = inputs.shape
    E = params["embed"].shape[1]
    W_q, W_k, W_v, head = params["W_q"], params["W_k"], params["W_v"], params["head"]

    # Forward
    h = params["embed"][inputs] + params["position"][:T]             # [B, T, E]
    q, k, v = h @ W_q, h @ W_k, h @ W_v                              # [B, T, E] each
    past = np.tril(np.ones((T, T), dtype=bool))
    weights = softmax(np.where(past, q @ k.transpose(0, 2, 1) / np.sqrt(E), -np.inf))      # [B, T, T]
    a = weights @ v                                                  # [B, T, E]
    probability = softmax(a @ head + params["head_bias"])            # [B, T, V]
    right = np.eye(head.shape[1])[targets]                           # [B, T, V]: 1 at the character that follows
    loss = -np.log((probability * right).sum(axis=-1)).mean()

    # Backward, the same lines from the last to the first
    dlogits = (probability - right) / (B * T)                        # of softmax and logarithm together
    da = dlogits @ head.T
    dv = weights.transpose(0, 2, 1) @ da
    dweights = da @ v.transpose(0, 2, 1)
    dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True)) / np.sqrt(E)
    dq, dk = dscores @ k, dscores.transpose(0, 2, 1) @ q
    dh = dq @ W_q.T + dk @ W_k.T + dv @ W_v.T
    gradient = {name: np.einsum("bte,btf->ef", h, d) for name, d in (("W_q", dq), ("W_k", dk), ("W_v", dv))}
    gradient["head"] = np.einsum("bte,btv->ev", a, dlogits)
    gradient["head_bias"] = dlogits.sum(axis=(0, 1))
    gradient["embed"] = np.zeros_like(params["embed"])
    np.add.at(gradient["embed"], inputs, dh)                         # a character that occurs twice gets both
    gradient["position"] = np.zeros_like(params["position"])
    gradient["position"][:T] = dh.sum(axis=0)                        # sequences share positions

    return loss, {name: value - lr * gradient[name] for name, value in params.items()}
    # end

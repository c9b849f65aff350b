"""Right, in NumPy: the tasks with parameters."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def v1(x, W_q, b_q, W_k, b_k, W_v, b_v):
    q, k, v = np.dot(x, W_q) + b_q, np.dot(x, W_k) + b_k, np.dot(x, W_v) + b_v
    return softmax(np.matmul(q, np.transpose(k, (0, 2, 1))) / x.shape[-1] ** 0.5) @ v


def v2(x, W_qkv, b_qkv):
    E = x.shape[-1]
    qkv = x @ W_qkv + b_qkv
    q, k, v = qkv[..., :E], qkv[..., E : 2 * E], qkv[..., 2 * E :]
    return softmax(q @ k.swapaxes(1, 2) / np.sqrt(E)) @ v


def v3(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(x.shape[-1])
    if mask is not None:
        scores[mask == 0] = -1e20
    return softmax(scores) @ v @ W_o + b_o


def v4(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, mask=None):
    out = []
    for n in range(len(x)):
        q, k, v = x[n] @ W_q + b_q, x[n] @ W_k + b_k, x[n] @ W_v + b_v
        scores = q @ k.T / np.sqrt(q.shape[-1])
        if mask is not None:
            scores = np.where(mask[n], scores, -1e9)
        out.append(softmax(scores) @ v @ W_o + b_o)
    return np.stack(out)


def self_attention(x, wq, bq, wk, bk, wv, bv):
    q, k, v = x @ wq + bq, x @ wk + bk, x @ wv + bv
    return softmax(q @ k.transpose(0, 2, 1) / np.sqrt(wk.shape[1])) @ v


def single_head(x, W_q, W_k, W_v, W_o):
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(x.shape[-1])
    return softmax(np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)) @ v @ W_o


def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    B, L, E = x.shape

    def heads(y):
        return y.reshape(B, L, num_heads, E // num_heads).transpose(0, 2, 1, 3)

    scores = heads(x @ W_q + b_q) @ heads(x @ W_k + b_k).transpose(0, 1, 3, 2) / np.sqrt(E // num_heads)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return (softmax(scores) @ heads(x @ W_v + b_v)).transpose(0, 2, 1, 3).reshape(B, L, E) @ W_o + b_o


def mha_loop(x, Wq, bq, Wk, bk, Wv, bv, Wo, bo, n_heads, mask=None):
    """The sum over heads of out_h W_o[h]: no concatenation at all."""
    d = x.shape[-1] // n_heads
    y = np.zeros_like(x) + bo
    for h in range(n_heads):
        s = slice(h * d, (h + 1) * d)
        q, k, v = x @ Wq[:, s] + bq[s], x @ Wk[:, s] + bk[s], x @ Wv[:, s] + bv[s]
        scores = np.einsum("bqd,bkd->bqk", q, k) / d**0.5
        if mask is not None:
            scores = np.where(mask[:, 0], scores, -1e30)
        y = y + softmax(scores) @ v @ Wo[s]
    return y


def gqa(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    B, L, E = x.shape
    d, group = E // num_heads, num_heads // num_kv_heads
    q = (x @ W_q).reshape(B, L, num_heads, d)
    k, v = (x @ W_k).reshape(B, L, num_kv_heads, d), (x @ W_v).reshape(B, L, num_kv_heads, d)
    out = np.empty_like(q)
    for h in range(num_heads):
        scores = q[:, :, h] @ k[:, :, h // group].transpose(0, 2, 1) / np.sqrt(d)
        out[:, :, h] = softmax(scores) @ v[:, :, h // group]
    return out.reshape(B, L, E) @ W_o


def cross_attention(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    def heads(y):
        return y.reshape(*y.shape[:2], num_heads, -1).swapaxes(1, 2)

    q, k, v = heads(x @ W_q + b_q), heads(memory @ W_k + b_k), heads(memory @ W_v + b_v)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return (softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ W_o + b_o


def cached_attention(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    def heads(y):
        return y.reshape(*y.shape[:2], num_heads, -1).swapaxes(1, 2)

    q, k, v = heads(x @ W_q), heads(x @ W_k), heads(x @ W_v)
    if cache is not None:
        k, v = np.concatenate([cache[0], k], axis=2), np.concatenate([cache[1], v], axis=2)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    n, total = scores.shape[-2:]
    scores = np.where(np.tri(n, total, total - n, dtype=bool), scores, -np.inf)
    return (softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ W_o, (k, v)


def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    scale = x.shape[-1] ** -0.5
    p = softmax(q @ k.swapaxes(1, 2) * scale)
    out = p @ v
    d_out = dout @ W_o.T
    dp = d_out @ v.swapaxes(1, 2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    dq, dk, dv = ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ d_out

    def weight(a, b):
        return np.tensordot(a, b, axes=((0, 1), (0, 1)))

    return dq @ W_q.T + dk @ W_k.T + dv @ W_v.T, weight(x, dq), weight(x, dk), weight(x, dv), weight(out, dout)


def train_step(params, tokens, lr):
    seen, targets = tokens[:, :-1], tokens[:, 1:]
    T = seen.shape[1]
    h = params["embed"][seen] + params["position"][:T]
    q, k, v = h @ params["W_q"], h @ params["W_k"], h @ params["W_v"]
    scale = h.shape[-1] ** -0.5
    w = softmax(np.where(np.tri(T, dtype=bool), q @ k.swapaxes(1, 2) * scale, -np.inf))
    a = w @ v
    p = softmax(a @ params["head"] + params["head_bias"])
    loss = -np.log(np.take_along_axis(p, targets[..., None], -1)).mean()
    d = p.copy()
    np.put_along_axis(d, targets[..., None], np.take_along_axis(d, targets[..., None], -1) - 1, -1)
    d /= targets.size
    da = d @ params["head"].T
    dw = da @ v.swapaxes(1, 2)
    ds = w * (dw - (w * dw).sum(-1, keepdims=True)) * scale
    dq, dk, dv = ds @ k, ds.swapaxes(1, 2) @ q, w.swapaxes(1, 2) @ da
    dh = dq @ params["W_q"].T + dk @ params["W_k"].T + dv @ params["W_v"].T
    new = {name: value.copy() for name, value in params.items()}
    np.subtract.at(new["embed"], seen, lr * dh)
    new["position"][:T] -= lr * dh.sum(axis=0)
    for name, g in (("W_q", dq), ("W_k", dk), ("W_v", dv)):
        new[name] -= lr * np.einsum("bte,btf->ef", h, g)
    new["head"] -= lr * np.einsum("bte,btv->ev", a, d)
    new["head_bias"] -= lr * d.sum(axis=(0, 1))
    return loss, new


RIGHT = [
    "v1",
    "v2",
    "v3",
    "v4",
    "self_attention",
    "single_head",
    "mha",
    "mha_loop",
    "gqa",
    "cross_attention",
    "cached_attention",
    "layer_backward",
    "train_step",
]
TASK = {name: name for name in ("v1", "v2", "v3", "v4")} | {"mha_loop": "mha", "layer_backward": "backward"}
CONVENTION = {}

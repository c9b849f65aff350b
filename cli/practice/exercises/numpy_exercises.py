"""The exercises as functions of NumPy arrays, filled in: "# [NAME]" begins one, "# solution: words" a gap.

`qkv practice` prints one under what it asks for (contracts.txt).
"""

import numpy as np


# [sdpa]
def sdpa(q, k, v, mask=None):
    # solution: scores, scale, mask, softmax, values
    scores = q @ np.swapaxes(k, -1, -2)                              # [B, H, Tq, Tk]: query i times key j
    scores = scores / np.sqrt(k.shape[-1])                           # otherwise they grow with d, and softmax picks one key
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # before the softmax, so that the rest still sums to 1
    scores = scores - scores.max(axis=-1, keepdims=True)             # the same softmax; exp of 0 at most cannot overflow
    weights = np.exp(scores)
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, Tq, Tk]: over the keys, each row sums to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    out = weights @ v                                                # [B, H, Tq, d]: a mean of values for each query
    return out, weights


# [v1]
def v1(x, W_q, b_q, W_k, b_k, W_v, b_v):
    # solution: projections, scores, softmax, values
    q = x @ W_q + b_q                                                # [B, L, E] what each token asks for
    k = x @ W_k + b_k                                                # [B, L, E] how it can be found
    v = x @ W_v + b_v                                                # [B, L, E] what it hands over
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    return weights @ v, weights                                      # [B, L, E]


# [v2]
def v2(x, W_qkv, b_qkv):
    # solution: one projection, split in three, attention
    qkv = x @ W_qkv + b_qkv                                          # [B, L, 3E]
    q, k, v = np.split(qkv, 3, axis=-1)                              # three times [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    return weights @ v, weights                                      # [B, L, E]


# [v3]
def v3(x, W_qkv, b_qkv, W_o, b_o, mask=None):
    # solution: projection, scores, mask, softmax, values, output projection
    q, k, v = np.split(x @ W_qkv + b_qkv, 3, axis=-1)                # three times [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # before the softmax: exp makes 0 of it
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = weights @ v                                            # [B, L, E]
    return context @ W_o + b_o, weights                              # [B, L, E]


# [v4]
def v4(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, mask=None):
    # solution: projections, scores, mask, softmax, values, output projection
    q = x @ W_q + b_q                                                # [B, L, E]
    k = x @ W_k + b_k                                                # [B, L, E]
    v = x @ W_v + b_v                                                # [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # fill before the softmax
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = weights @ v                                            # [B, L, E]
    return context @ W_o + b_o, weights                              # [B, L, E]


# [self-attention]
def self_attention(x, W_q, b_q, W_k, b_k, W_v, b_v):
    # solution: projections, scores, softmax, values
    q = x @ W_q + b_q                                                # [B, L, d_k]
    k = x @ W_k + b_k                                                # [B, L, d_k]
    v = x @ W_v + b_v                                                # [B, L, d_k]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]: a score sums d_k products, not E
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], rows sum to 1
    return weights @ v, weights                                      # [B, L, d_k]


# [single-head]
def single_head(x, W_q, W_k, W_v, W_o):
    # solution: projections, causal scores, softmax, values, output projection
    q, k, v = x @ W_q, x @ W_k, x @ W_v                              # each [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, L, L]
    past = np.tril(np.ones(scores.shape[-2:], dtype=bool))           # [L, L]: key j <= query i
    scores = np.where(past, scores, -np.inf)                         # no row is empty: each token sees itself
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L], 0 above the diagonal
    return (weights @ v) @ W_o, weights                              # [B, L, E]


# [causal]
def causal_attention(q, k, v):
    # solution: scores, causal mask, softmax, values
    Tq, Tk = q.shape[-2], k.shape[-2]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, H, Tq, Tk]
    query = np.arange(Tq)[:, None] + (Tk - Tq)                       # [Tq, 1]: position of a query among all tokens
    key = np.arange(Tk)[None, :]                                     # [1, Tk]
    scores = np.where(key <= query, scores, -np.inf)                 # <= : a token sees itself
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, Tq, Tk]
    return weights @ v, weights                                      # [B, H, Tq, d]


# [mha]
def mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    # solution: projections, heads, attention, heads joined, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, L, E] -> [B, H, L, d]
        return y.reshape(B, L, num_heads, d).transpose(0, 2, 1, 3)   # cut the columns first, then move the heads forward

    q, k, v = heads(x @ W_q + b_q), heads(x @ W_k + b_k), heads(x @ W_v + b_v)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, L]: the width of a head, not E
    if mask is not None:
        scores = np.where(mask, scores, -1e20)                       # [B, 1, L, L] serves all heads
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, H, L, L], rows sum to 1
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = weights @ v                                            # [B, H, L, d]
    context = context.transpose(0, 2, 1, 3).reshape(B, L, E)         # back: heads beside columns, then joined
    return context @ W_o + b_o, weights                              # [B, L, E]


# [gqa]
def gqa(x, W_q, W_k, W_v, W_o, num_heads, num_kv_heads):
    # solution: projections, heads, keys and values for each group, attention, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, L, n d] -> [B, n, L, d]
        return y.reshape(B, L, -1, d).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ W_q), heads(x @ W_k), heads(x @ W_v)         # [B, H, L, d], and twice [B, Hkv, L, d]
    group = num_heads // num_kv_heads
    k = np.repeat(k, group, axis=1)                                  # [B, H, L, d] as 0 0 0 1 1 1; tile would give 0 1 0 1 0 1
    v = np.repeat(v, group, axis=1)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, L]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, E)   # [B, L, E]
    return context @ W_o, weights


# [cross]
def cross_attention(x, memory, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None):
    # solution: queries of x, keys and values of memory, attention in heads, output projection
    B, L, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, T, E] -> [B, H, T, d]; T is L or M
        return y.reshape(B, -1, num_heads, d).transpose(0, 2, 1, 3)

    q = heads(x @ W_q + b_q)                                         # [B, H, L, d]
    k = heads(memory @ W_k + b_k)                                    # [B, H, M, d]
    v = heads(memory @ W_v + b_v)                                    # [B, H, M, d]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, L, M]
    if mask is not None:
        scores = np.where(mask, scores, -1e20)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # over the tokens of memory
    if mask is not None:
        weights = np.where(mask, weights, 0.0)                       # only a row that sees nothing changes: 0, not a mean
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, E)   # [B, L, E]
    return context @ W_o + b_o, weights


# [cache]
def cached_attention(x, W_q, W_k, W_v, W_o, num_heads, cache=None):
    # solution: project the new tokens, append keys and values, attend over all of them
    B, n, E = x.shape
    d = E // num_heads

    def heads(y):                                                    # [B, n, E] -> [B, H, n, d]
        return y.reshape(B, n, num_heads, d).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ W_q), heads(x @ W_k), heads(x @ W_v)         # of the new tokens only
    if cache is not None:
        past_k, past_v = cache
        k = np.concatenate([past_k, k], axis=2)                      # [B, H, T, d]: the past first
        v = np.concatenate([past_v, v], axis=2)
    T = k.shape[2]                                                   # tokens so far
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d)                 # [B, H, n, T]
    query = np.arange(T - n, T)[:, None]                             # [n, 1]: the new tokens are the last n
    scores = np.where(np.arange(T) <= query, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(B, n, E)
    return context @ W_o, (k, v)


# [rope]
def rope(x, positions, base=10000.0):
    # solution: an angle for each token and pair, then the rotation
    half = x.shape[-1] // 2
    frequency = base ** (-np.arange(half) / half)                    # [d/2]: 1 for the first pair, slow for the last
    angle = np.asarray(positions)[:, None] * frequency               # [T, d/2]
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = x[..., :half], x[..., half:]                     # [B, H, T, d/2] each
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rope_attention(q, k, v, positions, base=10000.0):
    # solution: turn what is compared, then attention
    q, k = rope(q, positions, base), rope(k, positions, base)        # q and k; values carry no position
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, H, T, T]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v, weights                                      # [B, H, T, d]


# [flash]
def flash(q, k, v, block_size, causal=False):
    # solution: for each block: scores, new maximum, rescale what was summed, add
    Tq, Tk = q.shape[-2], k.shape[-2]
    query = np.arange(Tq)[:, None] + (Tk - Tq)                       # [Tq, 1]
    largest = np.full(q.shape[:-1] + (1,), -1e30)                    # [B, H, Tq, 1]; finite: -inf - -inf would be NaN
    total = np.zeros_like(largest)                                   # [B, H, Tq, 1]
    out = np.zeros_like(q)                                           # [B, H, Tq, d]
    for begin in range(0, Tk, block_size):
        keys = np.arange(begin, min(begin + block_size, Tk))         # the last block may be short
        scores = q @ np.swapaxes(k[..., keys, :], -1, -2) / np.sqrt(q.shape[-1])     # [B, H, Tq, n]
        if causal:
            scores = np.where(keys <= query, scores, -np.inf)
        new = np.maximum(largest, scores.max(axis=-1, keepdims=True))
        rescale = np.exp(largest - new)                              # sums so far had the old maximum in their exponents
        weights = np.exp(scores - new)                               # [B, H, Tq, n], not yet divided
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        out = out * rescale + weights @ v[..., keys, :]
        largest = new
    return out / total                                               # once, at the end


# [linear]
def linear_attention(q, k, v, causal=False):
    # solution: features, sums over keys, division
    def phi(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))      # elu(x) + 1: always above 0

    q, k = phi(q), phi(k)
    if not causal:
        state = np.swapaxes(k, -1, -2) @ v                           # [B, H, d, d]: sum over j of k_j v_j
        total = k.sum(axis=-2)[..., None]                            # [B, H, d, 1]
        return (q @ state) / (q @ total)                             # [B, H, Tq, d]
    out = np.zeros_like(v)
    state = np.zeros(k.shape[:2] + (k.shape[-1], v.shape[-1]))       # [B, H, d, d]
    total = np.zeros(k.shape[:2] + (k.shape[-1],))                   # [B, H, d]
    for i in range(k.shape[-2]):                                     # token by token: the state is all that is remembered
        state += k[:, :, i, :, None] * v[:, :, i, None, :]
        total += k[:, :, i]
        norm = (q[:, :, i] * total).sum(axis=-1, keepdims=True)      # [B, H, 1]
        out[:, :, i] = (q[:, :, i, None, :] @ state)[:, :, 0] / norm
    return out


# [backward]
def attention_backward(q, k, v, dout, causal=False):
    # solution: weights again, then back through values, softmax, scale and scores
    scale = 1 / np.sqrt(q.shape[-1])
    scores = q @ np.swapaxes(k, -1, -2) * scale                      # [..., Tq, Tk]
    if causal:
        Tq, Tk = scores.shape[-2:]
        scores = np.where(np.arange(Tk) <= np.arange(Tq)[:, None] + (Tk - Tq), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [..., Tq, Tk]

    dv = np.swapaxes(weights, -1, -2) @ dout                         # out = weights v
    dweights = dout @ np.swapaxes(v, -1, -2)                         # [..., Tq, Tk]
    row = (weights * dweights).sum(axis=-1, keepdims=True)           # [..., Tq, 1]: softmax binds the weights of a row
    dscores = weights * (dweights - row)                             # [..., Tq, Tk]; 0 where masked, since weights are
    dq = dscores @ k * scale                                         # scores = scale q k^T
    dk = np.swapaxes(dscores, -1, -2) @ q * scale
    return dq, dk, dv


def layer_backward(x, W_q, W_k, W_v, W_o, dout):
    # solution: forward again, then back through output projection, attention, projections
    q, k, v = x @ W_q, x @ W_k, x @ W_v                              # [B, L, E]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)          # [B, L, L]
    context = weights @ v                                            # [B, L, E]

    dW_o = np.einsum("ble,blf->ef", context, dout)                   # out = context W_o; sums over batch and tokens
    dq, dk, dv = attention_backward(q, k, v, dout @ W_o.T)
    dx = dq @ W_q.T + dk @ W_k.T + dv @ W_v.T                        # x goes three ways, so three gradients meet in it
    dW_q, dW_k, dW_v = (np.einsum("ble,blf->ef", x, d) for d in (dq, dk, dv))
    return dx, dW_q, dW_k, dW_v, dW_o


# [dropout]
generator = np.random.default_rng()


def dropout_attention(q, k, v, p, training):
    # solution: weights, dropout, values
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])       # [B, H, Tq, Tk]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    if training:
        kept = generator.random(weights.shape) >= p                  # each weight by itself
        weights = weights * kept / (1 - p)                           # so that the mean stays; rows no longer sum to 1
    return weights @ v                                               # [B, H, Tq, d]


# [lm]
def softmax(x):
    # solution: over the last axis
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


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

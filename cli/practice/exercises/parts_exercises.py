"""Functions beside attention, filled in, of NumPy arrays and of PyTorch tensors: `xp` is either module. Otherwise as numpy_exercises.py."""

from either import xp


# [one-row]
def one_row(q, k):
    # solution: the function
    scores = k @ q                                                   # [S]: q times each key
    scaled = scores / q.shape[-1] ** 0.5                             # otherwise they grow with d
    weights = xp.exp(scaled - scaled.max())                          # 0 at most, so that exp cannot overflow
    weights = weights / weights.sum()                                # [S]: positive, with sum 1
    return scores, scaled, weights


# [softmax]
def softmax(x):
    # solution: the function
    shifted = x - xp.amax(x, -1, keepdims=True)                      # [B, L]: 0 at most, so that exp cannot overflow
    exponentials = xp.exp(shifted)
    return exponentials / exponentials.sum(-1, keepdims=True)        # the sum of a row, kept as a column


def softmax_backward(p, dout):
    # solution: its gradient
    return p * (dout - (p * dout).sum(-1, keepdims=True))            # [B, L]: each share hangs on every number of its row


# [merge]
def merge(m1, l1, o1, m2, l2, o2):
    # solution: the function
    m = xp.maximum(m1, m2)                                           # [B, T]
    f1, f2 = xp.exp(m1 - m), xp.exp(m2 - m)                          # what each part was too large by; an empty part: 0
    total = f1 * l1 + f2 * l2                                        # [B, T]
    out = f1[..., None] * o1 + f2[..., None] * o2                    # [B, T, d]
    return m, total, out


# [cross-entropy]
def cross_entropy(logits, targets, ignore_index=-100):
    # solution: the function
    counts = targets != ignore_index                                 # [B]
    chosen = xp.where(counts, targets, 0)                            # an index that exists, for those that do not count
    shifted = logits - xp.amax(logits, -1, keepdims=True)            # [B, V]
    logs = shifted - xp.log(xp.exp(shifted).sum(-1, keepdims=True))  # never the logarithm of a softmax that is 0
    losses = -logs[xp.arange(len(targets)), chosen]                  # [B]
    return (losses * counts).sum() / counts.sum()


def cross_entropy_backward(logits, targets, ignore_index=-100):
    # solution: its gradient
    counts = targets != ignore_index
    chosen = xp.where(counts, targets, 0)
    dlogits = xp.exp(logits - xp.amax(logits, -1, keepdims=True))
    dlogits = dlogits / dlogits.sum(-1, keepdims=True)               # [B, V]: the softmax,
    dlogits[xp.arange(len(targets)), chosen] -= 1                    # minus 1 at the targets
    return dlogits * counts[:, None] / counts.sum()


# [layernorm]
def layer_norm(x, gain, bias, eps=1e-5):
    # solution: the function
    centred = x - x.mean(-1, keepdims=True)                          # [B, L, E]: over the features of each token
    variance = (centred**2).mean(-1, keepdims=True)                  # [B, L, 1]: divided by E, not E - 1
    return centred / xp.sqrt(variance + eps) * gain + bias


def layer_norm_backward(x, gain, dout, eps=1e-5):
    # solution: its gradient
    centred = x - x.mean(-1, keepdims=True)
    root = xp.sqrt((centred**2).mean(-1, keepdims=True) + eps)       # [B, L, 1]
    normed = centred / root
    g = dout * gain
    dx = (g - g.mean(-1, keepdims=True) - normed * (g * normed).mean(-1, keepdims=True)) / root
    return dx, (dout * normed).sum((0, 1)), dout.sum((0, 1))         # [B, L, E], [E], [E]


# [rmsnorm]
def rms_norm(x, gain, eps=1e-5):
    # solution: the function
    return x / xp.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain  # [B, L, E]: no mean is subtracted


def rms_norm_backward(x, gain, dout, eps=1e-5):
    # solution: its gradient
    root = xp.sqrt((x**2).mean(-1, keepdims=True) + eps)             # [B, L, 1]
    normed = x / root
    g = dout * gain
    dx = (g - normed * (g * normed).mean(-1, keepdims=True)) / root
    return dx, (dout * normed).sum((0, 1))                           # [B, L, E], [E]


# [sampling]
def sampling_probabilities(logits, tokens=None, penalty=1.0, temperature=1.0, k=None, p=1.0):
    # solution: the function
    V = logits.shape[-1]
    if tokens is not None and penalty != 1:
        appears = (tokens[:, :, None] == xp.arange(V)).sum(1) > 0    # [B, V]
        logits = xp.where(appears, xp.where(logits > 0, logits / penalty, logits * penalty), logits)
    logits = logits / temperature
    order = xp.argsort(-logits, -1)                                  # [B, V]: the largest first
    rank = xp.argsort(order, -1)
    shares = xp.exp(logits - xp.amax(logits, -1, keepdims=True)) * (rank < (k or V))
    shares = shares / shares.sum(-1, keepdims=True)
    before = (shares[:, None, :] * (rank[:, None, :] < rank[:, :, None])).sum(-1)    # the sum of all that are larger
    shares = shares * (before < p)                                   # the token that crosses p is kept
    return shares / shares.sum(-1, keepdims=True)


# [beam]
def beam_step(log_probs, scores, beams):
    # solution: the function
    V = log_probs.shape[1]
    candidates = scores[:, None] + log_probs                         # [N, V]: every beam with every token
    candidates = candidates.reshape(-1)
    best = xp.argsort(-candidates)[:beams]
    parents, tokens = best // V, best % V
    return candidates[best], parents, tokens


# [score-modifiers]
def modified_attention(q, k, v, slopes=None, cap=None, sinks=None, table=None, max_distance=128):
    # solution: the function
    i, j = xp.arange(q.shape[-2])[:, None], xp.arange(q.shape[-2])
    scores = xp.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    if cap is not None:
        scores = cap * xp.tanh(scores / cap)                         # small ones stay; none is beyond cap
    if slopes is not None:
        scores = scores + slopes[:, None, None] * (j - i)            # [B, H, L, L]: the further back, the less
    if table is not None:                                            # [N, H]
        near, gap = len(table) // 2, xp.clip(i - j, 0, None)
        far = near * xp.log(xp.clip(gap, near, None) / near) / xp.log(xp.asarray(max_distance / near))
        bucket = xp.where(gap < near, gap, xp.clip(near + xp.asarray(far, dtype=xp.int64), None, len(table) - 1))
        scores = scores + xp.moveaxis(table[bucket], -1, 0)
    scores = xp.where(j <= i, scores, -xp.inf)
    largest = xp.amax(scores, -1, keepdims=True)
    if sinks is not None:
        sinks = sinks[:, None, None]
        largest = xp.maximum(largest, sinks)
    weights = xp.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + xp.exp(sinks - largest)                      # a share that no value gets
    return weights / total @ v


# [paged]
def paged_attention(q, k_pages, v_pages, block_table, lengths):
    # solution: the function
    out = xp.zeros_like(q)
    C = k_pages.shape[1]
    for b in range(len(q)):
        t = xp.arange(block_table.shape[1] * C)
        pages, rows = block_table[b][t // C], t % C
        k, v = k_pages[pages, rows], v_pages[pages, rows]            # [T, H, d] each
        scores = xp.einsum("hd,thd->ht", q[b], k) / q.shape[-1] ** 0.5
        scores = xp.where(t < lengths[b], scores, -xp.inf)           # what lies behind a sequence's end is nobody's
        weights = xp.exp(scores - xp.amax(scores, -1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        out[b] = xp.einsum("ht,thd->hd", weights, v)
    return out


# [flash-backward]
def flash_backward(q, k, v, out, lse, d_out, block_q, block_k, causal=False):
    # solution: delta, then for each tile: weights again, dv, and through the softmax to dq and dk
    Tq, Tk, scale = q.shape[-2], k.shape[-2], 1 / q.shape[-1] ** 0.5
    dq, dk, dv = xp.zeros_like(q), xp.zeros_like(k), xp.zeros_like(v)
    delta = (d_out * out).sum(-1)                                    # [B, H, Tq]: the row sum of P * dP
    for j in range(0, Tk, block_k):
        for i in range(0, Tq, block_q):
            rows, keys = slice(i, i + block_q), slice(j, j + block_k)
            scores = q[..., rows, :] @ k[..., keys, :].swapaxes(-1, -2) * scale
            if causal:
                scores = xp.where(xp.arange(Tk)[keys] <= xp.arange(Tq)[rows, None] + (Tk - Tq), scores, -xp.inf)
            weights = xp.exp(scores - lse[..., rows, None])          # of whole rows, without the other tiles
            dv[..., keys, :] += weights.swapaxes(-1, -2) @ d_out[..., rows, :]
            dweights = d_out[..., rows, :] @ v[..., keys, :].swapaxes(-1, -2)
            dscores = weights * (dweights - delta[..., rows, None])
            dq[..., rows, :] += scale * dscores @ k[..., keys, :]
            dk[..., keys, :] += scale * dscores.swapaxes(-1, -2) @ q[..., rows, :]
    return dq, dk, dv


# [swiglu]
def swiglu(x, W_gate, W_up, W_down):
    # solution: the function
    gate, up = x @ W_gate, x @ W_up                                  # [B, L, F] each
    active = gate / (1 + xp.exp(-gate))                              # silu: gate * sigmoid(gate)
    hidden = active * up
    return hidden @ W_down                                           # [B, L, E]


# [mla]
def mla(x, W_q, W_dkv, W_kr, W_uk, W_uv, W_o, num_heads):
    # solution: the latent, heads, turned parts, joined parts, causal scores, softmax, values, output projection
    B, L, d_rope = *x.shape[:2], W_kr.shape[1]
    latent, k_rope = x @ W_dkv, (x @ W_kr)[:, None]                  # [B, L, C], [B, 1, L, d_rope]: what a cache would hold
    q, k, v = (y.reshape(B, L, num_heads, -1).swapaxes(1, 2) for y in (x @ W_q, latent @ W_uk, latent @ W_uv))
    d_nope = k.shape[-1]
    q, q_rope = q[..., :d_nope], q[..., d_nope:]                     # [B, H, L, d_nope], [B, H, L, d_rope]
    angles = xp.arange(L)[:, None] * 10000.0 ** (-xp.arange(0, d_rope, 2) / d_rope)
    cos, sin = (xp.concatenate([f(angles), f(angles)], -1) for f in (xp.cos, xp.sin))

    def turn(y):
        return y * cos + xp.concatenate([-y[..., d_rope // 2 :], y[..., : d_rope // 2]], -1) * sin

    q_rope, k_rope = turn(q_rope), xp.broadcast_to(turn(k_rope), q_rope.shape)       # one key of positions for all heads
    queries, keys = xp.concatenate([q, q_rope], -1), xp.concatenate([k, k_rope], -1)
    scores = queries @ keys.swapaxes(-1, -2) / (d_nope + d_rope) ** 0.5              # [B, H, L, L]
    scores = xp.where(xp.arange(L) <= xp.arange(L)[:, None], scores, -xp.inf)
    weights = xp.exp(scores - xp.amax(scores, -1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return (weights @ v).swapaxes(1, 2).reshape(B, L, -1) @ W_o


# [router]
def router(logits, k):
    # solution: the function
    p = xp.exp(logits - xp.amax(logits, -1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)                                 # [B, R]
    rank = xp.argsort(xp.argsort(-logits, -1), -1)                   # 0 for the best
    gates = xp.where(rank < k, p, 0.0)
    return gates / gates.sum(-1, keepdims=True)                      # the chosen share 1


# [lora]
def lora(x, W, A, B, alpha):
    # solution: the function
    scale = alpha / A.shape[-1]                                      # the rank: doubling it does not double the change
    change = x @ A @ B * scale                                       # [B, L, F]: through r numbers
    return x @ W + change


def lora_merged(W, A, B, alpha):
    # solution: the function
    scale = alpha / A.shape[-1]
    return W + A @ B * scale                                         # [E, F]: x times this is the same, without the detour

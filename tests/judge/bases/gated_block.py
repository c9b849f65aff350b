from header import softmax, xp


def norm(x, gain):
    return x / ((x**2).mean(-1, keepdims=True) + 1e-6) ** 0.5 * gain


def act(x):
    return x / (1 + xp.exp(-x))


def block(x, params, num_heads):
    p, (B, L, E) = params, x.shape
    read = norm(x, p["gain_1"])
    q, k, v = ((read @ p["W_" + n]).reshape(B, L, num_heads, E // num_heads).swapaxes(1, 2) for n in "qkv")
    keep = xp.arange(L)[None, :] <= xp.arange(L)[:, None]
    scores = xp.where(keep, q @ k.swapaxes(-1, -2) / (E // num_heads) ** 0.5, -1e9)
    stream = x + (softmax(scores, -1) @ v).swapaxes(1, 2).reshape(B, L, E) @ p["W_o"]
    inner = norm(stream, p["gain_2"])
    gate, up = inner @ p["W_gate"], inner @ p["W_up"]
    active = act(gate) * up
    return stream + active @ p["W_down"]

from header import softmax, xp


def norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / (variance + 1e-5) ** 0.5 * gain + bias


def act(x):
    return 0.5 * x * (1 + xp.tanh((2 / 3.141592653589793) ** 0.5 * (x + 0.044715 * x**3)))


def block(x, params, num_heads):
    p, (B, L, E) = params, x.shape
    first, second = (p["gain_1"], p["bias_1"]), (p["gain_2"], p["bias_2"])
    read = norm(x, *first)
    q, k, v = ((read @ p["W_" + n] + p["b_" + n]).reshape(B, L, num_heads, E // num_heads).swapaxes(1, 2) for n in "qkv")
    keep = xp.arange(L)[None, :] <= xp.arange(L)[:, None]
    scores = xp.where(keep, q @ k.swapaxes(-1, -2) / (E // num_heads) ** 0.5, -1e9)
    attended = (softmax(scores, -1) @ v).swapaxes(1, 2).reshape(B, L, E) @ p["W_o"] + p["b_o"]
    stream = x + attended
    inner = norm(stream, *second)
    active = act(inner @ p["W_up"] + p["b_up"])
    given = active @ p["W_down"] + p["b_down"]
    return stream + given

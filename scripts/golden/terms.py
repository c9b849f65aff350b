"""The expressions of a layer with every term made positive, forward and backward: what rounding errors scale with.

An f32 result may differ from the exact one by a small multiple of eps times these, however much of it cancels. Only for forms
with learned projections. Each product is taken over the magnitudes of its true operands; only ds, which cancels, is replaced by
its own bound: A_ds = w (|dout| |v| + |dout| |out|).
"""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Rotation:
    """cos and sin [B or 1, 1, T, D] of a rotation within the first `width` columns, 1 and 0 beyond."""

    cos: np.ndarray
    sin: np.ndarray
    width: int
    interleaved: bool = False

    def partners(self, t):
        """(-second, first) of each pair, 0 beyond the rotated columns."""
        turned, half, width = np.zeros_like(t), self.width // 2, self.width
        first, second = (slice(0, width, 2), slice(1, width, 2)) if self.interleaved else (slice(half), slice(half, width))
        turned[..., first], turned[..., second] = -t[..., second], t[..., first]
        return turned

    def turned(self, t):
        return t * self.cos + self.partners(t) * self.sin

    def turned_back(self, terms):
        """Positive terms of the gradient before the rotation."""
        return terms * np.abs(self.cos) + np.abs(self.partners(terms * np.abs(self.sin)))


class Norm:
    """An RMS norm over rows of its weight's size."""

    def __init__(self, weight, eps):
        self.weight, self.eps = weight, eps

    def rows(self, raw):
        """raw [B, T, n] as rows [B, T, n / size, size], and 1 / their norms."""
        rows = raw.reshape(*raw.shape[:2], -1, self.weight.size)
        return rows, np.sqrt(np.square(rows).mean(-1, keepdims=True) + self.eps)

    def normed(self, raw):
        rows, size = self.rows(raw)
        return (rows / size * self.weight).reshape(raw.shape)

    def back(self, terms, raw):
        """Positive terms of the gradient before the norm, and of its weight."""
        rows, size = self.rows(raw)
        inverse, gradient = 1 / size, terms.reshape(rows.shape)
        normal = np.abs(rows * inverse)
        scaled = gradient * np.abs(self.weight)
        back = inverse * (scaled + normal * (scaled * normal).mean(-1, keepdims=True))
        return back.reshape(terms.shape), (gradient * normal).sum((0, 1, 2))


def parts(parameters):
    """(names of the projections of q, k, v, or of the one that makes all three; name of the output projection, or None)."""
    if "in_proj_weight" in parameters:
        return ["in_proj_"], "out_proj."
    names = list(dict.fromkeys(name.rsplit(".", 1)[0] + "." for name in parameters if "norm" not in name))
    inputs = names[:1] if names[0] == "proj." else sorted(names[:3], key=lambda n: "qkv".index(n.lower().removeprefix("w_")[0]))
    return inputs, names[len(inputs)] if len(names) > len(inputs) else None


def positive_terms(x, parameters, dout, weights, heads, kv_heads=None, factors=None, output_factors=None, rotation=None, eps=0.0):
    """All arrays f64; returns name -> array for out, weights and grad.*. A norm of q or k is named q_norm, k_norm."""
    inputs, output = parts(parameters)
    kv_heads = kv_heads or heads
    group, (batch, length, _) = heads // kv_heads, x.shape
    matrices = [parameters[name + "weight"] for name in inputs]
    biases = [parameters.get(name + "bias") for name in inputs]
    if len(inputs) == 1:
        matrices, biases = np.split(matrices[0], 3), np.split(biases[0], 3)
    norms = [Norm(parameters[n], eps) if (n := f"{name}_norm.weight") in parameters else None for name in "qkv"]
    weights = np.nan_to_num(weights)
    if output_factors is not None:
        dout = dout * output_factors

    def split(t, count):  # [B, T, H D] -> [B, H, T, D]
        return t.reshape(batch, length, count, -1).swapaxes(1, 2)

    def join(t):
        return t.swapaxes(1, 2).reshape(batch, length, -1)

    def summed(t):  # over the heads of a group
        return t.reshape(batch, kv_heads, group, length, -1).sum(2)

    raw = [x @ m.T + (0.0 if b is None else b) for m, b in zip(matrices, biases)]
    q, k, v = (split(r if norm is None else norm.normed(r), count)
               for r, norm, count in zip(raw, norms, (heads, kv_heads, kv_heads)))
    if rotation is not None:
        q, k = rotation.turned(q), rotation.turned(k)
    q, k, v = np.abs(q), np.abs(k.repeat(group, 1)), np.abs(v.repeat(group, 1))
    scale = q.shape[-1] ** -0.5
    factors = np.ones_like(weights) if factors is None else factors
    scores = scale * q @ k.swapaxes(-1, -2)
    spread = weights * (1 + scores + (weights * scores).sum(-1, keepdims=True))  # an error in one score affects its whole row
    joined, dattended, result = join((spread * factors) @ v), dout, {"weights": spread}
    out = joined
    if output is not None:
        matrix = parameters[output + "weight"]
        result[f"grad.{output}weight"] = np.einsum("bto,bti->oi", np.abs(dout), joined)
        out = joined @ np.abs(matrix).T
        if output + "bias" in parameters:
            result[f"grad.{output}bias"] = np.abs(dout).sum((0, 1))
            out = out + np.abs(parameters[output + "bias"])
        dattended = dout @ matrix
    result["out"] = out if output_factors is None else out * output_factors
    dattended = np.abs(split(dattended, heads))
    through = dattended @ v.swapaxes(-1, -2) * factors
    dscores = spread * (through + (weights * through).sum(-1, keepdims=True))
    gradients = [scale * dscores @ k, summed(scale * dscores.swapaxes(-1, -2) @ q),
                 summed((spread * factors).swapaxes(-1, -2) @ dattended)]
    if rotation is not None:
        gradients[:2] = map(rotation.turned_back, gradients[:2])
    gradients = list(map(join, gradients))
    for n, (name, norm) in enumerate(zip("qkv", norms)):
        if norm is not None:
            gradients[n], result[f"grad.{name}_norm.weight"] = norm.back(gradients[n], raw[n])
    result["grad.x"] = sum(g @ np.abs(m) for g, m in zip(gradients, matrices))
    dmatrices = [np.einsum("bto,bti->oi", g, np.abs(x)) for g in gradients]
    dbiases = [None if b is None else g.sum((0, 1)) for g, b in zip(gradients, biases)]
    if len(inputs) == 1:
        dmatrices, dbiases = [np.concatenate(dmatrices)], [np.concatenate(dbiases)]
    for name, dmatrix, dbias in zip(inputs, dmatrices, dbiases):
        result[f"grad.{name}weight"] = dmatrix
        if dbias is not None:
            result[f"grad.{name}bias"] = dbias
    return result

"""The expressions of a layer with every term made positive, forward and backward: what a rounding error scales with.

An f32 result may differ from the exact one by a small multiple of eps times these, however much of it cancels. Forms with
learned projections only.
"""

import numpy as np


def parts(parameters):
    """Names -> (weight, bias or None) of q, k, v and of the output projection (None without one), and how rows are merged."""
    names = list(dict.fromkeys(name.rsplit(".", 1)[0] for name in parameters if "." in name))
    if "in_proj_weight" in parameters:
        return ["in_proj_weight", "in_proj_bias"], "out_proj"
    if names[0] == "proj":
        return ["proj.weight", "proj.bias"], names[1] if len(names) > 1 else None
    return names[:3], names[3] if len(names) > 3 else None


def positive_terms(x, parameters, dout, weights, factors, output_factors, heads):
    """All arrays f64; factors may be None. Returns name -> array for out, weights and grad.*"""
    size = {name: np.abs(value) for name, value in parameters.items()}
    inputs, output = parts(parameters)
    merged = len(inputs) == 2
    if merged:
        weight, bias = size[inputs[0]], size[inputs[1]]
        matrices, biases = np.split(weight, 3), np.split(bias, 3)
    else:
        matrices = [size[name + ".weight"] for name in inputs]
        biases = [size.get(name + ".bias", 0.0) for name in inputs]
    x, dout, weights = np.abs(x), np.abs(dout), np.nan_to_num(weights)
    if output_factors is not None:
        dout = dout * output_factors
    batch, length, _ = x.shape

    def split(t):  # [B, T, H D] -> [B, H, T, D]
        return t.reshape(batch, length, heads, -1).swapaxes(1, 2)

    def join(t):
        return t.swapaxes(1, 2).reshape(batch, length, -1)

    q, k, v = (split(x @ m.T + b) for m, b in zip(matrices, biases))
    scale = q.shape[-1] ** -0.5
    applied = weights if factors is None else weights * factors
    scores = scale * q @ k.swapaxes(-1, -2)
    spread = weights * (1 + scores + (weights * scores).sum(-1, keepdims=True))
    attended = (spread if factors is None else spread * factors) @ v
    joined, dattended, result = join(attended), dout, {}
    if output is not None:
        matrix = size[output + ".weight"]
        result["grad." + output + ".weight"] = np.einsum("bto,bti->oi", dout, joined)
        if output + ".bias" in size:
            result["grad." + output + ".bias"] = dout.sum((0, 1))
        dattended = dout @ matrix
    out = joined if output is None else joined @ matrix.T + size.get(output + ".bias", 0.0)
    result["out"] = out if output_factors is None else out * output_factors
    result["weights"] = spread
    dattended = split(dattended)
    through = dattended @ v.swapaxes(-1, -2)
    if factors is not None:
        through = through * factors
    dscores = spread * (through + (applied * through).sum(-1, keepdims=True))
    dq, dk = scale * dscores @ k, scale * dscores.swapaxes(-1, -2) @ q
    dv = applied.swapaxes(-1, -2) @ dattended
    gradients = [join(t) for t in (dq, dk, dv)]
    result["grad.x"] = sum(g @ m for g, m in zip(gradients, matrices))
    dmatrices = [np.einsum("bto,bti->oi", g, x) for g in gradients]
    dbiases = [g.sum((0, 1)) for g in gradients]
    if merged:
        result["grad." + inputs[0]] = np.concatenate(dmatrices)
        result["grad." + inputs[1]] = np.concatenate(dbiases)
    else:
        for name, dmatrix, dbias in zip(inputs, dmatrices, dbiases):
            result[f"grad.{name}.weight"] = dmatrix
            if name + ".bias" in size:
                result[f"grad.{name}.bias"] = dbias
    return result

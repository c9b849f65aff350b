"""The expressions of a layer with every term made positive, forward and backward: what rounding errors scale with.

An f32 result may differ from the exact one by a small multiple of eps times these, however much of it cancels. Only for forms
with learned projections.
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
    """All arrays f64; factors may be None. Returns name -> array for out, weights and grad.*

    Each product is taken over the magnitudes of its true operands; only ds, which cancels, is replaced by its own bound:
    A_ds = w (|dout| |v| + |dout| |out|).
    """
    inputs, output = parts(parameters)
    merged = len(inputs) == 2
    if merged:
        matrices, biases = np.split(parameters[inputs[0]], 3), np.split(parameters[inputs[1]], 3)
    else:
        matrices = [parameters[name + ".weight"] for name in inputs]
        biases = [parameters.get(name + ".bias", 0.0) for name in inputs]
    weights = np.nan_to_num(weights)
    if output_factors is not None:
        dout = dout * output_factors
    batch, length, _ = x.shape

    def split(t):  # [B, T, H D] -> [B, H, T, D]
        return t.reshape(batch, length, heads, -1).swapaxes(1, 2)

    def join(t):
        return t.swapaxes(1, 2).reshape(batch, length, -1)

    q, k, v = (np.abs(split(x @ m.T + b)) for m, b in zip(matrices, biases))
    scale = q.shape[-1] ** -0.5
    factors = np.ones_like(weights) if factors is None else factors
    scores = scale * q @ k.swapaxes(-1, -2)
    spread = weights * (1 + scores + (weights * scores).sum(-1, keepdims=True))  # an error in one score affects its whole row
    joined, dattended, result = join((spread * factors) @ v), dout, {"weights": spread}
    out = joined
    if output is not None:
        matrix = parameters[output + ".weight"]
        result[f"grad.{output}.weight"] = np.einsum("bto,bti->oi", np.abs(dout), joined)
        out = joined @ np.abs(matrix).T
        if output + ".bias" in parameters:
            result[f"grad.{output}.bias"] = np.abs(dout).sum((0, 1))
            out = out + np.abs(parameters[output + ".bias"])
        dattended = dout @ matrix
    result["out"] = out if output_factors is None else out * output_factors
    dattended = np.abs(split(dattended))
    through = dattended @ v.swapaxes(-1, -2) * factors
    dscores = spread * (through + (weights * through).sum(-1, keepdims=True))
    dv = (spread * factors).swapaxes(-1, -2) @ dattended
    gradients = [join(t) for t in (scale * dscores @ k, scale * dscores.swapaxes(-1, -2) @ q, dv)]
    result["grad.x"] = sum(g @ np.abs(m) for g, m in zip(gradients, matrices))
    dmatrices = [np.einsum("bto,bti->oi", g, np.abs(x)) for g in gradients]
    dbiases = [g.sum((0, 1)) for g in gradients]
    if merged:
        result["grad." + inputs[0]] = np.concatenate(dmatrices)
        result["grad." + inputs[1]] = np.concatenate(dbiases)
    else:
        for name, dmatrix, dbias in zip(inputs, dmatrices, dbiases):
            result[f"grad.{name}.weight"] = dmatrix
            if name + ".bias" in parameters:
                result[f"grad.{name}.bias"] = dbias
    return result

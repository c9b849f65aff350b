"""Golden files of linear attention: feature maps, order, normalisation, decay, the delta rule, states, gradients.

Two textbook programs in f64, written from the papers (Katharopoulos 2020; Sun 2023, RetNet; Dao 2024, Mamba-2; Yang 2024,
DeltaNet and Gated DeltaNet): all pairs at once, and token by token. Where both apply they must agree; autograd differentiates
the second.
"""

import math

import torch

from store import Case


def phi(kind, x, scale, features):
    if kind == "elu_plus_one":
        return torch.nn.functional.elu(x) + 1
    if kind == "relu":
        return torch.relu(x)
    if kind == "identity":
        return x
    y = math.sqrt(scale) * x  # Choromanski 2021: phi(q).phi(k) has mean exp(scale q.k)
    return torch.exp(y @ features.mT - y.square().sum(-1, keepdim=True) / 2) / math.sqrt(features.shape[0])


def pairs(q, k, v, causal, decay, kv, z):
    """phi(q) [B, H, Tq, F], phi(k) [B, H, Tk, F], v [B, H, Tk, Dv], decay log [B, H, Tk], state kv [B, H, F, Dv], z [B, H, "
    "F]."""
    reach = decay.cumsum(-1)  # c[i, j] = exp(reach[i] - reach[j])
    scores = q @ k.mT
    past = q @ kv, (q @ z.unsqueeze(-1)).squeeze(-1)
    if causal:
        scores = (scores * torch.exp(reach.unsqueeze(-1) - reach.unsqueeze(-2))).tril()
        past = past[0] * reach.exp().unsqueeze(-1), past[1] * reach.exp()
    left = torch.exp(reach[..., -1:] - reach).unsqueeze(-1) * k  # what remains of each key at the end
    end = reach[..., -1].exp()[..., None]
    return scores @ v + past[0], scores.sum(-1) + past[1], end.unsqueeze(-1) * kv + left.mT @ v, end * z + left.sum(-2)


def tokens(q, k, v, causal, decay, beta, kv, z):
    """The same, token by token; beta [B, H, Tk] makes it the delta rule."""
    outs, sums = [], []
    for t in range(k.shape[-2]):
        key, value = k[..., t, :], v[..., t, :]
        kept = decay[..., t].exp()[..., None]
        kv, z = kept.unsqueeze(-1) * kv, kept * z
        if beta is not None:
            value = beta[..., t].unsqueeze(-1) * (value - (key.unsqueeze(-2) @ kv).squeeze(-2))
        kv, z = kv + key.unsqueeze(-1) * value.unsqueeze(-2), z + key
        if causal:
            outs.append((q[..., t, :].unsqueeze(-2) @ kv).squeeze(-2))
            sums.append((q[..., t, :] * z).sum(-1))
    if causal:
        return torch.stack(outs, -2), torch.stack(sums, -1), kv, z
    return q @ kv, (q @ z.unsqueeze(-1)).squeeze(-1), kv, z


def linear_case(
    name, shape, kind, *, causal=True, normalized=True, scale=None, decay=None, delta=False, state=False, exponent=0
):
    """shape: B, H, Hkv, Tq, Tk, D, Dv. decay: the sizes of log_decay. exponent: of the keys' size, 2^exponent."""
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = shape
    case = Case("linear_" + name, kind="linear", torch=torch.__version__, feature_map=kind, causal=int(causal),
                normalized=int(normalized))
    leaves = {}

    def draw(tensor, sizes, exponent=0, change=None):
        values = case.input(tensor, sizes, exponent)
        if change is not None:
            values = change(values)
            case.add(tensor, values.astype("float32"))
        leaves[tensor] = torch.from_numpy(values).requires_grad_()

    # A sum of weights of either sign may be arbitrarily near 0, and a quotient by it arbitrarily wrong.
    positive = (lambda x: abs(x) + 0.125) if normalized and kind == "identity" else None
    draw("q", (batch, heads, q_len, head_dim), change=positive)
    draw("k", (batch, kv_heads, kv_len, head_dim), exponent, positive)
    draw("v", (batch, kv_heads, kv_len, v_head_dim))
    draw("dout", (batch, heads, q_len, v_head_dim))
    rows = 7 if kind == "softmax" else head_dim
    if kind == "softmax":
        draw("features", (rows, head_dim))
    if decay is not None:
        draw("log_decay", decay, -2, lambda x: -abs(x))
    if delta:
        draw("beta", (batch, kv_heads, kv_len), -1, abs)
    if state:
        draw("kv", (batch, kv_heads, rows, v_head_dim))
        draw("dkv", (batch, kv_heads, rows, v_head_dim))
        if normalized:
            draw("z", (batch, kv_heads, rows), change=lambda x: abs(x) + 1)
            draw("dz", (batch, kv_heads, rows))

    group = heads // kv_heads
    zeros = torch.zeros(batch, kv_heads, kv_len, dtype=torch.float64)
    repeat = lambda x: x.repeat_interleave(group, 1)
    scores_scale = (scale if scale is not None else head_dim**-0.5) if kind == "softmax" else None
    features = leaves.get("features")
    mapped = (phi(kind, leaves["q"], scores_scale, features), repeat(phi(kind, leaves["k"], scores_scale, features)),
              repeat(leaves["v"]))
    kv = repeat(leaves["kv"] if state else torch.zeros(batch, kv_heads, rows, v_head_dim, dtype=torch.float64))
    z = repeat(leaves["z"] if state and normalized else torch.zeros(batch, kv_heads, rows, dtype=torch.float64))
    log_decay = repeat(zeros + leaves.get("log_decay", zeros))
    beta = repeat(leaves["beta"]) if delta else None
    out, total, end_kv, end_z = tokens(*mapped, causal, log_decay, beta, kv, z)
    if not delta:
        for one, other in zip((out, total, end_kv, end_z), pairs(*mapped, causal, log_decay, kv, z)):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    factor = scale if scale is not None and kind != "softmax" else 1.0
    out, total = factor * out, factor * total
    if normalized:
        empty = total.unsqueeze(-1) == 0  # relu: the query shares no feature with the keys so far. Such a row is 0
        out = torch.where(empty, 0.0, out / torch.where(empty, 1.0, total.unsqueeze(-1)))
    if scale is not None:
        case.metadata["scale"] = repr(scale)

    loss = (out * leaves["dout"]).sum()
    end_kv, end_z = end_kv[:, ::group], end_z[:, ::group]  # the heads of a group share their state
    if state:
        loss = loss + (end_kv * leaves["dkv"]).sum()
        if normalized:
            loss = loss + (end_z * leaves["dz"]).sum()
    results = {"out": out, "final_kv": end_kv}
    if normalized:
        results |= {"normalizer": total, "final_z": end_z}
    wanted = [key for key in leaves if key not in ("dout", "features", "dkv", "dz")]
    gradients = torch.autograd.grad(loss, [leaves[key] for key in wanted])
    results |= {"grad." + key: gradient for key, gradient in zip(wanted, gradients)}
    for key, value in results.items():
        case.add(key, value.detach().numpy())
    return case


def cases():
    square, cross = (2, 4, 2, 9, 9, 5, 3), (2, 4, 2, 6, 9, 5, 3)
    yield linear_case("relu_all_normalized", cross, "relu", causal=False, state=True)
    yield linear_case("identity_all_plain", cross, "identity", causal=False, normalized=False)
    yield linear_case("scale", square, "identity", normalized=False, scale=-0.75)
    yield linear_case("features", square, "softmax", scale=0.5)
    yield linear_case("decay_normalized", square, "elu_plus_one", decay=(2, 2, 9), state=True)
    yield linear_case("delta_decay_state", square, "identity", normalized=False, delta=True, decay=(2, 2, 9), state=True,
                      exponent=-1)
    # Longer than the library's chunks, and not a multiple of them.
    yield linear_case("long_delta", (1, 2, 1, 70, 70, 4, 3), "identity", normalized=False, delta=True, decay=(1, 1, 70),
                      state=True, exponent=-1)

"""qkv.linear_attention and its backward against a textbook recurrence under autograd (Katharopoulos 2020; RetNet, Sun 2023; Mamba-2, Dao 2024; DeltaNet
and Gated DeltaNet, Yang 2024): feature maps, order, normalisation, decay, the delta rule, states, both forms, float64 and float32."""

from typing import Any

import pytest
import qkv

torch = pytest.importorskip("torch")

from support_torch import beside, expect_close, numbers
from torch import Tensor


def phi(kind: str, x: Tensor, scale: float, features: Tensor | None) -> Tensor:
    if features is None:
        return {"elu+1": lambda x: torch.nn.functional.elu(x) + 1, "relu": torch.relu, "identity": lambda x: x}[kind](x)
    y = scale**0.5 * x  # Choromanski 2021: phi(q) . phi(k) has mean exp(scale q . k)
    return torch.exp(y @ features.T - y.square().sum(-1, keepdim=True) / 2) / features.shape[0] ** 0.5


def recurrence(p: dict[str, Tensor], kind: str, causal: bool, normalized: bool, scale: float | None) -> dict[str, Tensor]:
    """out, normalizer and the final state, token by token; the heads of a group share their state."""
    group, features = p["q"].shape[1] // p["k"].shape[1], p.get("features")
    kernel_scale = p["q"].shape[-1] ** -0.5 if scale is None else scale
    q, k = (phi(kind, p[name], kernel_scale, features) for name in "qk")
    q, v = q.unflatten(1, (-1, group)), p["v"]
    decay, beta = p.get("log_decay", k.new_zeros(1, 1, 1)).exp(), p.get("beta")
    decay = (decay if decay.dim() == 4 else decay[..., None]).expand(*k.shape[:3], -1)  # of each token, or of each of its channels
    kv, z = p.get("kv", k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])), p.get("z", k.new_zeros(*k.shape[:2], k.shape[3]))
    outs, sums = [], []
    for t in range(k.shape[2]):
        key, value = k[:, :, t], v[:, :, t]
        kv, z = decay[:, :, t, :, None] * kv, decay[:, :, t] * z
        if beta is not None:
            value = beta[:, :, t, None] * (value - (key[:, :, None] @ kv)[:, :, 0])
        kv, z = kv + key[..., None] * value[:, :, None], z + key
        if causal:
            outs.append(q[:, :, :, t] @ kv)
            sums.append((q[:, :, :, t] @ z[..., None])[..., 0])
    out = torch.stack(outs, 3) if causal else q @ kv[:, :, None]
    total = torch.stack(sums, 3) if causal else (q @ z[:, :, None, :, None])[..., 0]
    factor = 1.0 if scale is None or features is not None else scale
    out, total = factor * out.flatten(1, 2), factor * total.flatten(1, 2)
    if not normalized:
        return {"out": out, "final.kv": kv}
    empty = total == 0  # relu: the query shares no feature with the keys so far. Such a row is 0
    out = torch.where(empty[..., None], 0.0, out / torch.where(empty, 1.0, total)[..., None])
    return {"out": out, "normalizer": total, "final.kv": kv, "final.z": z}


SQUARE, CROSS, LONG = (2, 4, 2, 9, 9, 5, 3), (2, 4, 2, 6, 9, 5, 3), (1, 2, 1, 70, 70, 4, 3)  # longer than a chunk, no multiple of one
# B, H, Hkv, Tq, Tk, D, Dv; options; what there is beside q, k, v.
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[str, ...]]] = {
    "relu of all": (CROSS, {"feature_map": "relu", "causal": False}, ("kv", "z")),
    "identity of all": (CROSS, {"feature_map": "identity", "causal": False, "normalized": False}, ()),
    "scale": (SQUARE, {"feature_map": "identity", "causal": True, "normalized": False, "scale": -0.75}, ()),
    "features": (SQUARE, {"feature_map": "softmax", "causal": True, "scale": 0.5}, ("features",)),
    "decay": (SQUARE, {"feature_map": "elu+1", "causal": True}, ("log_decay", "kv", "z")),
    "delta": (SQUARE, {"feature_map": "identity", "causal": True, "normalized": False}, ("log_decay", "beta", "kv")),
    "channels": (LONG, {"feature_map": "identity", "causal": True, "normalized": False}, ("channels", "beta", "kv")),
    "long delta": (LONG, {"feature_map": "identity", "causal": True, "normalized": False}, ("log_decay", "beta", "kv")),
}  # fmt: skip


@pytest.mark.parametrize("name,form", [(n, form) for n in CASES for form in ("chunked", "recurrent") if form == "chunked" or CASES[n][1]["causal"]])
def test_values_and_gradients_are_the_recurrences(name: str, form: str) -> None:
    (batch, heads, kv_heads, q_len, kv_len, width, v_width), options, more = CASES[name]
    rows = 7 if "features" in more else width
    sizes = {"q": (batch, heads, q_len, width), "k": (batch, kv_heads, kv_len, width), "v": (batch, kv_heads, kv_len, v_width),
             "features": (rows, width), "log_decay": (batch, kv_heads, kv_len), "channels": (batch, kv_heads, kv_len, width), "beta": (batch, kv_heads, kv_len),
             "kv": (batch, kv_heads, rows, v_width), "z": (batch, kv_heads, rows)}  # fmt: skip
    given = {key: numbers(n, *size) for n, (key, size) in enumerate(sizes.items()) if key in ("q", "k", "v", *more)}
    if "channels" in given:
        given["log_decay"] = given.pop("channels")
    if "log_decay" in given:
        given["log_decay"] = -given["log_decay"].abs() / 8
    if "beta" in given:
        given["beta"], given["k"] = given["beta"].abs() / 4, given["k"] / 2
    if "z" in given:
        given["z"] = given["z"].abs() + 1
    wanted = [key for key in given if key != "features"]
    arriving = {"out": numbers(50, *sizes["q"][:3], v_width), "final.kv": numbers(51, *sizes["kv"]), "final.z": numbers(52, *sizes["z"])}
    meaning = {"kind": options["feature_map"], "normalized": True, "scale": None} | options
    del meaning["feature_map"]
    theirs = []
    for dtype in (torch.float64, torch.float32):
        leaves = {key: x.to(dtype, copy=True).requires_grad_(key in wanted) for key, x in given.items()}
        results = recurrence(leaves, **meaning)
        loss = sum((results[key] * x.to(dtype)).sum() for key, x in arriving.items() if key in results)
        theirs.append([*results.values(), *torch.autograd.grad(loss, [leaves[key] for key in wanted])])
    names = [*results, *("d" + key for key in wanted)]
    for dtype, naive in ((torch.float64, beside(*theirs)), (torch.float32, theirs[1])):
        own = {key: x.to(dtype) for key, x in given.items()}
        arrived = {key: x.to(dtype) for key, x in arriving.items()}
        state = qkv._linear.LinearState(own["kv"], own.get("z")) if "kv" in own else None
        call = dict(options, state=state, form=form, **{key: own[key] for key in ("features", "log_decay", "beta") if key in own})
        out, *normalizer, final = qkv.linear_attention(
            own["q"], own["k"], own["v"], return_state=True, return_normalizer=meaning["normalized"], **call
        )
        dfinal = qkv._linear.LinearState(arrived["final.kv"], arrived["final.z"] if normalizer else None)
        g = qkv.linear_attention_backward(arrived["out"], own["q"], own["k"], own["v"], out, *normalizer, dfinal=dfinal, **call)
        of_state = {} if g.dinitial is None else {"dkv": g.dinitial.kv, "dz": g.dinitial.z}
        found = {"out": out, "normalizer": normalizer and normalizer[0], "final.kv": final.kv, "final.z": final.z} | g._asdict() | of_state
        for key, exact, rough in zip(names, theirs[0], naive, strict=True):
            expect_close(found[key], exact, rough, dtype, f"{key} {dtype}")

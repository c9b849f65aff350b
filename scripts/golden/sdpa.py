"""Golden files of attention itself, no layer: f64, from torch's own scaled_dot_product_attention where it has the option, and
otherwise from the formula with torch's autograd (softcap, window, dropout by qkv's generator, empty rows).

Also the five-token example (NumPy's legacy generator, seed 0) and qkv's dropout factors.
"""

import math

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import philox
from store import Case


def formula(q, k, v, keep=None, bias=None, scale=None, softcap=0.0, empty_row="zero", factors=None):
    """out, weights, lse; k, v are repeated over the heads of a group."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.mT)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    keep = torch.ones_like(scores, dtype=torch.bool) if keep is None else keep.expand_as(scores)
    empty = ~keep.any(-1, keepdim=True)
    lse = scores.masked_fill(~keep, -math.inf).logsumexp(-1)
    # Empty rows first attend to all keys, so that no NaN enters autograd; then they get what the policy says.
    weights = scores.masked_fill(~(keep | empty), -math.inf).softmax(-1)
    weights = torch.where(empty, torch.full_like(weights, {"zero": 0, "mean": 1 / k.shape[2]}[empty_row]), weights)
    return (weights if factors is None else weights * factors) @ v, weights, lse


def torch_kernel(q, k, v, keep=None, bias=None, scale=None, causal=False):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, attn_mask=bias if keep is None else keep, is_causal=causal, scale=scale,
                                            enable_gqa=q.shape[1] != k.shape[1])


def band(q_len, kv_len, left=-1, right=-1, offset=0):
    """keep [Tq, Tk]: i + offset - left <= j <= i + offset + right; -1: unbounded."""
    i, j = torch.arange(q_len)[:, None] + offset, torch.arange(kv_len)[None, :]
    keep = torch.ones(q_len, kv_len, dtype=torch.bool)
    if left >= 0:
        keep &= j >= i - left
    if right >= 0:
        keep &= j <= i + right
    return keep


def gradients(inputs, dout, call):
    """What `call` returns and d sum(out * dout) for each input."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    out, *rest = call(**leaves)
    return [out, *rest], torch.autograd.grad(out, list(leaves.values()), dout)


def sdpa_case(name, shape, *, keep=None, bias_shape=None, implied=None, torch_causal=False, from_torch=True, dropout=0.0,
              seed=0, empty_row="zero", exponent=1, scale=None, softcap=0.0, **facts):
    """shape: B, H, Hkv, Tq, Tk, D, Dv. keep: a dense mask that is stored. implied: the mask that `facts` describe."""
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = shape
    case = Case("sdpa_" + name, kind="sdpa", dropout=dropout, seed=seed, empty_row=empty_row, softcap=softcap,
                scale="default" if scale is None else scale, torch=torch.__version__,
                source="torch.sdpa.math" if from_torch else "formula",
                **{"causal": "none", "window": "none", "key_lengths": "none", **facts})

    def draw(tensor_name, sizes, size_exponent):
        return torch.from_numpy(case.input(tensor_name, sizes, size_exponent))

    inputs = {"q": draw("q", (batch, heads, q_len, head_dim), exponent),
              "k": draw("k", (batch, kv_heads, kv_len, head_dim), exponent),
              "v": draw("v", (batch, kv_heads, kv_len, v_head_dim), 0)}
    if bias_shape is not None:
        inputs["bias"] = draw("bias", bias_shape, 1)
    dout = draw("dout", (batch, heads, q_len, v_head_dim), 0)
    dense = implied
    if keep is not None:
        case.add("keep", keep.numpy().astype(np.uint8))
        dense = keep if implied is None else keep & implied
    factors = None
    if dropout:
        factors = torch.from_numpy(philox.weight_factors(batch, heads, q_len, kv_len, dropout, seed))
    (out, weights, lse), by_formula = gradients(
        inputs, dout, lambda **named: formula(**named, keep=dense, scale=scale, softcap=softcap, empty_row=empty_row,
                                              factors=factors))
    if from_torch:  # two independent computations of the same numbers
        (kernel_out,), by_kernel = gradients(
            inputs, dout, lambda **named: (torch_kernel(**named, keep=None if torch_causal else dense, scale=scale,
                                                        causal=torch_causal),))
        for ours, theirs in zip((out, *by_formula), (kernel_out, *by_kernel)):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
        out, by_formula = kernel_out, by_kernel
    case.add("out", out.detach().numpy())
    case.add("weights", weights.detach().numpy())
    case.add("lse", lse.detach().numpy())
    for input_name, gradient in zip(inputs, by_formula):
        case.add("d" + input_name, gradient.numpy())
    return case


def five_tokens():
    """q, k, v of the five-token example: 120 numbers; plain and causal weights and outputs, by NumPy."""
    state = np.random.RandomState(0)
    q, k, v = (state.randn(5, 8) for _ in range(3))
    case = Case("five_tokens", kind="five-tokens", numpy=np.__version__)
    for name, value in (("q", q), ("k", k), ("v", v)):
        case.add(name, value[None, None])
    scores = q @ k.T / np.sqrt(8)
    for word, kept in (("plain", np.ones((5, 5), bool)), ("causal", np.tri(5, dtype=bool))):
        power = np.where(kept, np.exp(scores - np.where(kept, scores, -np.inf).max(-1, keepdims=True)), 0.0)
        weights = power / power.sum(-1, keepdims=True)
        case.add(word + ".weights", weights[None, None])
        case.add(word + ".out", (weights @ v)[None, None])
    return case


def dropout_factors():
    """[2, 3, 5, 19] for some p and seeds: these bits never change."""
    case = Case("dropout_factors", kind="dropout-factors")
    for p in (0.1, 0.5, 1.0):
        for seed in (0, 42, 2**64 - 1):
            case.add(f"weights.{p}.{seed}", philox.weight_factors(2, 3, 5, 19, p, seed).astype(np.float32))
            case.add(f"output.{p}.{seed}", philox.output_factors(3, 5, 19, p, seed).astype(np.float32))
    return case


def cases():
    square, rectangle = (2, 2, 2, 7, 7, 5, 5), (2, 2, 2, 5, 9, 4, 4)
    yield sdpa_case("causal_bottom_right", rectangle, causal="bottom-right", implied=band(5, 9, right=0, offset=4))
    random_keep = torch.from_numpy(np.random.RandomState(1).rand(2, 1, 5, 9) < 0.6)
    random_keep[..., 0] = True  # no empty row: torch gives NaN or zero there by version
    yield sdpa_case("keep", rectangle, keep=random_keep, scale=-0.7)
    yield sdpa_case("bias_broadcast", rectangle, bias_shape=(1, 2, 1, 9))
    yield sdpa_case("grouped_one", (1, 4, 1, 6, 6, 8, 3), causal="square", implied=band(6, 6, right=0), torch_causal=True)
    yield sdpa_case("key_lengths", (3, 1, 1, 4, 6, 4, 4), key_lengths="6,3,1",
                    implied=torch.arange(6)[None, None, None] < torch.tensor([6, 3, 1])[:, None, None, None])
    yield sdpa_case("softcap_bias_causal", square, softcap=2.0, bias_shape=(1, 2, 7, 7), causal="square",
                    implied=band(7, 7, right=0), from_torch=False)
    yield sdpa_case("window_causal_bias", (1, 2, 2, 9, 9, 4, 4), window="3,0", causal="square", bias_shape=(1, 1, 9, 9),
                    implied=band(9, 9, 3, 0), from_torch=False)
    yield sdpa_case("dropout_causal_grouped", (2, 4, 2, 9, 9, 3, 3), dropout=0.5, seed=5, causal="square",
                    implied=band(9, 9, right=0), from_torch=False)
    holes = random_keep.clone()
    holes[0, 0, 1] = False
    holes[1, 0, 3:] = False
    yield sdpa_case("empty_rows_zero", rectangle, keep=holes, from_torch=False)
    yield sdpa_case("empty_rows_mean_dropout", rectangle, keep=holes, empty_row="mean", dropout=0.25, seed=13,
                    from_torch=False)

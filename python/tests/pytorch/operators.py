"""The attention of qkv.torch as rows of a table: a function of tensors, the same in plain PyTorch, and the tensors. Every relation of
test_operators.py holds for every row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import qkv
import qkv.torch as qt
import torch
from support_torch import delta_rule, numbers, theirs
from torch import Tensor, nn
from torch.nn.attention import bias as biases

sdpa, flex = qt.scaled_dot_product_attention, qt.flex_attention


@dataclass(frozen=True)
class Operator:
    """inputs: float64 leaves. once: differentiated once, in reverse mode; graph: the operator of an exported program, "" where a graph is
    broken; forward: False: its forward mode is refused."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: Callable[[], list[Tensor]]
    once: bool = False
    graph: str = "qkv.attention"
    forward: bool = True


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [numbers(n + 1, *shape).requires_grad_() for n, shape in enumerate(shapes)]


def operands(heads: int = 2, kv_heads: int = 2, q_len: int = 3, kv_len: int = 4) -> list[Tensor]:
    return leaves((1, heads, q_len, 3), (1, kv_heads, kv_len, 3), (1, kv_heads, kv_len, 2))


def formula(q: Tensor, k: Tensor, v: Tensor, score_mod: Any = None, mask_mod: Any = None) -> tuple[Tensor, Tensor]:
    """out and lse, on whole tensors: functions of index tensors that broadcast."""
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in s.shape), indexing="ij")
    if score_mod is not None:
        s = score_mod(s, b, h, i, j).to(q.dtype)
    if mask_mod is not None:
        s = torch.where(mask_mod(b, h, i, j), s, -torch.inf)
    empty = torch.isneginf(s).all(-1, keepdim=True)
    w = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, s), -1))
    return w @ v, of_sums(torch.logsumexp(s, -1))


def of_sums(lse: Tensor) -> Tensor:
    return lse.to(torch.float64 if lse.dtype is torch.float64 else torch.float32)


# Packed sequences.

H, HKV, D, DV = 4, 2, 8, 6


def offsets(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def packed_leaves(q_lens: list[int], k_lens: list[int], kv_heads: int = HKV) -> list[Tensor]:
    return leaves((sum(q_lens), H, D), (sum(k_lens), kv_heads, D), (sum(k_lens), kv_heads, DV))


def packed(lengths: tuple[list[int], list[int]], lse: bool = True, dtype: torch.dtype = torch.int32, **options: Any) -> Any:
    cu_q, cu_k = (offsets(x, dtype) for x in lengths)

    def call(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Any:
        longest, aux = (max(x, default=0) for x in lengths), qt.AuxRequest(lse=lse)
        return qt.varlen_attn(
            q, k, v, cu_q, cu_k, *longest, enable_gqa=k.shape[1] != q.shape[1], return_aux=aux, sinks=sinks, **options
        )

    return call


def one_sequence(
    q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], scale: float | None, softcap: float = 0.0, slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The textbook on one sequence: out [T, H, Dv], lse [H, T]; the window and ALiBi's distances are aligned at the bottom right."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    centre, j = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0], torch.arange(k.shape[0])
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = s if slopes is None else s - slopes.to(s.dtype)[:, None, None] * (j - centre).abs()
    if sinks is not None:  # a key of its own, without a value
        w = torch.softmax(torch.cat((s, sinks[:, None, None].expand(*s.shape[:2], 1)), -1), -1)[..., :-1]
        return torch.einsum("hij,jhd->ihd", w, v), s.new_zeros(s.shape[:2])
    left, right = (10**6 if n == -1 else n for n in window)
    s = torch.where((j >= centre - left) & (j <= centre + right), s, -torch.inf)
    if k.shape[0] == 0:
        return q.new_zeros(*q.shape[:2], v.shape[2]), q.new_full((q.shape[1], q.shape[0]), -torch.inf)
    empty = torch.isneginf(s).all(-1, keepdim=True)
    w = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, s), -1))
    return torch.einsum("hij,jhd->ihd", w, v), torch.logsumexp(s, -1)


def each_alone(
    lengths: tuple[list[int], list[int]], window: tuple[int, int] = (-1, -1), scale: float | None = None, used: Any = None,
    slopes: Tensor | None = None, softcap: float = 0.0,
) -> Any:  # fmt: skip
    """Each sequence by the textbook, then packed again."""

    def call(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        keys = [[x[: used[n]] if used else x for n, x in enumerate(y.split(lengths[1]))] for y in (k, v)]
        each = [slopes] * len(lengths[0]) if slopes is None or slopes.dim() == 1 else list(slopes)
        parts = [one_sequence(*x, window, scale, softcap, own, sinks) for *x, own in zip(q.split(lengths[0]), *keys, each)]
        lse = torch.cat([lse for _, lse in parts], 1)
        return torch.cat([out for out, _ in parts]), of_sums(lse)

    return call


SEQUENCES = ([2, 1, 3], [3, 1, 4])


def packed_inputs() -> list[Tensor]:
    return leaves((6, 2, 3), (8, 1, 3), (8, 1, 2))


# Latent attention: latent_rank R, heads of Dn + Dr and Dv.

R, DN, DR, DLV = 5, 3, 2, 2


def latent_inputs(q_len: int = 2, kv_len: int = 3, batch: int = 1, heads: int = 2) -> list[Tensor]:
    return leaves((batch, heads, q_len, DN + DR), (batch, kv_len, R), (batch, kv_len, DR), (heads * (DN + DLV), R))


def latent_by_hand(q: Tensor, c: Tensor, r: Tensor, weight: Tensor, mask: Any = None, scale: float | None = None) -> Tensor:
    heads, rope = q.shape[-3], r.shape[-1]
    kv = (c @ weight.T).unflatten(-1, (heads, -1)).transpose(-3, -2)
    width = q.shape[-1] - rope
    k = torch.cat((kv[..., :width], r.unsqueeze(-3).expand(*kv.shape[:-1], rope)), -1)
    return theirs(q, k, kv[..., width:], attn_mask=mask, scale=scale)


# Linear attention: the gated delta rule and Kimi Delta Attention.

RULES = {
    False: (qt.chunk_gated_delta_rule, qt.fused_recurrent_gated_delta_rule),
    True: (qt.chunk_kimi_delta_attention, qt.recurrent_kimi_delta_attention),
}


def delta_inputs(batch: int, length: int, heads: int, v_heads: int, width: int, v_width: int, channels: bool, seed: int = 7) -> list[Tensor]:
    """q, k, v, g (of each channel if asked for), beta, state; keys of a length at which the rule without normalisation is stable."""
    shape = (batch, length, v_heads, *([width] if channels else []))
    made = [
        numbers(seed, batch, length, heads, width),
        numbers(seed + 1, batch, length, heads, width) / (4 * width**0.5),
        numbers(seed + 2, batch, length, v_heads, v_width),
        -numbers(seed + 3, *shape).abs(),
        numbers(seed + 4, batch, length, v_heads).abs().clamp(max=1),
        numbers(seed + 5, batch, v_heads, width, v_width),
    ]
    return [x.half().bfloat16().double().requires_grad_() for x in made]


def scan(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    out, final = RULES[g.dim() == 4][0](
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True, **options
    )
    return out.to(final.dtype), final


def scan_by_hand(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    out, final = delta_rule(q, k, v, g, beta, state, None, True)
    return out.to(q.dtype).to(final.dtype), final


# Layers.


def layer(kind: type[nn.MultiheadAttention], **options: Any) -> Callable[..., Any]:
    """Of x, in_proj_weight, in_proj_bias, out_proj.weight, out_proj.bias."""
    made = kind(4, 2, batch_first=True)

    def call(x: Tensor, *parameters: Tensor) -> Any:
        return torch.func.functional_call(made, dict(zip(dict(made.named_parameters()), parameters)), (x, x, x), options)

    return call


def selective_by_hand(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    outs = []
    for t in range(u.shape[1]):
        state = torch.exp(dt[:, t, :, None] * A) * state + (dt * u)[:, t, :, None] * B[:, t, None]
        outs.append((state * C[:, t, None]).sum(-1))
    return torch.stack(outs, 1) + D * u, of_sums(state)


def convolved_by_hand(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    rows, taps = torch.cat((before, x), 1), weight.shape[1]
    out = bias + sum(weight[:, k] * rows[:, k : k + x.shape[1]] for k in range(taps))
    return nn.functional.silu(out), rows[:, rows.shape[1] - taps + 1 :]


KEEP = numbers(6, 3, 4) > -0.7
SLOPES, EACH_SLOPES = torch.tensor([0.5, 0.125]), torch.tensor([[0.5, 0.25], [0.125, 1.0], [0.0, 0.75]])
LISTS = np.array([[5, 0, 31], [1, -1, -1], [2, 39, 17]], np.int32)
LOWER, LOWER_RIGHT = torch.ones(3, 4, dtype=torch.bool).tril(1), biases.causal_lower_right(3, 4)

OPERATORS: dict[str, Operator] = {
    "sdpa": Operator(sdpa, theirs, operands),
    "sdpa, causal and scale": Operator(*(lambda *x, f=f: f(*x, is_causal=True, scale=0.7) for f in (sdpa, theirs)), operands),
    "sdpa, bias": Operator(sdpa, theirs, lambda: [*operands(), *leaves((2, 3, 4))]),
    "sdpa, keep": Operator(*(lambda *x, f=f: f(*x, KEEP) for f in (sdpa, theirs)), operands),
    "sdpa, grouped": Operator(*(lambda *x, f=f: f(*x, enable_gqa=True) for f in (sdpa, theirs)), lambda: operands(4, 2)),
    "sdpa, lower right": Operator(lambda *x: sdpa(*x, LOWER_RIGHT), lambda *x: theirs(*x, LOWER), operands, graph=""),
    "flex": Operator(
        lambda *x: flex(*x, enable_gqa=True, return_lse=True), formula, lambda: operands(4, 2), graph=""
    ),
    "flex, soft cap and mask": Operator(
        lambda *x: flex(*x, qt.SoftCap(2.0), qkv.Mask.causal("bottom_right"), return_lse=True),
        lambda *x: formula(*x, lambda s, b, h, i, j: 2 * torch.tanh(s / 2), lambda b, h, i, j: j <= i + 1), operands, graph="",
    ),
    "flex, alibi": Operator(
        lambda *x: flex(*x, qkv.PositionBias.alibi([0.5, 0.25], "top_left"), return_lse=True),
        lambda *x: formula(*x, lambda s, b, h, i, j: s - 0.5 ** (h + 1) * (i - j).abs()), operands, graph="",
    ),
    "flex, lists": Operator(
        lambda *x: flex(*x, block_mask=qkv.Mask.keys(LISTS[None, None])),
        lambda *x: theirs(*x, attn_mask=(torch.tensor(LISTS)[..., None] == torch.arange(40)).any(-2)), lambda: operands(kv_len=40), graph="",
    ),
    "varlen": Operator(packed(SEQUENCES), each_alone(SEQUENCES), packed_inputs, once=True, graph="qkv.varlen_attention"),
    "varlen, causal": Operator(
        packed(SEQUENCES, window_size=(-1, 0)), each_alone(SEQUENCES, (-1, 0)), packed_inputs, once=True, graph="qkv.varlen_attention"
    ),
    "varlen, keys in use": Operator(
        packed(SEQUENCES, False, seqused_k=torch.tensor([2, 0, 3])), lambda *x: each_alone(SEQUENCES, used=[2, 0, 3])(*x)[0], packed_inputs,
        once=True, graph="qkv.varlen_attention",
    ),
    "varlen, soft cap and slopes": Operator(
        packed(SEQUENCES, softcap=2.0, alibi_slopes=SLOPES), each_alone(SEQUENCES, softcap=2.0, slopes=SLOPES), packed_inputs, once=True,
        graph="qkv.varlen_attention",
    ),
    "varlen, slopes of each sequence": Operator(
        packed(SEQUENCES, window_size=(-1, 0), alibi_slopes=EACH_SLOPES), each_alone(SEQUENCES, (-1, 0), slopes=EACH_SLOPES), packed_inputs,
        once=True, graph="qkv.varlen_attention",
    ),
    "varlen, sinks": Operator(
        packed(SEQUENCES, False), lambda *x: each_alone(SEQUENCES)(*x)[0], lambda: [*packed_inputs(), *leaves((2,))], once=True,
        graph="qkv.varlen_attention",
    ),
    "latent, absorbed": Operator(lambda *x: qt.latent_attention(*x, form="absorbed"), latent_by_hand, latent_inputs),
    "latent, materialised": Operator(lambda *x: qt.latent_attention(*x, form="materialised"), latent_by_hand, latent_inputs),
    "layer": Operator(
        *(lambda *x, f=layer(kind, need_weights=False): f(*x)[0] for kind in (qt.MultiheadAttention, nn.MultiheadAttention)),
        lambda: leaves((1, 3, 4), (12, 4), (12,), (4, 4), (4,)),
    ),
    "layer with weights": Operator(
        layer(qt.MultiheadAttention), layer(nn.MultiheadAttention), lambda: leaves((1, 3, 4), (12, 4), (12,), (4, 4), (4,)),
        forward=False, graph="qkv.",
    ),
    "delta rule": Operator(scan, scan_by_hand, lambda: delta_inputs(1, 5, 2, 4, 4, 3, False), once=True, graph="qkv.linear_scan"),
    "kimi delta": Operator(scan, scan_by_hand, lambda: delta_inputs(1, 5, 2, 4, 4, 3, True), once=True, graph="qkv.linear_scan"),
    "selective scan": Operator(
        lambda *x: qt.selective_scan(*x, output_final_state=True), selective_by_hand,
        lambda: leaves((2, 5, 3), (2, 5, 3), (3, 4), (2, 5, 4), (2, 5, 4), (3,), (2, 3, 4)), once=True, graph="qkv.selective_scan",
    ),
    "short convolution": Operator(
        lambda *x: qt.short_convolution(*x, activation="silu", return_last=True), convolved_by_hand,
        lambda: leaves((2, 2, 3), (3, 4), (3,), (2, 3, 3)), once=True, graph="qkv.short_convolution",
    ),
}  # fmt: skip

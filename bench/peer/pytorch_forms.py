"""PyTorch on packed batches and on the linear attention of hybrid models.

A packed batch: sequences of different lengths, padded with a mask of keys, one call each, or packed with a mask of documents.
The gated delta rule: transformers' torch path, as Qwen3-Next's layers call it.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from . import textbook
from .cases import Case

LONGEST_F64 = 192  # tokens for which gradients are compared with f64


def _lengths(case):
    """Of `qkv bench`'s ragged cases: 64, 128, ... q_len tokens."""
    return [case.q_len * (b + 1) // case.batch for b in range(case.batch)]


def packed(case):
    """name -> (run, error against f64): forward, or backward on a retained graph."""
    lengths, backward = _lengths(case), case.kind == "packed-backward"
    q, k, v, dout = (
        torch.from_numpy(x) for x in textbook.numbers(Case("", "forward", heads=case.heads, q_len=sum(lengths)))
    )
    for name, make in (("padded, mask", _padded), ("one by one", _one_by_one), ("packed, mask of documents", _documents)):
        inputs, douts, attend = make(lengths, q, k, v, dout)
        for x in inputs:
            x.requires_grad_(backward)
        out = attend()
        rows, expected = _last_rows(lengths, q, k, v)
        last = out[-1][-1, -1, -lengths[-1] :]
        error = textbook.difference(last[rows].detach(), expected)
        if backward:
            yield name, (_gradients(out, inputs, douts), error)
        else:
            yield name, (inference(attend), error)


def inference(attend):
    def run():
        with torch.inference_mode():
            return attend()

    return run


def _gradients(out, inputs, douts):
    return lambda: torch.autograd.grad(out, inputs, douts, retain_graph=True)


def _last_rows(lengths, q, k, v):
    """(rows, expected) of the last head of the last sequence."""
    own = [x[:, :, -lengths[-1] :].numpy() for x in (q, k, v)]
    case = Case("", "forward", heads=q.shape[1], q_len=lengths[-1], causal=True)
    return textbook.rows_of(case, *own)


def _padded(lengths, *tensors):
    def pad(x):
        rows = [part[0].transpose(0, 1) for part in x.split(lengths, dim=2)]  # [T, H, D] each
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left").transpose(1, 2).contiguous()

    q, k, v, dout = (pad(x) for x in tensors)
    i = torch.arange(max(lengths))
    starts = max(lengths) - torch.tensor(lengths)
    keep = (i[None, None, :] <= i[None, :, None]) & (i[None, None, :] >= starts[:, None, None])
    keep = (keep | torch.eye(max(lengths), dtype=torch.bool))[:, None]  # a row of padding sees itself: no NaN
    return [q, k, v], [dout], lambda: [sdpa(q, k, v, attn_mask=keep)]


def _one_by_one(lengths, *tensors):
    parts = [[part.contiguous() for part in x.split(lengths, dim=2)] for x in tensors]
    inputs = [x for part in parts[:3] for x in part]
    return inputs, parts[3], lambda: [sdpa(q, k, v, is_causal=True) for q, k, v in zip(*parts[:3])]


def _documents(lengths, q, k, v, dout):
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    keep = (ids[:, None] == ids[None, :]).tril()
    q, k, v = (x.clone() for x in (q, k, v))
    return [q, k, v], [dout], lambda: [sdpa(q, k, v, attn_mask=keep)]


def hybrid(case):
    """The gated delta rule forward, or backward on a retained graph."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as rule

    backward = case.kind == "hybrid-backward"

    def call(*inputs):
        return rule(*inputs, use_qk_l2norm_in_kernel=True)[0]

    small = _gated_inputs(min(case.q_len, LONGEST_F64), case)
    exact = [x.double().requires_grad_() for x in small[:5]]
    expected = _gated_delta_f64(*exact)
    got = [x.requires_grad_() for x in small[:5]]
    out = call(*got)
    error = textbook.difference(out.detach(), expected.detach())
    if backward:
        pairs = zip(torch.autograd.grad(out, got, small[5]), torch.autograd.grad(expected, exact, small[5].double()))
        error = max(textbook.difference(a, b) for a, b in pairs)
    *inputs, dout = _gated_inputs(case.q_len, case)
    if backward:
        for x in inputs:
            x.requires_grad_()
        yield "transformers' torch path", (_gradients(call(*inputs), inputs, dout), error)
    else:
        yield "transformers' torch path", (inference(lambda: call(*inputs)), error)


def _gated_inputs(length, case):
    """q, k, v [1, T, H, D], log decay and beta [1, T, H], dout."""
    random = torch.Generator().manual_seed(17)

    def draw(*sizes, low=-1.0, high=1.0):
        return torch.rand(1, length, case.heads, *sizes, generator=random) * (high - low) + low

    q, k, v, dout = (draw(case.head_dim) for _ in range(4))
    return [q, k, v, draw(low=-0.05, high=0), draw(low=0), dout]


def _gated_delta_f64(q, k, v, g, beta):
    """The recurrence: S = exp(g) S; S += k (beta (v - S^T k))^T; out = S^T q / sqrt(D); q and k of length 1."""
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    state, outs = q.new_zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        error = v[:, t] - torch.einsum("bhde,bhd->bhe", state, k[:, t])
        state = state + torch.einsum("bhd,bhe->bhde", k[:, t], beta[:, t, :, None] * error)
        outs.append(torch.einsum("bhde,bhd->bhe", state, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(outs, 1)

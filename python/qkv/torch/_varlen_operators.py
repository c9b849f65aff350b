"""The operators torch.ops.qkv.varlen_*: attention of packed sequences in eager autograd, torch.compile, torch.export; torch.func
and forward mode go through _functional.py, which calls them. Tensors, rules, results: see _varlen_calls.py.

    qkv::varlen_attention(q, k, v, cu_seq_q, cu_seq_k, seqused_k, block_table, seed, ...) -> (out, lse)
    qkv::varlen_attention_out(out, ...) -> lse                                               no gradients
    qkv::varlen_attention_backward(dout, dlse, ...) -> (dq, dk, dv)
    qkv::varlen_attention_double_backward(ddq, ddk, ddv, dout, dlse, ...) -> (gq, gk, gv, gdout, gdlse)
    qkv::varlen_attention_jvp(tq, tk, tv, ...) -> (tout, tlse)                               no gradients
"""

from __future__ import annotations

import torch

from . import _varlen_calls as calls
from ._operators import _tags
from ._varlen_calls import PACKED, Rules

_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seq_q, Tensor? cu_seq_k, Tensor? seqused_k, Tensor? block_table, Tensor? seed"
)
_RULES = "SymInt max_q, SymInt max_k, int left, int right, bool bottom_right, float? scale, float dropout_p"
_library = torch.library.Library("qkv", "FRAGMENT")
_library.define(f"varlen_attention({_TENSORS}, {_RULES}) -> (Tensor, Tensor)", tags=_tags)
_library.define(f"varlen_attention_out(Tensor(a!) out, {_TENSORS}, {_RULES}) -> Tensor", tags=_tags)
_library.define(
    f"varlen_attention_backward(Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, Tensor lse, {_RULES}) "
    "-> (Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"varlen_attention_double_backward(Tensor? ddq, Tensor? ddk, Tensor? ddv, Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, "
    f"Tensor lse, {_RULES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"varlen_attention_jvp(Tensor? tq, Tensor? tk, Tensor? tv, {_TENSORS}, Tensor lse, {_RULES}) -> (Tensor, Tensor)",
    tags=_tags,
)

attention = torch.ops.qkv.varlen_attention.default
attention_out = torch.ops.qkv.varlen_attention_out.default
attention_backward = torch.ops.qkv.varlen_attention_backward.default
attention_double_backward = torch.ops.qkv.varlen_attention_double_backward.default
attention_jvp = torch.ops.qkv.varlen_attention_jvp.default

_COUNT = PACKED + len(Rules._fields)


# Fake kernels


def _attention_fake(q, k, v, *_):
    return calls.new_results(q, v)


def _out_fake(out, q, *_):
    return calls.new_lse(q)


def _backward_fake(dout, dlse, q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _double_fake(ddq, ddk, ddv, dout, dlse, q, k, v, *rest):
    lse = rest[PACKED - 2]
    return (*(x.new_empty(x.shape) for x in (q, k, v, dout)), lse.new_empty(0 if dlse is None else lse.shape))


def _jvp_fake(tq, tk, tv, q, k, v, *_):
    return calls.new_results(q, v)


# Formulas


def _attention_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:PACKED], *output)
    ctx.rules = inputs[PACKED:]
    ctx.set_materialize_grads(False)


def refuse_pages(block_table):
    """Raises NotImplementedError where gradients are asked of keys in pages."""
    if block_table is not None:
        raise NotImplementedError(
            "[varlen_attn] block_table is for inference, as in PyTorch: gradients are computed of packed keys [total_k, Hkv, D] only"
        )


def _attention_formula(ctx, dout, dlse):
    if dout is None and dlse is None:
        return (None,) * _COUNT
    *tensors, out, lse = ctx.saved_tensors
    refuse_pages(tensors[6])
    dout = torch.zeros_like(out) if dout is None else dout
    return (*attention_backward(dout, dlse, *tensors, out, lse, *ctx.rules), *(None,) * (_COUNT - 3))


def _backward_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[: PACKED + 4])
    ctx.rules = inputs[PACKED + 4 :]
    ctx.set_materialize_grads(False)


def _backward_formula(ctx, *cotangents):
    if all(c is None for c in cotangents):
        return (None,) * (_COUNT + 4)
    dout, dlse, *tensors = ctx.saved_tensors
    gq, gk, gv, gdout, gdlse = attention_double_backward(*cotangents, dout, dlse, *tensors, *ctx.rules)
    return gdout, None if dlse is None else gdlse, gq, gk, gv, *(None,) * (_COUNT - 1)


# torch.func.vmap: the batch becomes more heads. Head h of example n is head n * H + h, so groups of heads stay together.


def _as_heads(count, x, dim):
    """x without its batch axis `dim`: it goes in front of the heads, which are axis 1 of tokens and axis 0 of lse."""
    if x is None:
        return None
    heads = 0 if x.dim() - (dim is not None) == 2 else 1
    x = x.unsqueeze(heads).expand(*x.shape[:heads], count, *x.shape[heads:]) if dim is None else x.movedim(dim, heads)
    return x.flatten(heads, heads + 1)


def _batching(operator, tokens, results):
    """A batching rule. tokens: which arguments have heads, before and after the five that have none; results: the axis of heads of
    each result."""
    before, after = tokens

    def rule(info, in_dims, *arguments):
        if any(d is not None for d in in_dims[before : before + 5]) or arguments[before + 3] is not None:
            raise NotImplementedError(
                "[varlen_attn] vmap is over query, key and value: offsets, lengths or pages that differ go into one packed call"
            )
        if arguments[-1]:
            raise NotImplementedError(
                "[varlen_attn] vmap over attention with dropout is not computed: pack the examples in one call instead"
            )
        heads = {*range(before), *range(before + 5, before + 5 + after)}
        count = info.batch_size
        made = operator(*(_as_heads(count, x, d) if n in heads else x for n, (x, d) in enumerate(zip(arguments, in_dims))))
        split = (x.unflatten(axis, (count, -1)) if x.dim() > 1 else x.new_empty(count, 0) for x, axis in zip(made, results))
        return tuple(split), results

    return rule


for _operator, _cpu, _fake in (
    (attention, calls.forward, _attention_fake),
    (attention_out, calls.forward_into, _out_fake),
    (attention_backward, calls.backward, _backward_fake),
    (attention_double_backward, calls.double_backward, _double_fake),
    (attention_jvp, calls.jvp, _jvp_fake),
):
    _library.impl(_operator, _cpu, "CPU")
    torch.library.register_fake(_operator, _fake, lib=_library)
torch.library.register_autograd(attention, _attention_formula, setup_context=_attention_setup, lib=_library)
torch.library.register_autograd(attention_backward, _backward_formula, setup_context=_backward_setup, lib=_library)
for _operator, _tokens, _results in (
    (attention, (3, 0), (1, 0)),
    (attention_backward, (5, 2), (1, 1, 1)),
    (attention_double_backward, (8, 2), (1, 1, 1, 1, 0)),
    (attention_jvp, (6, 1), (1, 0)),
):
    torch.library.register_vmap(_operator, _batching(_operator, _tokens, _results), lib=_library)

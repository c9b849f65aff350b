"""The operators torch.ops.qkv.*: attention where PyTorch traces instead of running. torch.compile, torch.export, make_fx and
torch.func see one opaque node with a fake kernel, formulas and a batching rule; eager autograd uses _functions.py.

    qkv::attention(q, k, v, bias, keep, seed, dropout_p, causal, scale, empty_row) -> (out, lse)
    qkv::attention_backward(...) -> (dq, dk, dv, dbias)       dbias is empty where it is not needed
    qkv::attention_double_backward(...) -> (gq, gk, gv, gdout, gbias, gdlse)    gbias, gdlse empty likewise
    qkv::attention_jvp(tq, tk, tv, tbias, ...) -> (tout, tlse)

seed: int64 [1], where dropout_p > 0: a tensor, so that drawing it stays in the graph.
"""

from __future__ import annotations

import torch

from . import _calls
from ._calls import Rules, plain_rules

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? keep, Tensor? seed"
_RULES = "float dropout_p, bool causal, float? scale, str empty_row"
_library = torch.library.Library("qkv", "DEF")
# Tensors that Inductor lays out anew could lose the last stride of 1; before PyTorch 2.8 the tag had another name.
_tags = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))
_library.define(f"attention({_TENSORS}, {_RULES}) -> (Tensor, Tensor)", tags=_tags)
_library.define(
    f"attention_backward(Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, Tensor lse, {_RULES}, bool need_bias) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"attention_double_backward(Tensor? ddq, Tensor? ddk, Tensor? ddv, Tensor? ddbias, Tensor dout, Tensor? dlse, {_TENSORS}, "
    f"Tensor out, Tensor lse, {_RULES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define(
    f"attention_jvp(Tensor? tq, Tensor? tk, Tensor? tv, Tensor? tbias, {_TENSORS}, Tensor lse, {_RULES}) -> (Tensor, Tensor)",
    tags=_tags,
)

attention = torch.ops.qkv.attention.default
attention_backward = torch.ops.qkv.attention_backward.default
attention_double_backward = torch.ops.qkv.attention_double_backward.default
attention_jvp = torch.ops.qkv.attention_jvp.default


def _options(bias, keep, seed, dropout_p, causal, scale, empty_row):
    if dropout_p:
        if seed is None:
            raise ValueError("[qkv::attention] dropout_p > 0 needs a seed: an int64 tensor of one element")
        rules = Rules(causal, scale, dropout_p, int(seed) & (2**64 - 1), empty_row)
    else:
        rules = plain_rules(causal, scale, empty_row)
    return rules.options(bias, keep)


# Forward


def _attention_cpu(q, k, v, bias, keep, seed, dropout_p, causal, scale, empty_row):
    return _calls.forward_with_lse(q, k, v, _options(bias, keep, seed, dropout_p, causal, scale, empty_row))


def _attention_fake(q, k, v, bias, keep, seed, dropout_p, causal, scale, empty_row):
    return _calls.empty_output(q, v), _calls.empty_lse(q)


def _attention_setup(ctx, inputs, output):
    q, k, v, bias, keep, seed, *ctx.rules = inputs
    ctx.save_for_backward(q, k, v, bias, keep, seed, *output)
    ctx.set_materialize_grads(False)


def _attention_formula(ctx, dout, dlse):
    q, k, v, bias, keep, seed, out, lse = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 10
    if dout is None:
        dout = torch.zeros_like(out)
    need = ctx.needs_input_grad[3]
    dq, dk, dv, dbias = attention_backward(dout, dlse, q, k, v, bias, keep, seed, out, lse, *ctx.rules, need)
    return dq, dk, dv, dbias if need else None, *(None,) * 6


# Backward


def _backward_cpu(dout, dlse, q, k, v, bias, keep, seed, out, lse, dropout_p, causal, scale, empty_row, need_bias):
    options = _options(bias, keep, seed, dropout_p, causal, scale, empty_row)
    wanted = bias if need_bias else None
    dq, dk, dv, dbias, _ = _calls.backward(dout, dlse, q, k, v, out, lse, options, bias=wanted)
    return dq, dk, dv, lse.new_empty(0) if dbias is None else dbias


def _backward_fake(dout, dlse, q, k, v, bias, keep, seed, out, lse, dropout_p, causal, scale, empty_row, need_bias):
    dbias = bias.new_empty(bias.shape) if need_bias and bias is not None else lse.new_empty(0)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dbias


def _backward_setup(ctx, inputs, output):
    dout, dlse, q, k, v, bias, keep, seed, out, lse, *rules, _ = inputs
    ctx.rules = rules
    ctx.save_for_backward(dout, dlse, q, k, v, bias, keep, seed, out, lse)
    ctx.set_materialize_grads(False)


def _backward_formula(ctx, ddq, ddk, ddv, ddbias):
    dout, dlse, q, k, v, bias, keep, seed, out, lse = ctx.saved_tensors
    if all(c is None for c in (ddq, ddk, ddv, ddbias)):
        return (None,) * 15
    gq, gk, gv, gdout, gbias, gdlse = attention_double_backward(
        ddq, ddk, ddv, ddbias, dout, dlse, q, k, v, bias, keep, seed, out, lse, *ctx.rules
    )  # fmt: skip
    return gdout, None if dlse is None else gdlse, gq, gk, gv, None if bias is None else gbias, *(None,) * 9


# Double backward


def _double_cpu(ddq, ddk, ddv, ddbias, dout, dlse, q, k, v, bias, keep, seed, out, lse, dropout_p, causal, scale, empty_row):
    options = _options(bias, keep, seed, dropout_p, causal, scale, empty_row)
    ddbias = None if bias is None or ddbias is None or ddbias.shape != bias.shape else ddbias
    made = _calls.double_backward((ddq, ddk, ddv, ddbias), dout, dlse, q, k, v, out, lse, options, bias)
    return (*made[:4], *(lse.new_empty(0) if x is None else x for x in made[4:]))


def _double_fake(ddq, ddk, ddv, ddbias, dout, dlse, q, k, v, bias, keep, seed, out, lse, dropout_p, causal, scale, empty_row):
    like = [torch.empty_like(x) for x in (q, k, v, _calls.inner_contiguous(dout))]
    return (*like, *(lse.new_empty(0) if x is None else x.new_empty(x.shape) for x in (bias, dlse)))


# Forward mode


def _jvp_cpu(tq, tk, tv, tbias, q, k, v, bias, keep, seed, lse, dropout_p, causal, scale, empty_row):
    options = _options(bias, keep, seed, dropout_p, causal, scale, empty_row)
    return _calls.jvp(q, k, v, lse, (tq, tk, tv, tbias), options)


def _jvp_fake(tq, tk, tv, tbias, q, k, v, bias, keep, seed, lse, dropout_p, causal, scale, empty_row):
    return _calls.empty_output(q, v), torch.empty_like(lse)


# torch.func.vmap: one more batch axis is folded into B.


def _attention_vmap(info, in_dims, q, k, v, bias, keep, seed, dropout_p, causal, scale, empty_row):
    if dropout_p:
        raise NotImplementedError(
            "[qkv::attention] vmap over attention with dropout is not computed: draw the batch in B instead"
        )
    n = info.batch_size

    def fold(x, dim, batch):
        moved = x.unsqueeze(0).expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        if batch is not None:
            moved = moved.expand(n, batch, *moved.shape[2:])
        return moved.reshape(-1, *moved.shape[2:])

    b = q.shape[0] if in_dims[0] is None else q.movedim(in_dims[0], 0).shape[1]
    qf, kf, vf = (_calls.inner_contiguous(fold(x, d, None)) for x, d in zip((q, k, v), in_dims))
    masks = [m if m is None or (d is None and m.shape[0] == 1) else fold(m, d, b) for m, d in zip((bias, keep), in_dims[3:5])]
    out, lse = attention(qf, kf, vf, *masks, None, 0.0, causal, scale, empty_row)
    return (out.unflatten(0, (n, b)), lse.unflatten(0, (n, b))), (0, 0)


def _looping(operator):
    """A batching rule that calls the operator once per element."""

    def rule(info, in_dims, *args):
        given = [None if not isinstance(x, torch.Tensor) else d for x, d in zip(args, in_dims)]  # a list has a list of them
        each = [operator(*(x if d is None else x.select(d, n) for x, d in zip(args, given))) for n in range(info.batch_size)]
        stacked = tuple(torch.stack(results) for results in zip(*each))
        return stacked, (0,) * len(stacked)

    return rule


for _operator, _cpu, _fake in (
    (attention, _attention_cpu, _attention_fake),
    (attention_backward, _backward_cpu, _backward_fake),
    (attention_double_backward, _double_cpu, _double_fake),
    (attention_jvp, _jvp_cpu, _jvp_fake),
):
    _library.impl(_operator, _cpu, "CPU")
    torch.library.register_fake(_operator, _fake, lib=_library)
torch.library.register_autograd(attention, _attention_formula, setup_context=_attention_setup, lib=_library)
torch.library.register_autograd(attention_backward, _backward_formula, setup_context=_backward_setup, lib=_library)
torch.library.register_vmap(attention, _attention_vmap, lib=_library)
torch.library.register_vmap(attention_backward, _looping(attention_backward), lib=_library)
torch.library.register_vmap(attention_double_backward, _looping(attention_double_backward), lib=_library)
torch.library.register_vmap(attention_jvp, _looping(attention_jvp), lib=_library)

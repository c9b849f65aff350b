"""Derivative graphs: one row (a Step) for each function that PyTorch differentiates, and one machine that makes of a row what
PyTorch's ways of differentiating and tracing want. Here: attention; packed sequences and linear attention stand with their kernels
(_varlen_calls.py, _linear_calls.py).

A row with a schema becomes an operator torch.ops.qkv.NAME, opaque where PyTorch traces instead of running (torch.compile,
torch.export, make_fx), and a Function around it for torch.func and forward mode, since a registered operator drops tangents without
a word. A row without one takes `rules`, an object that may hold masks and functions: a Function for eager autograd, which costs
half as much as an operator.

    attention                                        operators, of scalars: what traces and torch.func see
    Attend, attend_with_lse, attend_with_weights     eager, of a Rules: what flex_attention can say
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import Parameter

from . import _calls
from ._calls import Rules, plain_rules

FORWARD_OVER_REVERSE = (
    "[qkv.torch] forward mode is not differentiated again, nor backward in forward mode: for second derivatives take backward "
    "twice, torch.func.jacrev(torch.func.grad(f)) or create_graph=True"
)
PLAIN = frozenset((Tensor, Parameter, type(None)))
_tracing = torch._C._get_tracing_state
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._functorch.peek_interpreter_stack
_profiled = torch._C._autograd._profiler_enabled
_is_batched = torch._C._functorch.is_legacy_batchedtensor
_library = torch.library.Library("qkv", "DEF")
# Tensors that Inductor lays out anew could lose the last stride of 1.
_tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def direct(*tensors: Tensor | None) -> bool:
    """Whether tensors have memory to compute on here and now: nothing traces, batches or intercepts them."""
    if torch.compiler.is_compiling() or _dispatch_modes() or _functorch() is not None or _tracing() is not None:
        return False
    return PLAIN.issuperset(map(type, tensors))


def operator(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    _library.define(schema, tags=_tags)
    name = schema.partition("(")[0]
    made = getattr(torch.ops.qkv, name).default
    _library.impl(made, kernel, "CPU")
    torch.library.register_fake(made, fake, lib=_library)
    return made


def _without_none(function: Callable[..., Any]) -> Callable[..., Any]:
    """For an operator, which returns tensors alone: an empty one stands for a result that is not wanted."""
    return lambda *arguments: tuple(torch.empty(0) if x is None else x for x in function(*arguments))


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of torch.func.vmap: the function once per example."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        def example(n: int) -> list[Any]:
            each = zip(arguments, in_dims)
            return [_calls.inner_contiguous(x.select(d, n)) if isinstance(x, Tensor) and d is not None else x for x, d in each]

        results = zip(*(function(*example(n)) for n in range(info.batch_size)))
        whole = tuple(None if each[0] is None else torch.stack(each) for each in results)
        return whole, tuple(None if x is None else 0 for x in whole)

    return rule


def _unbatched(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """function for autograd's batched gradients (is_grads_batched, jacobian(vectorize=True)): once per example. They come as
    PyTorch's older batched tensors, which only operators of its dispatcher may read."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    batched = [isinstance(x, Tensor) and _is_batched(x) for x in arguments]
    plain = [torch._remove_batch_dim(x, level, 0, 0) if b else x for x, b in zip(arguments, batched)]
    info = SimpleNamespace(batch_size=next(x.shape[0] for x, b in zip(plain, batched) if b))
    results, _ = _one_by_one(function)(info, tuple(0 if b else None for b in batched), *plain)
    return tuple(None if x is None else torch._add_batch_dim(x, 0, level) for x in results)


def needed(needs: Sequence[bool]) -> int:
    """The gradients that a backward computes, as the bits of a number: an operator of lists has no vmap."""
    return sum(1 << n for n, need in enumerate(needs) if need)


def wanted(need: int, count: int) -> tuple[bool, ...]:
    """The first of `needed`, again."""
    return tuple(bool(need >> n & 1) for n in range(count))


class Step:
    """A function of `count` tensors and then of what is no tensor, which returns a tuple.

    backward(saved, rest, needs, *cotangents): gradients of the first inputs; saved: the tensors, and the results with
    save_results; rest: the inputs behind them; needs: which inputs want a gradient. jvp(saved, rest, tangents): tangents of the
    results. A string instead is why there is none. vmap: the operator's rule; by default one example after another.
    """

    def __init__(
        self, kernel: Callable[..., Any], count: int, backward: Any = None, jvp: Any = None, *, save_results: bool = False,
        schema: str = "", fake: Any = None, vmap: Any = None,
    ) -> None:  # fmt: skip
        self.kernel = self.forward = kernel
        self.operator: Any = None
        self.count, self.backward, self.jvp, self.save_results = count, backward, jvp, save_results
        if schema:
            self.operator = self.forward = operator(schema, _without_none(kernel), _without_none(fake))
            torch.library.register_vmap(self.operator, vmap or _one_by_one(self.operator), lib=_library)
            if backward is not None:
                torch.library.register_autograd(self.operator, self._formula, setup_context=self._save, lib=_library)
        members = {
            "forward": staticmethod(lambda *arguments: self.forward(*arguments)),
            "setup_context": staticmethod(lambda *given: self._save(*given, for_all=bool(schema))),
            "backward": staticmethod(self._formula),
            "jvp": staticmethod(self._tangents),
        }
        rule = {"generate_vmap_rule": True} if schema else {"vmap": staticmethod(_one_by_one(lambda *a: self.apply(*a)))}
        self.apply = type("QkvStep", (Function,), {**members, **rule}).apply
        here = type("QkvStep", (Function,), {"forward": staticmethod(self._forward), "backward": members["backward"]})
        self._recorded = super(Function, here).apply  # type: ignore[misc]  # see apply_attend

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """As an operator, which PyTorch's profiler also names, or as a Function where only that is differentiated, or where nothing
        but autograd looks on: half the time of the operator. A row without a schema as `eager`."""
        if self.operator is None:
            return self.eager(*arguments)
        if torch.compiler.is_compiling() or self.backward is None:
            return self.operator(*arguments)
        if _functorch() is not None or forward_ad._current_level >= 0:
            return self.apply(*arguments)
        tensors = arguments[: self.count]
        if not direct(*tensors) or _profiled() or any(x is not None and (_is_batched(x) or x.is_neg()) for x in tensors):
            return self.operator(*arguments)
        return (self._recorded if torch.is_grad_enabled() else self.kernel)(*arguments)

    def _forward(self, ctx: Any, *arguments: Any) -> tuple[Any, ...]:
        made = self.kernel(*arguments)
        self._save(ctx, arguments, made)
        return made

    def eager(self, *arguments: Any) -> tuple[Any, ...]:
        """On memory, recorded where a graph is being recorded; for gradients, which come in batches (the first four arguments)."""
        recorded = torch.is_grad_enabled() or _functorch() is not None or forward_ad._current_level >= 0
        function = self.apply if recorded else self.kernel
        if any(isinstance(x, Tensor) and _is_batched(x) for x in arguments[:4]):
            return _unbatched(function, arguments)
        return function(*arguments)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any, for_all: bool = False) -> None:
        tensors = (*inputs[: self.count], *(output if self.save_results else ()))
        ctx.save_for_backward(*tensors)
        if for_all or forward_ad._current_level >= 0 or _functorch() is not None:
            ctx.save_for_forward(*tensors)
        ctx.rest, ctx.inputs = inputs[self.count :], len(inputs)
        ctx.set_materialize_grads(for_all)

    def _formula(self, ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        if not callable(self.backward):
            raise NotImplementedError(self.backward)
        made: tuple[Any, ...] = ()
        if any(c is not None for c in cotangents):
            needs = ctx.needs_input_grad
            made = tuple(x if n else None for x, n in zip(self.backward(ctx.saved_tensors, ctx.rest, needs, *cotangents), needs))
        return (*made, *(None,) * (ctx.inputs - len(made)))

    def _tangents(self, ctx: Any, *tangents: Any) -> Any:
        if not callable(self.jvp):
            raise NotImplementedError(self.jvp)
        return self.jvp(ctx.saved_tensors, ctx.rest, tangents)


# Attention twice, by one set of formulas: (q, k, v, bias, keep, extra, *rules) -> (out, lse, lse_low).
#
# Of scalars (operators): rules are dropout_p, causal, scale, empty_row; extra is the seed, int64 [1] where dropout_p > 0, a tensor,
# so that drawing it stays in the graph. Of a _calls.Rules: extra is the table of a position bias.

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? keep, Tensor? seed"
_RULES = "float dropout_p, bool causal, float? scale, str empty_row"


def _options(bias: Tensor | None, keep: Tensor | None, extra: Tensor | None, *rules: Any) -> Any:
    if len(rules) == 1:
        return rules[0].options(bias, keep, extra)
    dropout_p, causal, scale, empty_row = rules
    if not dropout_p:
        return plain_rules(causal, scale, empty_row).options(bias, keep)
    if extra is None:
        raise ValueError("[qkv::attention] dropout_p > 0 needs a seed: an int64 tensor of one element")
    return Rules(causal, scale, dropout_p, int(extra) & (2**64 - 1), empty_row).options(bias, keep)


def _forward(q, k, v, bias, keep, extra, *rules):  # type: ignore[no-untyped-def]
    options = _options(bias, keep, extra, *rules)
    return _calls.forward_with_lse(*map(_calls.inner_contiguous, (q, k, v)), options, len(rules) > 1)


def _backward(dout, dlse, q, k, v, bias, keep, extra, out, lse, low, *rest):  # type: ignore[no-untyped-def]
    *rules, need = rest
    need = wanted(need, 5) if type(need) is int else need
    shape = tuple(extra.shape) if need[4] and extra is not None else None
    options, bias = _options(bias, keep, extra, *rules), bias if need[3] else None
    return _calls.backward(dout, dlse, q, k, v, out, lse, low, options, need[:3], bias, shape)


def _double_backward(ddq, ddk, ddv, ddbias, dout, dlse, q, k, v, bias, keep, extra, out, lse, *rules):  # type: ignore[no-untyped-def]
    both = zip((ddq, ddk, ddv, ddbias), (q, k, v, bias))  # zeros of an empty tensor may stand for None
    cotangents = tuple(None if c is None or x is None or c.shape != x.shape else c for c, x in both)
    return _calls.double_backward(cotangents, dout, dlse, q, k, v, out, lse, _options(bias, keep, extra, *rules), bias)


def _double_fake(ddq, ddk, ddv, ddbias, dout, dlse, q, k, v, bias, *_):  # type: ignore[no-untyped-def]
    like = [_calls.empty_as(x) for x in (q, k, v, _calls.inner_contiguous(dout))]
    return (*like, *(None if x is None else x.new_empty(x.shape) for x in (bias, dlse)))


def _jvp(tq, tk, tv, tbias, q, k, v, bias, keep, extra, lse, *rules):  # type: ignore[no-untyped-def]
    return _calls.jvp(q, k, v, lse, (tq, tk, tv, tbias), _options(bias, keep, extra, *rules))


def _fold(info, in_dims, q, k, v, bias, keep, seed, dropout_p, *rules):  # type: ignore[no-untyped-def]
    """torch.func.vmap: one more batch axis is folded into B."""
    if dropout_p:
        raise NotImplementedError(
            "[qkv::attention] vmap over attention with dropout is not computed: draw the batch in B instead"
        )
    n = info.batch_size

    def fold(x: Tensor, dim: int | None, batch: int | None) -> Tensor:
        moved = x.unsqueeze(0).expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        if batch is not None:
            moved = moved.expand(n, batch, *moved.shape[2:])
        return moved.reshape(-1, *moved.shape[2:])

    b = q.shape[0] if in_dims[0] is None else q.movedim(in_dims[0], 0).shape[1]
    folded = (_calls.inner_contiguous(fold(x, d, None)) for x, d in zip((q, k, v), in_dims))
    masks = [m if m is None or (d is None and m.shape[0] == 1) else fold(m, d, b) for m, d in zip((bias, keep), in_dims[3:5])]
    return tuple(x.unflatten(0, (n, b)) for x in attention.operator(*folded, *masks, None, 0.0, *rules)), (0, 0, 0)


def _attention_graph(operators: bool) -> Step:
    """Attention and its derivatives, as operators of scalars or as Functions of a Rules."""

    def schema(name: str, tensors: str, more: str, results: int) -> str:
        made = f"{name}({tensors}, {_RULES}{more}) -> ({', '.join(['Tensor'] * results)})"
        return made if operators else ""

    def gradients(saved: Any, rest: Any, needs: Any, dout: Tensor | None, dlse: Tensor | None = None, _: Any = None) -> tuple[Any, ...]:
        if dout is None:
            dout = torch.zeros_like(saved[6])
        need = (needs[0], needs[1], needs[2], needs[3], needs[5])
        dq, dk, dv, dbias, dextra = backward(dout, dlse, *saved, *rest, needed(need) if operators else need)
        return dq, dk, dv, dbias, None, dextra

    def second_gradients(saved: Any, rest: Any, needs: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        if saved[7] is not None and not operators:
            raise NotImplementedError("[qkv.torch] gradients of gradients through a table of a position bias are not computed")
        gq, gk, gv, gdout, gbias, gdlse = double_backward(*cotangents[:4], *saved[:10], *rest[:-1])
        return gdout, gdlse, gq, gk, gv, gbias

    def tangents(saved: Any, rest: Any, tangents: Any) -> tuple[Tensor | None, ...]:
        if tangents[5] is not None:
            raise NotImplementedError("[qkv.torch] forward mode does not differentiate a table of a position bias: use backward")
        tout, tlse = jvp(*tangents[:4], *saved[:6], saved[7], *rest)
        return tout, tlse, None if saved[8] is None else torch.zeros_like(tlse)

    cotangents = "Tensor? ddq, Tensor? ddk, Tensor? ddv, Tensor? ddbias, Tensor dout, Tensor? dlse"
    double_backward = Step(
        _double_backward, 14, None if operators else "[qkv.torch] third derivatives are not computed", FORWARD_OVER_REVERSE,
        schema=schema("attention_double_backward", f"{cotangents}, {_TENSORS}, Tensor out, Tensor lse", "", 6), fake=_double_fake,
    )  # fmt: skip
    backward = Step(
        _backward, 11, second_gradients, FORWARD_OVER_REVERSE,
        schema=schema(
            "attention_backward", f"Tensor dout, Tensor? dlse, {_TENSORS}, Tensor out, Tensor lse, Tensor? lse_low", ", int need", 5
        ),
        fake=lambda dout, dlse, q, k, v, bias, *rest: tuple(
            (x.new_empty(x.shape) if x is bias else _calls.empty_as(x)) if x is not None and n else None
            for x, n in zip((q, k, v, bias, None), wanted(rest[-1], 5))
        ),
    )  # fmt: skip
    jvp = Step(
        _jvp, 11, FORWARD_OVER_REVERSE, FORWARD_OVER_REVERSE,
        schema=schema(
            "attention_jvp", f"Tensor? tq, Tensor? tk, Tensor? tv, Tensor? tbias, {_TENSORS}, Tensor lse", "", 2
        ),
        fake=lambda tq, tk, tv, tbias, q, k, v, bias, keep, seed, lse, *_: (_calls.empty_output(q, v), torch.empty_like(lse)),
    )  # fmt: skip
    return Step(
        _forward, 6, gradients, tangents, save_results=True, schema=schema("attention", _TENSORS, "", 3), vmap=_fold,
        fake=lambda q, k, v, *_: (_calls.empty_output(q, v), _calls.empty_lse(q), _calls.empty_lse(q)),
    )  # fmt: skip


attention, attend_with_lse = _attention_graph(True), _attention_graph(False)
_gradients, _tangents = attend_with_lse.backward, attend_with_lse.jvp


class Attend(Function):
    """attend_with_lse's out alone, with less around it: most calls of a training step are this one."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Any, keep: Any, table: Any, rules: Rules) -> Tensor:
        out, lse, low = _calls.forward_with_lse(q, k, v, rules.options(bias, keep, table))
        ctx.save_for_backward(q, k, v, bias, keep, table, out, lse, low)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(q, k, v, bias, keep, table, out, lse, low)
        ctx.rules = rules
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        saved, rules, needs = ctx.saved_tensors, ctx.rules, ctx.needs_input_grad
        if torch.is_grad_enabled() or _is_batched(dout) or _functorch() is not None or forward_ad._current_level >= 0:
            return (*_gradients(saved, (rules,), needs, dout), None)
        made = _backward(dout, None, *saved, rules, (needs[0], needs[1], needs[2], needs[3], needs[5]))
        return (*made[:4], None, made[4], None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _tangents(ctx.saved_tensors, (ctx.rules,), tangents)[0]


# Function.apply without its check for functorch, which callers have made (direct): this saves 2.5 us.
apply_attend = super(Function, Attend).apply  # type: ignore[misc]


def _gradients_with_weights(saved: Any, rest: Any, needs: Any, dout: Any, dweights: Any, *_: Any) -> tuple[Any, ...]:
    """A gradient that arrives at the weights is that of attention with the identity as values: weights = attention(q, k, 1)."""
    q, k, v, bias, keep, out, weights, lse, low = saved
    needs = (*needs[:5], False)
    total = [None] * 6
    if dout is not None:
        total = list(_gradients((q, k, v, bias, keep, None, out, lse, low), rest, needs, dout))
    if dweights is not None:
        one = torch.eye(k.shape[2], dtype=k.dtype).expand(k.shape[0], k.shape[1], -1, -1)
        needs = (*needs[:2], False, *needs[3:])
        more = _gradients((q, k, one, bias, keep, None, weights.to(q.dtype), lse, low), rest, needs, dweights.to(q.dtype))
        total = [b if a is None else a if b is None else a + b for a, b in zip(total, more)]
    return tuple(total[:5])


# (q, k, v, bias, keep, rules) -> (out, weights after dropout, of lse's type, lse, lse_low)
attend_with_weights = Step(
    lambda q, k, v, bias, keep, rules: _calls.forward_with_weights(q, k, v, rules.options(bias, keep)), 5, _gradients_with_weights,
    "[qkv.torch] forward mode is not computed where weights are wanted too: need_weights=False", save_results=True,
)  # fmt: skip

"""qkv.torch.MultiheadAttention against nn.MultiheadAttention over a product of options: outputs, weights, gradients of inputs
and parameters, state_dict both ways. PyTorch in float64 is the truth, in float32 the naive form (support_torch.py). Not: transforms (test_operators.py)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from support_torch import compare, expect_close, numbers
from torch import Tensor, nn

EMBED, HEADS, BATCH, Q_LEN, KV_LEN = 12, 3, 2, 5, 7


def module(
    kind: type[nn.MultiheadAttention], dtype: torch.dtype, state: dict[str, Tensor], **options: Any
) -> nn.MultiheadAttention:
    made = kind(EMBED, HEADS, **options).to(dtype)
    made.load_state_dict({name: x.to(dtype) for name, x in state.items()})
    return made


def state_of(**options: Any) -> dict[str, Tensor]:
    """Every parameter from numbers that all types hold, biases too."""
    template = nn.MultiheadAttention(EMBED, HEADS, **options).state_dict()
    return {name: numbers(n + 50, *x.shape) / 4 for n, (name, x) in enumerate(template.items())}


def inputs(layer: dict[str, Any], batched: bool, same: bool) -> list[Tensor]:
    def tokens(seed: int, length: int, width: int) -> Tensor:
        if not batched:
            shape: tuple[int, ...] = (length, width)
        elif layer.get("batch_first"):
            shape = (BATCH, length, width)
        else:
            shape = (length, BATCH, width)
        return numbers(seed, *shape).requires_grad_()

    if same:
        return [tokens(1, KV_LEN, EMBED)]
    return [
        tokens(1, Q_LEN, EMBED),
        tokens(2, KV_LEN, layer.get("kdim") or EMBED),
        tokens(3, KV_LEN, layer.get("vdim") or EMBED),
    ]


def masks(kind: str, batched: bool, q_len: int) -> dict[str, Tensor]:
    """attn_mask and key_padding_mask of a kind like "2d-float+pad-bool"."""
    made = {}
    for part in kind.split("+"):
        if part.startswith("pad"):
            x = numbers(5, *((BATCH, KV_LEN) if batched else (KV_LEN,)))
            x[..., 0] = 1  # one key is always there
            name = "key_padding_mask"
        elif part[:2] in ("2d", "3d"):
            lead = () if part.startswith("2d") else ((BATCH if batched else 1) * HEADS,)
            x = numbers(6, *lead, q_len, KV_LEN)
            x[..., 0] = 1
            name = "attn_mask"
        else:
            continue
        made[name] = x < -0.4 if part.endswith("bool") else x.masked_fill(x < -0.9, -torch.inf)
    return made


def run_module(kind: type[nn.MultiheadAttention], layer: dict[str, Any], state: dict[str, Tensor], given: dict[str, Any], same: bool) -> Any:  # fmt: skip
    """A function of input tensors (and then parameters, in state order) for support_torch.compare."""
    names = list(state)

    def call(*arguments: Tensor) -> tuple[Tensor | None, ...]:
        tokens, parameters = arguments[: -len(names)], arguments[-len(names) :]
        made = module(kind, tokens[0].dtype, state, **layer)
        own = {n: m.to(tokens[0].dtype) if isinstance(m, Tensor) and m.is_floating_point() else m for n, m in given.items()}
        query, key, value = tokens * 3 if same else tokens
        return torch.func.functional_call(made, dict(zip(names, parameters)), (query, key, value), own)

    return call


def both(layer: dict[str, Any], given: dict[str, Any], *, batched: bool = True, same: bool = False) -> None:
    state = state_of(**layer)
    arguments = [*inputs(layer, batched, same), *(x.requires_grad_() for x in state.values())]
    plain = {n: x.detach() for n, x in state.items()}
    compare(
        run_module(qt.MultiheadAttention, layer, plain, given, same), run_module(nn.MultiheadAttention, layer, plain, given, same), arguments
    )  # fmt: skip


LAYERS: tuple[dict[str, Any], ...] = (
    {},
    {"batch_first": True},
    {"bias": False, "batch_first": True},
    {"kdim": 6, "vdim": 10},
    {"kdim": 6, "vdim": 10, "bias": False, "batch_first": True, "add_bias_kv": True},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
)
MASKS = ("none", "2d-bool", "2d-float", "3d-bool", "3d-float", "pad-bool", "pad-float", "2d-bool+pad-bool", "3d-float+pad-bool",
         "3d-bool+pad-float", "2d-float+pad-float")  # fmt: skip


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("need_weights, average", ((False, True), (True, True), (True, False)))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "-".join(layer) or "plain")
def test_outputs_weights_and_gradients(layer: dict[str, Any], mask: str, need_weights: bool, average: bool) -> None:
    given = {**masks(mask, True, Q_LEN), "need_weights": need_weights, "average_attn_weights": average}
    both(layer, given)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("need_weights", (False, True))
@pytest.mark.parametrize("mask", MASKS)
def test_unbatched(mask: str, need_weights: bool) -> None:
    for layer in LAYERS[1], LAYERS[7]:
        both(layer, {**masks(mask, False, Q_LEN), "need_weights": need_weights}, batched=False)


@pytest.mark.parametrize("batch_first, need_weights, pad", itertools.product((False, True), (False, True), (False, True)))
def test_self_attention_and_the_causal_hint(batch_first: bool, need_weights: bool, pad: bool) -> None:
    causal = torch.ones(KV_LEN, KV_LEN, dtype=torch.bool).triu(1)
    given: dict[str, Any] = {"attn_mask": causal, "is_causal": True, "need_weights": need_weights}
    if pad:
        given |= masks("pad-bool", True, KV_LEN)
    both({"batch_first": batch_first}, given, same=True)


@pytest.mark.parametrize("need_weights", (False, True))
def test_float_masks_have_gradients(need_weights: bool) -> None:
    layer = {"batch_first": True}
    state = state_of(**layer)
    x = numbers(1, BATCH, KV_LEN, EMBED).requires_grad_()

    def call(kind: type[nn.MultiheadAttention]) -> Any:
        def run(x: Tensor, mask: Tensor, padding: Tensor) -> Any:
            made = module(kind, x.dtype, state, **layer)
            return made(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=need_weights)

        return run

    masks = numbers(6, BATCH * HEADS, KV_LEN, KV_LEN).requires_grad_(), numbers(7, BATCH, KV_LEN).requires_grad_()
    compare(call(qt.MultiheadAttention), call(nn.MultiheadAttention), [x, *masks])


@pytest.mark.parametrize("need_weights", (False, True))
def test_rows_that_attend_nothing_are_pytorchs(need_weights: bool) -> None:
    drop = torch.zeros(BATCH, KV_LEN, dtype=torch.bool)
    drop[1] = True
    layer = {"batch_first": True}
    plain = state_of(**layer)
    arguments = [x.detach() for x in inputs(layer, True, False)] + list(plain.values())
    given = {"key_padding_mask": drop, "need_weights": need_weights}
    fast = compare(
        run_module(qt.MultiheadAttention, layer, plain, given, False), run_module(nn.MultiheadAttention, layer, plain, given, False),
        arguments,
    )  # fmt: skip
    assert fast[0][1].isnan().all() == need_weights  # type: ignore[index]


@pytest.mark.parametrize("need_weights", (False, True))
def test_dropout_in_training_is_the_documented_pattern(need_weights: bool) -> None:
    """The pattern of qkv.dropout_factors, drawn by the seed that PyTorch's generator gives, against the same product by
    hand."""
    p, state = 0.3, state_of(batch_first=True)
    ours = module(qt.MultiheadAttention, torch.float32, state, batch_first=True, dropout=p).train()
    torch.manual_seed(3)
    factors = torch.from_numpy(qkv.dropout_factors((BATCH, HEADS, KV_LEN, KV_LEN), p, int(torch.randint(0, 2**63 - 1, (1,)))))

    def by_hand(x: Tensor) -> tuple[Tensor, Tensor]:
        w = {name: parameter.to(x.dtype) for name, parameter in state.items()}
        q, k, v = (x @ w["in_proj_weight"].T + w["in_proj_bias"]).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        weights = torch.softmax(q @ k.mT / (EMBED // HEADS) ** 0.5, -1) * factors.to(x.dtype)
        out = (weights @ v).transpose(1, 2).flatten(2) @ w["out_proj.weight"].T + w["out_proj.bias"]
        return (out, weights.mean(1)) if need_weights else (out,)

    def call(x: Tensor) -> Any:
        torch.manual_seed(3)
        made = ours if x.dtype is torch.float32 else ours.to(x.dtype)
        return made(x, x, x, need_weights=need_weights)

    compare(call, by_hand, [numbers(1, BATCH, KV_LEN, EMBED).requires_grad_()])
    ours.eval()
    x = numbers(1, BATCH, KV_LEN, EMBED, dtype=torch.float32)
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "-".join(layer) or "plain")
def test_the_same_names_shapes_and_first_numbers(layer: dict[str, Any]) -> None:
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(EMBED, HEADS, **layer)
    torch.manual_seed(1)
    ours = qt.MultiheadAttention(EMBED, HEADS, **layer)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()))
    nn.MultiheadAttention(EMBED, HEADS, **layer).load_state_dict(ours.state_dict())
    shared = qt.MultiheadAttention.from_torch(theirs)
    assert isinstance(shared, nn.MultiheadAttention) and shared.out_proj.weight is theirs.out_proj.weight


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64), ids=str)
@pytest.mark.parametrize("need_weights", (False, True))
def test_other_types(dtype: torch.dtype, need_weights: bool) -> None:
    state = state_of(batch_first=True)
    x = numbers(1, BATCH, KV_LEN, EMBED)
    results = {}
    for kind, own in ((qt.MultiheadAttention, dtype), (nn.MultiheadAttention, dtype), (nn.MultiheadAttention, torch.float64)):
        made = module(kind, own, state, batch_first=True)
        results[kind, own] = made(x.to(own), x.to(own), x.to(own), need_weights=need_weights)
    naive, exact = results[nn.MultiheadAttention, dtype], results[nn.MultiheadAttention, torch.float64]
    for n, fast in enumerate(results[qt.MultiheadAttention, dtype]):
        if fast is not None:
            assert fast.dtype is naive[n].dtype
            expect_close(fast, exact[n], naive[n], dtype, f"result {n}")


def test_autocast() -> None:
    theirs = nn.MultiheadAttention(EMBED, HEADS, batch_first=True)
    ours = qt.MultiheadAttention.from_torch(theirs)
    x = numbers(1, BATCH, KV_LEN, EMBED, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for need_weights in (False, True):
            a, b = ours(x, x, x, need_weights=need_weights), theirs(x, x, x, need_weights=need_weights)
            assert a[0].dtype is b[0].dtype
            assert (a[1] is None and b[1] is None) or a[1].dtype is b[1].dtype
            assert (a[0] - b[0]).abs().max() < 0.05

"""qkv.torch.MultiheadAttention against nn.MultiheadAttention over a product of options: outputs, weights, gradients of inputs, float masks and
parameters, state_dict both ways. PyTorch in float64 is the truth, in float32 the naive form (support_torch.py)."""

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from support_torch import compare, numbers
from torch import Tensor, nn

EMBED, HEADS, BATCH, Q_LEN, KV_LEN = 12, 3, 2, 5, 7
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
layers = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "-".join(layer) or "plain")
weights = pytest.mark.parametrize("need_weights", (False, True))
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched")


def state_of(**options: Any) -> dict[str, Tensor]:
    """Every parameter from numbers that all types hold, biases too."""
    template = nn.MultiheadAttention(EMBED, HEADS, **options).state_dict()
    return {name: (numbers(n + 50, *x.shape) / 4).requires_grad_() for n, (name, x) in enumerate(template.items())}


def tokens(layer: dict[str, Any], batched: bool, same: bool) -> list[Tensor]:
    widths = [EMBED, layer.get("kdim") or EMBED, layer.get("vdim") or EMBED][: 1 if same else 3]
    made = []
    for n, width in enumerate(widths):
        length = KV_LEN if same or n else Q_LEN
        shape = (length, width) if not batched else (BATCH, length, width) if layer.get("batch_first") else (length, BATCH, width)
        made.append(numbers(n + 1, *shape).requires_grad_())
    return made


def masks(kind: str, batched: bool, q_len: int) -> dict[str, Tensor]:
    """attn_mask and key_padding_mask of a kind like "2d-float+pad-bool"; floats require their gradient."""
    made = {}
    for part in kind.split("+"):
        if part == "none":
            continue
        if part.startswith("pad"):
            x = numbers(5, *((BATCH, KV_LEN) if batched else (KV_LEN,)))
        else:
            x = numbers(6, *(() if part.startswith("2d") else ((BATCH if batched else 1) * HEADS,)), q_len, KV_LEN)
        x[..., 0] = 1  # one key is always there
        x = x < -0.4 if part.endswith("bool") else x.masked_fill(x < -0.9, -torch.inf).requires_grad_()
        made["key_padding_mask" if part.startswith("pad") else "attn_mask"] = x
    return made


def both(
    layer: dict[str, Any], given: dict[str, Tensor], *, batched: bool = True, same: bool = False, dtype: torch.dtype = torch.float32,
    grad: bool = True, **options: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Ours against theirs: of tokens, float masks and parameters."""
    state, inputs = state_of(**layer), tokens(layer, batched, same)
    floats = [name for name, x in given.items() if x.is_floating_point()]
    plain = {name: x for name, x in given.items() if name not in floats} | options

    def of(kind: type[nn.MultiheadAttention]) -> Any:
        def call(*arguments: Tensor) -> Any:
            own, parameters = arguments[: -len(state)], arguments[-len(state) :]
            made = kind(EMBED, HEADS, **layer).to(own[0].dtype)
            named = dict(zip(floats, own[len(inputs) :])) | plain
            return torch.func.functional_call(made, dict(zip(state, parameters)), own[: len(inputs)] * (3 if same else 1), named)

        return call

    arguments = [*inputs, *(given[name] for name in floats), *state.values()]
    arguments = arguments if grad else [x.detach() for x in arguments]
    return compare(of(qt.MultiheadAttention), of(nn.MultiheadAttention), arguments, dtype)


@pytest.mark.parametrize("need_weights, average", ((False, True), (True, True), (True, False)))
@pytest.mark.parametrize("mask", MASKS)
@layers
def test_outputs_weights_and_gradients(layer: dict[str, Any], mask: str, need_weights: bool, average: bool) -> None:
    both(layer, masks(mask, True, Q_LEN), need_weights=need_weights, average_attn_weights=average)


@weights
@pytest.mark.parametrize("mask", MASKS)
def test_unbatched(mask: str, need_weights: bool) -> None:
    for layer in LAYERS[1], LAYERS[7]:
        both(layer, masks(mask, False, Q_LEN), batched=False, need_weights=need_weights)


@pytest.mark.parametrize("batch_first, need_weights, pad", itertools.product((False, True), (False, True), (False, True)))
def test_self_attention_and_the_causal_hint(batch_first: bool, need_weights: bool, pad: bool) -> None:
    given = {"attn_mask": torch.ones(KV_LEN, KV_LEN, dtype=torch.bool).triu(1)} | (masks("pad-bool", True, KV_LEN) if pad else {})
    both({"batch_first": batch_first}, given, same=True, is_causal=True, need_weights=need_weights)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64), ids=str)
@weights
def test_other_types(dtype: torch.dtype, need_weights: bool) -> None:
    both({"batch_first": True}, {}, same=True, dtype=dtype, need_weights=need_weights)


@weights
def test_rows_that_attend_nothing_are_pytorchs(need_weights: bool) -> None:
    drop = torch.zeros(BATCH, KV_LEN, dtype=torch.bool)
    drop[1] = True
    fast = both({"batch_first": True}, {"key_padding_mask": drop}, grad=False, need_weights=need_weights)
    assert fast[0][1].isnan().all() == need_weights  # type: ignore[index]


@weights
def test_dropout_in_training_is_the_documented_pattern(need_weights: bool) -> None:
    """The pattern of qkv.dropout_factors, drawn by the seed that PyTorch's generator gives, against the same product by
    hand."""
    p, state = 0.3, {name: x.detach() for name, x in state_of(batch_first=True).items()}
    ours = qt.MultiheadAttention(EMBED, HEADS, batch_first=True, dropout=p).train()
    ours.load_state_dict(state)
    torch.manual_seed(3)
    factors = torch.from_numpy(qkv.dropout_factors((BATCH, HEADS, KV_LEN, KV_LEN), p, int(torch.randint(0, 2**63 - 1, (1,)))))

    def by_hand(x: Tensor) -> tuple[Tensor, ...]:
        w = {name: parameter.to(x.dtype) for name, parameter in state.items()}
        q, k, v = (x @ w["in_proj_weight"].T + w["in_proj_bias"]).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        applied = torch.softmax(q @ k.mT / (EMBED // HEADS) ** 0.5, -1) * factors.to(x.dtype)
        out = (applied @ v).transpose(1, 2).flatten(2) @ w["out_proj.weight"].T + w["out_proj.bias"]
        return (out, applied.mean(1)) if need_weights else (out,)

    def call(x: Tensor) -> Any:
        torch.manual_seed(3)
        return ours.to(x.dtype)(x, x, x, need_weights=need_weights)

    compare(call, by_hand, [numbers(1, BATCH, KV_LEN, EMBED).requires_grad_()])
    ours.eval()
    x = numbers(1, BATCH, KV_LEN, EMBED, dtype=torch.float32)
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])


@layers
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


def test_hooks_of_one_layer_are_not_the_others() -> None:
    source = nn.MultiheadAttention(8, 2)
    calls: list[str] = []
    source.register_forward_hook(lambda *_: calls.append("before"))
    made = qt.MultiheadAttention.from_torch(source)
    source.register_forward_hook(lambda *_: calls.append("source"))
    made.register_forward_pre_hook(lambda *_: calls.append("made"))
    x = torch.zeros(3, 8)
    made(x, x, x)
    assert calls == ["made", "before"]
    source(x, x, x)
    assert calls[2:] == ["before", "source"]


def test_what_a_copy_is_given_later_is_its_own() -> None:
    module = torch.nn.MultiheadAttention(8, 2)
    made = qt.MultiheadAttention.from_torch(module)
    del made.in_proj_bias
    made.out_proj = torch.nn.Identity()
    made.register_buffer("more", torch.zeros(1))
    assert module.in_proj_bias is not None and isinstance(module.out_proj, torch.nn.Linear) and "more" not in dict(module.named_buffers())

"""Arguments whose class has a say: torch.nn.attention.bias, tensor subclasses, TorchFunctionModes, nested and sparse tensors; in qkv's own function
and in PyTorch's under enable(). Against PyTorch's function on the mask written out."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv.torch as qt
import torch.nn.functional as F
from support_torch import compare, numbers, theirs
from torch import Tensor
from torch.nn.attention import bias
from torch.overrides import TorchFunctionMode

LENGTHS = ((3, 5), (5, 3), (4, 4), (1, 6), (130, 200), (200, 130))
pytorchs = F.scaled_dot_product_attention


def patched(*arguments: Any, **options: Any) -> Tensor:
    with qt.enable():
        return F.scaled_dot_product_attention(*arguments, **options)


FUNCTIONS = {"own": qt.scaled_dot_product_attention, "patched": patched}
functions = pytest.mark.parametrize("function", FUNCTIONS)
aligns = pytest.mark.parametrize("align", ("lower_right", "upper_left"))


def made(align: str, q_len: int, kv_len: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of rows without keys
        return (bias.causal_lower_right if align == "lower_right" else bias.causal_upper_left)(q_len, kv_len)


def written_out(align: str, q_len: int, kv_len: int) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len if align == "lower_right" else 0)


def leaves(q_len: int, kv_len: int, kv_heads: int = 4) -> list[Tensor]:
    shapes = ((2, 4, q_len, 8), (2, kv_heads, kv_len, 8), (2, kv_heads, kv_len, 6))
    return [numbers(n, *shape).requires_grad_() for n, shape in enumerate(shapes)]


@functions
@aligns
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("options", ({}, {"scale": 0.3, "enable_gqa": True}), ids=("plain", "grouped"))
def test_causal_biases(function: str, align: str, lengths: tuple[int, int], options: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        compare(
            lambda *x: FUNCTIONS[function](*x, made(align, *lengths), **options),
            lambda *x: theirs(*x, attn_mask=written_out(align, *lengths), **options), leaves(*lengths, kv_heads=2 if options else 4), dtype,
        )  # fmt: skip


@functions
@aligns
def test_causal_biases_under_autocast_dropout_vmap_and_compile(function: str, align: str) -> None:
    torch._dynamo.reset()
    call, (q, k, v) = FUNCTIONS[function], (x.detach() for x in leaves(3, 5))
    mask, given = written_out(align, 3, 5), made(align, 3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = call(q.float(), k.float(), v.float(), given)
        assert low.dtype is torch.bfloat16 and torch.equal(low, call(q.float(), k.float(), v.float(), mask))
    results = []
    for one in (given, mask):
        torch.manual_seed(3)
        results.append(call(q, k, v, one, dropout_p=0.4))
    assert torch.allclose(*results)
    each = torch.func.vmap(lambda q: call(q, k, v, given))(torch.stack([q, 2 * q]))
    assert torch.allclose(each[1], call(2 * q, k, v, mask))
    assert torch.allclose(torch.compile(call, backend="aot_eager")(q, k, v, given), pytorchs(q, k, v, mask))
    with pytest.raises(ValueError, match="exclude each other"):
        call(q, k, v, given, is_causal=True)
    with pytest.raises(ValueError, match=r"causal_lower_right\(3, 5\): got one of \(4, 5\)"):
        call(q, k, v, made("lower_right", 4, 5))


class Doubled(Tensor):
    """Means twice what its memory holds; asked by the name in torch.nn.functional, or by PyTorch's own function."""

    name = "functional"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is (F.scaled_dot_product_attention if cls.name == "functional" else pytorchs):
            with torch._C.DisableTorchFunctionSubclass():
                args = [2 * x.as_subclass(Tensor) if isinstance(x, Doubled) else x for x in args]
                return F.scaled_dot_product_attention(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


class DoubledInATable(Doubled):
    name = "table"


@pytest.mark.parametrize("argument", range(4))
@pytest.mark.parametrize("cls", (Doubled, DoubledInATable))
def test_other_subclasses_are_asked(argument: int, cls: type[Doubled]) -> None:
    plain = [*(x.detach() for x in leaves(3, 5)), numbers(4, 3, 5)]
    given = [x.as_subclass(cls) if n == argument else x for n, x in enumerate(plain)]
    expected = pytorchs(*(2 * x if n == argument else x for n, x in enumerate(plain)))
    assert torch.allclose(patched(*given), expected)
    assert F.scaled_dot_product_attention is pytorchs and not qt.is_enabled()
    with pytest.raises(TypeError, match=rf"\[scaled_dot_product_attention\] .* plain tensor: got {cls.__name__}"):
        qt.scaled_dot_product_attention(*given)
    if argument < 3:
        with pytest.raises(TypeError, match=rf"\[flex_attention\] .* must be a plain tensor: got {cls.__name__}"):
            qt.flex_attention(*given[:3])
    with pytest.raises(TypeError, match="score_mod's table must be a plain tensor"):
        qt.flex_attention(*plain[:3], score_mod=qt.Relative(numbers(1, 9, 4).as_subclass(cls), "bottom_right"))


def test_classes_without_a_meaning_of_their_own_are_tensors() -> None:
    class Named(Tensor):
        pass

    q, k, v = (x.detach() for x in leaves(3, 5))
    for call in FUNCTIONS.values():
        out = call(q.as_subclass(Named), k, v)
        assert torch.allclose(out.as_subclass(Tensor), pytorchs(q, k, v))
        assert torch.allclose(call(torch.nn.Parameter(q), k, v), pytorchs(q, k, v))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


@functions
@pytest.mark.parametrize("mask", (None, made("lower_right", 3, 5)), ids=("none", "lower right"))
def test_modes_meet_the_call_and_qkv_computes_it(function: str, mask: Any) -> None:
    q, k, v = (x.detach().float() for x in leaves(3, 5))
    with Functions() as called:
        out = FUNCTIONS[function](q, k, v, mask)
    assert torch.equal(out, qt.scaled_dot_product_attention(q, k, v, mask))
    assert [f.__name__ for f in called.functions].count({"own": "scaled_dot_product_attention", "patched": "_patched"}[function]) == 1
    with torch.device("cpu"):  # a mode too
        assert torch.equal(FUNCTIONS[function](q, k, v, mask), out)


def test_nested_tensors_say_what_to_do_instead() -> None:
    rows = [numbers(n, 4, n, 8, dtype=torch.float32).transpose(0, 1) for n in (2, 3)]  # [j, H, D]
    for layout in (torch.jagged, torch.strided):
        x = torch.nested.nested_tensor(rows, layout=layout).transpose(1, 2)
        with pytest.raises(TypeError, match=r"qkv.torch.varlen_attn with x.offsets\(\)"):
            qt.scaled_dot_product_attention(x, x, x)
    x = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    packed = x.transpose(1, 2).values()
    out = qt.varlen_attn(packed, packed, packed, x.offsets(), x.offsets(), 3, 3)
    assert torch.allclose(out, patched(x, x, x).transpose(1, 2).values(), atol=1e-6)

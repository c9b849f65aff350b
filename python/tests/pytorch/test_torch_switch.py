"""qkv.torch.enable() replaces PyTorch's attention by qkv's and puts it back: functions, layers and exported models under it, threads,
the cost of a call."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
import torch.nn.functional as F
from support_torch import compare, leaf, numbers
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

sdpa = qt.scaled_dot_product_attention


def operands(length: int = 5) -> list[Tensor]:
    return [numbers(n, 2, 2, length, 8, dtype=torch.float32) for n in range(3)]


def test_enable_and_disable() -> None:
    torch._dynamo.reset()
    pytorchs, fast_path = F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()
    q, k, v = operands()
    expected = sdpa(q, k, v)
    with qt.enable():
        assert qt.is_enabled() and torch.equal(F.scaled_dot_product_attention(q, k, v), expected)
        assert F.scaled_dot_product_attention(q.to("meta"), k.to("meta"), v.to("meta")).device.type == "meta"
        assert F.scaled_dot_product_attention(q[..., :0], k[..., :0], v).shape == q.shape  # not qkv's: a width of 0
        compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v), expected)
    assert F.scaled_dot_product_attention is pytorchs and torch.backends.mha.get_fastpath_enabled() is fast_path
    qt.disable()  # nothing to end
    qt.enable()
    qt.enable()
    with qt.enable():  # a block within an enable(), and a block in it
        with qt.enable() as inner:
            pass
        with inner:
            qt.disable()
            assert qt.is_enabled()  # blocks end by themselves
        assert qt.is_enabled()
    assert not qt.is_enabled() and F.scaled_dot_product_attention is pytorchs
    qt.enable()
    with qt.enable():
        pass
    assert qt.is_enabled()
    qt.disable()
    assert not qt.is_enabled() and torch.backends.mha.get_fastpath_enabled() is fast_path


def test_a_handle_of_an_ended_call_ends_no_later_one() -> None:
    stale = qt.enable()
    qt.disable()
    qt.enable()
    with stale:
        assert qt.is_enabled()
    assert qt.is_enabled()
    qt.disable()
    assert not qt.is_enabled()


def test_blocks_of_threads_do_not_end_each_other() -> None:
    inside, leave = threading.Event(), threading.Event()

    def body() -> None:
        with qt.enable():
            inside.set()
            leave.wait()

    other = threading.Thread(target=body)
    other.start()
    inside.wait()
    with qt.enable():
        leave.set()
        other.join()
        assert qt.is_enabled()
    assert not qt.is_enabled()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).mean(1)
        return self.layer(out, k[:, 0], v[:, 0], need_weights=False)[0]


@pytest.mark.filterwarnings("ignore")
def test_export_and_make_fx_keep_it() -> None:
    model, given, longer = Model(), tuple(operands()), operands(9)
    dynamic = {n: {2: torch.export.Dim("t")} for n in "qkv"}
    with qt.enable():
        for strict in (False, True):
            program = torch.export.export(model, given, dynamic_shapes=dynamic, strict=strict)
            assert str(program.graph).count("qkv.attention") == 2 and "aten.scaled_dot" not in str(program.graph)
            assert torch.allclose(program.module()(*longer), model(*longer), atol=1e-6)
        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(lambda *x: F.scaled_dot_product_attention(*x), tracing_mode=mode)(*given).graph
            assert str(graph).count("qkv.attention") == 1 and "aten.scaled_dot" not in str(graph)


# Encoder and decoder layers (PyTorch's test_transformers.py, TestTransformers).


class Stack(nn.Module):
    """An encoder, or a decoder over a memory of its own input."""

    def __init__(self, layer: str, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.layer = getattr(nn, layer)(12, 3, 24, 0.0, batch_first=batch_first, norm_first=norm_first)
        for n, parameter in enumerate(self.parameters()):
            parameter.data = numbers(30 + n, *parameter.shape, dtype=torch.float32) / 4

    def forward(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
        if isinstance(self.layer, nn.TransformerDecoderLayer):
            return self.layer(x, 2 * x, mask, None, padding, padding, tgt_is_causal=causal)
        return self.layer(x, mask, padding, is_causal=causal)


@pytest.mark.parametrize("layer", ("TransformerEncoderLayer", "TransformerDecoderLayer"))
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("norm_first", (False, True))
@pytest.mark.parametrize("masks", ("none", "padding", "pairs", "causal", "causal and padding", "float and float padding"))
@pytest.mark.parametrize("train", (False, True))
def test_layers_of_transformers(
    layer: str, batch_first: bool, norm_first: bool, masks: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    length, batch = 7, 2
    pairs = padding = None
    if "causal" in masks:
        pairs = torch.ones(length, length, dtype=torch.bool).triu(1)
    elif masks == "pairs":
        pairs = numbers(5, length, length) > 0.8
        pairs.fill_diagonal_(False)
    elif "float" in masks:
        pairs = numbers(5, length, length)
    if "padding" in masks:
        padding = torch.zeros(batch, length, dtype=torch.bool)
        padding[1, 4:] = True
        if "float" in masks:
            padding = torch.zeros(batch, length, dtype=torch.float64).masked_fill(padding, -torch.inf)
    stack = Stack(layer, batch_first, norm_first).train(train)
    x = leaf(6, *((batch, length, 12) if batch_first else (length, batch, 12)))
    calls: list[int] = []
    forward = qkv.torch.patch.scaled_dot_product_attention
    monkeypatch.setattr(qkv.torch.patch, "scaled_dot_product_attention", lambda *a, **o: calls.append(1) or forward(*a, **o))

    def plain(x: Tensor, *given: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(train):
            return stack.to(x.dtype)(x, *given, causal=masks == "causal")

    def enabled(*arguments: Tensor | None) -> Tensor:
        with qt.enable():
            return plain(*arguments)

    compare(enabled, plain, [x if train else x.detach(), pairs, padding])
    assert len(calls) == (2 if "Decoder" in layer else 1)  # where PyTorch would take its fused path, too


def microseconds(function: Callable[[], Any]) -> float:
    """Of this thread's own time, the least of many."""
    least = float("inf")
    for _ in range(30):
        start = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
        for _ in range(200):
            function()
        least = min(least, time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) - start)
    return least / 200 / 1000


def test_a_call_costs_little() -> None:
    """Tiny tensors, one thread. The goal is 10 us without grad and 16 with, on an idle machine; the test asks for no more than
    three times what PyTorch's own function takes beside it, so that a slow machine does not fail it."""
    threads = qkv.num_threads()
    qkv.set_num_threads(1)
    try:
        q, k, v = (numbers(n, 1, 2, 4, 8, dtype=torch.float32) for n in range(3))
        for goal in (10, 16):
            own = microseconds(lambda: sdpa(q, k, v))
            assert own < max(goal, 3 * microseconds(lambda: F.scaled_dot_product_attention(q, k, v)))
            q.requires_grad_()
    finally:
        qkv.set_num_threads(threads)

"""qkv.torch.capture: what it captures of any model, that it changes nothing, and what it says of calls that it cannot capture.
"""

import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import qkv
import qkv.torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as imported_before

WORDS = 5


class Attention(nn.Module):
    """One's own, with grouped heads; calls: how it finds the function."""

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.q, self.kv, self.out, self.calls = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32), calls

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        found = {"imported": imported_before, "qkv": qkv.torch.scaled_dot_product_attention}
        function = found.get(self.calls, F.scaled_dot_product_attention)
        return self.out(function(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, calls: str = "F") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Attention(calls) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def number_of(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights_of(attention: Attention, x: Tensor) -> Tensor:
    """The textbook, float64."""
    x = x.double()
    q = F.linear(x, attention.q.weight.double(), attention.q.bias.double()).unflatten(-1, (4, 8)).transpose(1, 2)
    k = F.linear(x, attention.kv.weight.double(), attention.kv.bias.double())[..., :16].unflatten(-1, (2, 8)).transpose(1, 2)
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 8**-0.5
    return torch.where(torch.ones(x.shape[1], x.shape[1]).tril().bool(), scores, -torch.inf).softmax(-1)


@pytest.mark.parametrize("calls", ["F", "imported", "qkv", "enabled"])
def test_every_way_to_call_is_captured(calls: str) -> None:
    model, x = Model(calls), number_of(1, 2, 20, 32)
    with qkv.torch.enable():
        want = model(x).detach()
    if calls == "enabled":
        qkv.torch.enable()
    try:
        with torch.no_grad(), qkv.torch.capture(exact=[(1, 3)], ids=torch.arange(20) % WORDS) as maps:
            got = model(x)
    finally:
        qkv.torch.disable()
    if calls != "imported":  # under enable() that name stays PyTorch's
        assert torch.equal(got, want)
    assert F.scaled_dot_product_attention is imported_before
    assert [layer.name for layer in maps.layers] == ["blocks.0", "blocks.1", "blocks.2"] and maps.title == "Model"
    exact = weights_of(model.blocks[0], x).detach().numpy()
    # Scores of deviation below 1: float32 of both sides, a few units of 2^-24.
    np.testing.assert_allclose(maps[0].map, exact, atol=2e-6)
    assert set(maps.layers[1].kinds[0].shares) >= {"previous", "self", "duplicate", "induction"}
    assert maps.layers[1].exact.heads == (3,) and maps.layers[1].exact.kv_heads == (1,)


@pytest.mark.parametrize("whole", [True, False])
def test_the_clearest_heads_of_a_short_text_are_exact(whole: bool) -> None:
    k = torch.eye(12, 16).repeat(1, 3, 1, 1)
    q = torch.zeros_like(k)
    q[:, 1, 1:] = 90 * k[:, 1, :-1]  # attends to the token before, more clearly than the first head
    q[:, 0, 1:] = 14 * k[:, 1, :-1]
    q[:, 2] = 90 * k[:, 2]
    with qkv.torch.capture(whole=whole) as maps:
        F.scaled_dot_product_attention(q, k, k)
    assert [kind.kind for kind in maps.layers[0].kinds] == ["previous", "previous", "self"]
    assert (maps.layers[0].exact.heads == (1, 2)) if whole else maps.layers[0].exact is None


def test_gradients_stay() -> None:
    x = number_of(2, 2, 20, 32)
    results = []
    for capture in (False, True):
        model = Model("F")
        with qkv.torch.enable():
            if capture:
                with qkv.torch.capture():
                    out = model(x)
            else:
                out = model(x)
        out.square().sum().backward()
        results.append([out.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results))
    assert torch.backends.mha.get_fastpath_enabled()


def test_pytorchs_layers_and_masks() -> None:
    x, y = number_of(3, 2, 12, 32), number_of(4, 2, 7, 32)
    model = nn.Transformer(32, 4, 2, 2, dim_feedforward=48, batch_first=True).eval()
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[1, 9:] = True
    with torch.no_grad():
        want = model(x, y, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        with qkv.torch.capture() as maps:
            got = model(x, y, src_key_padding_mask=padding, memory_key_padding_mask=padding)
    np.testing.assert_allclose(got, want, atol=2e-5)
    kinds = [(layer.cross, layer.q_len, layer.kv_len) for layer in maps.layers]
    assert kinds == [(False, 12, 12)] * 2 + [(False, 7, 7), (True, 7, 12)] * 2
    assert not maps.skipped and not maps.layers[0].captured.map[1, :, :, 9:].any()
    assert [view["name"] for view in maps._made()[0]["views"]][:3] == [
        "encoder.layers sequence 0",
        "decoder.layers sequence 0",
        "decoder.layers cross sequence 0",
    ]


def test_runs_and_other_threads() -> None:
    """A forward of the outermost module is a run; other threads are not captured."""
    model = Model()
    with torch.no_grad(), qkv.torch.capture() as maps:
        model(number_of(5, 1, 9, 32))
        thread = threading.Thread(target=lambda: Model()(number_of(6, 1, 30, 32)))
        thread.start()
        thread.join()
        model(number_of(7, 1, 11, 32))
    assert [[layer.q_len for layer in run.layers] for run in maps.runs] == [[9] * 3, [11] * 3]
    assert len(maps._made()[0]["views"]) == 2
    model(number_of(8, 1, 9, 32))  # behind the block
    assert len(maps.runs) == 2


def test_captures_that_overlap_leave_the_fused_layers_as_they_were() -> None:
    first, second = qkv.torch.capture(), qkv.torch.capture()
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    first.__enter__()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with second, torch.no_grad():
            entered.set()
            leave.wait(20)
            layer(number_of(5, 1, 9, 32))

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(20)
    first.__exit__(None, None, None)
    leave.set()
    thread.join()
    assert len(second.captures) == 1 and torch.backends.mha.get_fastpath_enabled()


class Crossed(nn.Module):
    """Attention to itself and to another text, in an order; names say neither."""

    def __init__(self, *others: bool) -> None:
        super().__init__()
        self.layers, self.others = nn.ModuleList(nn.Identity() for _ in others), others

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        for layer, is_other in zip(self.layers, self.others):
            keys = other if is_other else x
            x = layer(x) + F.scaled_dot_product_attention(x, keys, keys)
        return x


@pytest.mark.parametrize("others", [(False, True), (True, False), (True,)])
@pytest.mark.parametrize("kv_len", [4, 13])
def test_other_lengths_without_a_mask_are_another_texts(others: tuple[bool, ...], kv_len: int) -> None:
    model = Crossed(*others)
    with torch.no_grad(), qkv.torch.capture() as maps:
        for seed in range(3):
            model(number_of(seed, 1, 2, 10, 8), number_of(seed, 1, 2, kv_len, 8))
    assert [[layer.cross for layer in run.layers] for run in maps.runs] == [[*others]] * 3
    for view in maps._made()[0]["views"]:
        assert all(layer.get("q_first", 0) >= 0 for layer in view["layers"])


def test_modules_of_other_threads_begin_no_runs() -> None:
    class Beside(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    class Outer(Model):
        def forward(self, x: Any) -> Any:
            thread = threading.Thread(target=lambda: Beside()(x))  # enters between this module and its layers
            thread.start()
            thread.join()
            return super().forward(x)

    with torch.no_grad(), qkv.torch.capture() as maps:
        thread = threading.Thread(target=lambda: Beside()(number_of(6, 1, 4, 32)))
        thread.start()
        thread.join()
        Outer()(number_of(5, 1, 9, 32))
    assert maps.title == "Outer" and [len(run.layers) for run in maps.runs] == [3]


def test_calls_that_cannot_be_captured_are_counted() -> None:
    q = number_of(9, 1, 2, 4, 8)

    class Other(Tensor):
        pass

    with qkv.torch.capture() as maps:
        F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(*(q.to("meta") for _ in range(3)))
        F.scaled_dot_product_attention(q.as_subclass(Other), q, q)
    assert maps.skipped == {"tensors on meta": 1, "tensors of Other": 1} and len(maps) == 1
    assert any("tensors on meta" in note for note in maps.runs[0].notes)


def test_an_error_leaves_everything_as_it_was() -> None:
    q = number_of(10, 1, 2, 4, 8)
    with pytest.raises(ValueError, match="exclude each other"), qkv.torch.capture():
        F.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.bool), is_causal=True)
    assert F.scaled_dot_product_attention is imported_before and torch.backends.mha.get_fastpath_enabled()
    with qkv.torch.capture() as maps:
        pass
    with pytest.raises(ValueError, match="nothing was captured"):
        maps.html()
    with pytest.raises(ValueError, match="heads go into the Capture"):
        qkv.torch.capture(heads=[1], what=qkv.Capture(heads=[1]))


@pytest.mark.parametrize(
    "options,kind,text",
    [
        ({"layers": [9]}, ValueError, r"layers must lie in 0..0: got \[9\]"),
        ({"exact": [(9, 0)]}, ValueError, r"exact: layers must lie in 0..0: got \[9\]"),
        ({"first": -1}, ValueError, "first must be a number of keys, 0 or more: got -1"),
        ({"ids": [0.5, 1, 2, 3]}, TypeError, r"\[capture\] ids must hold whole numbers: got float64"),
        ({"ids": [[1, 2, 3]]}, ValueError, r"ids must be \[B\|1, T\] of the tokens: got \[1, 3\] for \[B, T\] of \[\[2, 4\]\]"),
        ({"ids": np.zeros((3, 4), int)}, ValueError, r"got \[3, 4\] for"),
    ],
    ids=str,
)
def test_what_no_call_has_is_refused(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    q = number_of(10, 2, 2, 4, 8)
    with pytest.raises(kind, match=text), qkv.torch.capture(**options):
        F.scaled_dot_product_attention(q, q, q)
    with qkv.torch.capture() as maps:
        pass
    assert maps.table() == "no statistics: no call was captured, or by a Capture without statistics=True"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype: Any) -> None:
    q = number_of(11, 1, 2, 30, 16).to(dtype)
    with qkv.torch.capture(exact=[(0, 0)]) as maps:
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
    scores = (q.double() @ q.double().transpose(-1, -2) / 4).masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf)
    np.testing.assert_allclose(maps[0].map, scores.softmax(-1).numpy(), atol=1e-5)
    assert maps.layers[0].exact.error < 1e-4 and maps.layers[0].kinds is not None


@pytest.mark.parametrize("name", ["page.html", "file.safetensors"])
def test_a_nan_is_shown_where_it_is(name: str, tmp_path: Any) -> None:
    """One query of one head; its row is NaN, everything else is saved."""
    q = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(1))
    k = q.clone()
    q[0, 1, 3, 2] = torch.nan
    with qkv.torch.capture() as maps:
        F.scaled_dot_product_attention(q, k, k, is_causal=True)
    maps.save(tmp_path / name)
    assert (tmp_path / name).stat().st_size > 1000
    if name == "file.safetensors":
        from safetensors import safe_open

        with safe_open(tmp_path / name, "np") as file:
            text = file.metadata()["explorer"]
        assert "NaN" not in text and "null" in text

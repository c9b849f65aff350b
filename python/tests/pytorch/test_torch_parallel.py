"""qkv.torch.parallel_attention and context_parallel over gloo: processes that hold parts of a sequence, against one process that holds
all of it: bits where they are promised. Where a rank is killed or stopped, the others end soon, each with a line of qkv's own."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
import torch.nn.functional as F
from qkv.torch import _watch
from support_torch import EPSILON, expect_close, join, numbers, ranks_of
from torch import Tensor

if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

#: 10 keys for each of 70 queries: so few of 260 that backward, too, goes by the lists.
LISTS = torch.stack([(7 * i + 17 * torch.arange(10)) % 260 for i in range(70)])
LISTED = qkv.Mask.keys(LISTS.to(torch.int32)[None, None])
#: name: (Tq, Tk, heads, key/value heads, type, arguments of parallel_attention)
CASES: dict[str, tuple[int, int, int, int, torch.dtype, dict[str, Any]]] = {
    "causal": (130, 130, 6, 6, torch.float32, {"causal": True}),
    "zig-zag, three turns": (600, 600, 6, 6, torch.float32, {"causal": True, "layout": "zig-zag", "turns": 3}),
    "cross, grouped": (70, 301, 12, 6, torch.float32, {"causal": "bottom_right"}),
    "no multiple of a block": (101, 101, 6, 6, torch.float32, {"causal": True}),
    "fewer rows than ranks": (1, 40, 6, 6, torch.float32, {}),
    "dropout": (97, 97, 6, 6, torch.float32, {"dropout": 0.3, "seed": 2**40 + 5}),
    "window, soft cap, scale": (130, 130, 6, 6, torch.float64, {"mask": qkv.Mask.window(9, 0), "softcap": 5.0, "scale": 0.3}),
    "bias": (66, 66, 6, 6, torch.float32, {"bias": True}),
    "lists of keys": (70, 260, 6, 6, torch.float32, {"mask": LISTED}),
    "bf16": (130, 130, 6, 6, torch.bfloat16, {"causal": True}),
}
#: The method's words, and those of its results that have one machine's bits.
METHODS: dict[str, dict[str, Any]] = {
    "all-gather": {"method": "all-gather"},
    "all-gather, chunks": {"method": "all-gather", "chunk": 1},
    "ring": {"method": "ring"},
    "ulysses": {"method": "ulysses"},
}
EQUAL = {name: ("out", "lse", "dq") for name in METHODS} | {"ulysses": ("out", "lse", "dq", "dk", "dv")}
RESULTS = ("out", "lse", "dq", "dk", "dv", "dbias")


#: Arguments of rank 0, of the others.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "scale": ({"scale": 0.25}, {"scale": 0.5}),
    "dropout": ({"dropout": 0.1}, {}),
    "no dropout": ({}, {"dropout": 0.1}),
    "seed": ({"dropout": 0.1}, {"dropout": 0.1, "seed": 3}),
    "chunk": ({"chunk": -1}, {}),
    "layout": ({}, {"layout": "zigzag"}),
    "mask": ({"mask": torch.ones(4, 4, dtype=torch.bool)}, {}),
}


def refusal(own: list[Tensor], arguments: dict[str, Any]) -> str:
    try:
        qt.parallel_attention(*own, **arguments)
    except (qkv.Error, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "computed"


def inputs(name: str) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k, v, dout, dlse of the whole problem, and the arguments."""
    q_len, kv_len, heads, kv_heads, dtype, arguments = CASES[name]
    sizes = ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len), (heads, q_len))
    tensors = [numbers(n, 2, h, t, 16, dtype=dtype) for n, (h, t) in enumerate(sizes)]
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    arguments = dict(arguments)
    if arguments.get("bias"):
        arguments["bias"] = numbers(8, 1, heads, q_len, kv_len, dtype=sums)
    return [*tensors, numbers(9, 2, heads, q_len, dtype=sums)], arguments


def attend(name: str, cut_q: Any, cut_k: Any, method: str) -> dict[str, Tensor]:
    """This rank's results; the cuts take its rows."""
    (q, k, v, dout, dlse), arguments = inputs(name)
    own = [cut_q(q), cut_k(k), cut_k(v)]
    leaves = [x.clone().requires_grad_() for x in own]
    bias = arguments.pop("bias", None)
    if bias is not None:
        leaves.append(bias.requires_grad_())
        arguments["bias"] = bias
    out, lse = qt.parallel_attention(*leaves[:3], **METHODS[method], return_lse=True, **arguments)
    gradients = torch.autograd.grad((out, lse), leaves, (cut_q(dout), cut_q(dlse)))
    return dict(zip(RESULTS, (out.detach(), lse.detach(), *gradients)))


def rank_of(rank: int, world: int, folder: Path) -> None:
    join(rank, world, folder / "store")
    results: dict[str, Any] = {}
    for name, (q_len, kv_len, *_, arguments) in CASES.items():
        layout = {key: arguments[key] for key in ("layout", "turns") if key in arguments}
        rows, keys = (qt.sequence_positions(n, **layout) for n in (q_len, kv_len))
        results[name] = {method: attend(name, lambda x: x[:, :, rows], lambda x: x[:, :, keys], method) for method in METHODS}
        results[name]["rows"], results[name]["keys"] = rows, keys
    q, k, v, *_ = inputs("causal")[0]
    rows = qt.sequence_positions(q.shape[2])
    own = [x[:, :, rows] for x in (q, k, v)]
    with qt.context_parallel(method="ulysses"):
        results["within the block"] = F.scaled_dot_product_attention(*own, is_causal=True)
        try:
            F.scaled_dot_product_attention(*own, torch.ones(1, 1, dtype=torch.bool))
        except NotImplementedError as error:
            results["attn_mask"] = str(error)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double().eval()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.linspace(-0.5, 0.5, weight.numel()).view_as(weight).sin())
        text = torch.linspace(-1, 1, 2 * q.shape[2] * 8, dtype=torch.float64).cos().view(2, -1, 8)
        with qt.context_parallel():
            results["a fused layer"] = layer(text[:, rows])
        results["of all"] = layer(text)[:, rows]
    results["after it"] = F.scaled_dot_product_attention(*own)
    results["refused"] = {name: refusal(own, first if rank == 0 else others) for name, (first, others) in REFUSED.items()}
    results["drawn"] = qt.parallel_attention(*own, dropout=0.5)
    torch.save(results, folder / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # PyTorch's own end waits for itself now and then


@pytest.fixture(scope="module", params=(1, 2, 3))
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each rank."""
    folder, world = tmp_path_factory.mktemp("ranks"), request.param
    with ranks_of(world, rank_of, world, folder) as processes:
        for process in processes:
            process.join(180)
            assert process.exitcode == 0
    return [torch.load(folder / f"{n}.pt", weights_only=False) for n in range(world)]


def whole(parts: list[Tensor], positions: list[Tensor]) -> Tensor:
    """The rows of all ranks in the order of the sequence."""
    order = torch.cat(positions).argsort()
    return torch.cat(parts, 2)[:, :, order]


def alone(name: str) -> dict[str, Tensor]:
    """One machine's results."""
    (q, k, v, dout, dlse), arguments = inputs(name)
    options = {key: value for key, value in arguments.items() if key not in ("layout", "turns")}
    if options.get("causal") is True:
        options["causal"] = "top_left"
    out, lse = qkv.attention(q, k, v, return_lse=True, **options)
    need = ("q", "k", "v", "bias") if "bias" in options else ("q", "k", "v")
    gradients = qkv.attention_backward(dout, q, k, v, out, lse, dlse=dlse, need=need, **options)
    return {name: x for name, x in zip(RESULTS, (out, lse, *gradients)) if x is not None}


def formula(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Gradients of PyTorch's plain formula: the truth in float64, the naive form in the sums' type."""
    (q, k, v, dout, dlse), arguments = inputs(name)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if arguments.get("causal"):
        keep &= j <= i + (k.shape[2] - q.shape[2] if arguments["causal"] == "bottom_right" else 0)
    if "mask" in arguments:
        listed = arguments["mask"] is LISTED
        keep &= torch.zeros_like(keep).scatter(1, LISTS, True) if listed else (j <= i) & (j >= i - 9)
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, arguments.get("bias")) if x is not None]
    wide_k, wide_v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in leaves[1:3])
    scores = leaves[0] @ wide_k.mT * arguments.get("scale", q.shape[3] ** -0.5)
    if cap := arguments.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    scores = (scores + leaves[3] if len(leaves) > 3 else scores).masked_fill(~keep, -torch.inf)
    results = scores.softmax(-1) @ wide_v, scores.logsumexp(-1)
    return dict(zip(RESULTS[2:], torch.autograd.grad(results, leaves, (dout.to(dtype), dlse.to(dtype)))))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_ranks_give_what_one_machine_gives(ranks: list[dict[str, Any]], name: str, method: str) -> None:
    expected = alone(name)
    rows, keys = ([rank[name][which] for rank in ranks] for which in ("rows", "keys"))
    for result, one in expected.items():
        parts = [rank[name][method][result] for rank in ranks]
        if result == "dbias":
            assert all(torch.equal(part, parts[0]) for part in parts)
            got = parts[0]
        else:
            got = whole(parts, keys if result in ("dk", "dv") else rows)
        if result in EQUAL[method] or len(ranks) == 1 and result != "dbias":
            assert torch.equal(got, one), f"{result}: other bits than one machine's"
        else:  # sums over ranks in another order
            bound = 16 * EPSILON[CASES[name][4]] * max(1.0, float(one.abs().max()))
            torch.testing.assert_close(got, one, rtol=0, atol=bound)
            if "dropout" not in CASES[name][-1]:
                dtype = CASES[name][4]
                sums = torch.float64 if dtype is torch.float64 else torch.float32
                expect_close(got, formula(name, torch.float64)[result], formula(name, sums)[result], dtype, result)


def test_a_block_changes_scaled_dot_product_attention(ranks: list[dict[str, Any]]) -> None:
    q, k, v, *_ = inputs("causal")[0]
    rows = [rank["causal"]["rows"] for rank in ranks]
    for rank in ranks:  # of float64, in another order of sums
        torch.testing.assert_close(rank["a fused layer"], rank["of all"])
    got = whole([rank["within the block"] for rank in ranks], rows)
    assert torch.equal(got, qkv.attention(q, k, v, causal=True))
    assert "mask=" in ranks[0]["attn_mask"]
    for rank, own in zip(ranks, rows):
        local = [x[:, :, own] for x in (q, k, v)]
        assert torch.equal(rank["after it"], F.scaled_dot_product_attention(*local))


def test_ranks_that_differ_say_so_alike(ranks: list[dict[str, Any]]) -> None:
    if len(ranks) == 1:
        return
    for name in ("scale", "dropout", "no dropout", "seed"):
        assert len({rank["refused"][name] for rank in ranks}) == 1
        assert name.split()[-1] in ranks[0]["refused"][name]


def test_arguments_that_one_rank_has_wrong_end_the_call_of_all(ranks: list[dict[str, Any]]) -> None:
    first, others = ranks[0]["refused"], [rank["refused"] for rank in ranks[1:]]
    assert "TypeError: [parallel_attention] mask must be a qkv.Mask: got Tensor; qkv.Mask.keep(array)" in first["mask"]
    assert "chunk must not be negative: got -1" in first["chunk"]
    for other in others:
        assert other["mask"] == "Error: [parallel_attention] rank 0 refused its arguments: " + first["mask"].split(": ", 1)[1]
        assert "rank 0 refused its arguments" in other["chunk"] and "got -1" in other["chunk"]
        assert "zigzag" in other["layout"] and "rank 1 refused its arguments" in first["layout"]


def test_a_seed_that_is_not_given_is_shared(ranks: list[dict[str, Any]]) -> None:
    drawn = torch.cat([rank["drawn"] for rank in ranks], 2)
    assert (drawn == 0).float().mean() < 0.1  # sums over keys, half of which are dropped
    assert torch.isfinite(drawn).all()


def test_without_torch_distributed() -> None:
    x = numbers(1, 1, 2, 4, 8, dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"init_process_group\('gloo'\)"):
        qt.parallel_attention(x, x, x)


def watched(rank: int, store: Path, number: int, method: str, backward: bool) -> None:
    join(rank, 3, store, **{_watch.VARIABLE: "1.5"})
    x = torch.ones(1, 3, 96, 8, requires_grad=True)
    qt.parallel_attention(x, x, x, **METHODS[method]).sum().backward()
    time.sleep(2 if number < 0 and rank == 2 else 0)  # longer than the silence that a dead rank is allowed
    for call in range(10**9):
        dies = rank == 1 and call == 3 and number > 0
        if dies and not backward:
            os.kill(os.getpid(), number)
        try:
            out = qt.parallel_attention(x, x, x, **METHODS[method])
            if dies:
                os.kill(os.getpid(), number)
            if backward:
                out.sum().backward()
        except qkv.Error as error:
            Path(f"{store}.{rank}").write_text(str(error).splitlines()[0])
            os._exit(1)
        if number < 0 and call == 3:
            os._exit(0)  # PyTorch's own end waits for itself now and then


def ended(folder: Path, number: int, method: str = "all-gather", backward: bool = False) -> list[tuple[int | None, str]]:
    """(exit code, what it said) of ranks 0 and 2 of three, of which rank 1 gets the signal; below 0: none, and rank 2 is slow."""
    store = folder / "store"
    with ranks_of(3, watched, store, number, method, backward) as ranks:
        for rank in (ranks[0], ranks[2]):
            rank.join(120)
    said = [Path(f"{store}.{n}") for n in (0, 2)]
    return [(ranks[n].exitcode, path.read_text() if path.exists() else "") for n, path in zip((0, 2), said)]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("number", "method"), [*((signal.SIGKILL, method) for method in METHODS), (signal.SIGSTOP, "all-gather")]
)
def test_a_rank_that_is_gone_ends_the_others(tmp_path: Path, number: int, method: str, backward: bool) -> None:
    for code, line in ended(tmp_path, number, method, backward):
        assert code == 1 and line.startswith("[transport] rank "), line


def test_a_slow_rank_is_not_gone(tmp_path: Path) -> None:
    assert ended(tmp_path, -1) == [(0, ""), (0, "")]


def test_the_silence_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watch.seconds_of_silence() == 8
    for text in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv(_watch.VARIABLE, text)
        with pytest.raises(ValueError, match="seconds above 0"):
            _watch.seconds_of_silence()

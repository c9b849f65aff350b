"""Arrays accepted and refused: libraries, element types, devices, strides, read-only results; each error says what to
do."""

import array
import sys
from typing import Any

import numpy as np
import pytest
import qkv
from support import attend, expect_close, numbers, problem


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype: str) -> None:
    """NumPy's float16 and ml_dtypes' bfloat16: inputs and result of that type, sums and lse in float32."""
    kind: Any = np.float16
    if dtype == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (x.astype(kind) for x in problem(1, 2, 4, 30, 40, 16, kv_heads=2))
    dout = numbers(9, 2, 4, 30, 16).astype(kind)
    out, lse = qkv.attention(q, k, v, causal="bottom_right", return_lse=True)
    gradients = qkv.attention_backward(dout, q, k, v, out, lse, causal="bottom_right")
    assert out.dtype == kind and lse.dtype == np.float32 and gradients.dk.dtype == kind
    eps = float(np.finfo(np.float32).eps) * 2 ** (16 if dtype == "bfloat16" else 13)
    keep = np.tril(np.ones((30, 40), bool), 10)
    naive, exact = (attend(q, k, v, keep=keep, dtype=wide) for wide in (np.float32, np.float64))
    expect_close(out, exact[0], naive[0].astype(kind), exact[2] @ abs(np.repeat(v, 2, 1).astype(float)), eps)
    expect_close(lse, *(x[1] for x in (exact, naive)))
    results = []
    for wide in (np.float32, np.float64):
        given = [x.astype(wide) for x in (q, k, v)]
        whole = qkv.attention(*given, causal="bottom_right", return_lse=True)
        results.append(qkv.attention_backward(dout.astype(wide), *given, *whole, causal="bottom_right")[:3])
    for narrow, naive, exact in zip(gradients, *results):
        expect_close(narrow, exact, naive.astype(kind), eps=eps, times=3)


def test_memory_without_numpy() -> None:
    """Anything with the buffer protocol is an array of numbers."""
    values = numbers(2, 3 * 4).astype(np.float32)
    plain = memoryview(array.array("f", values.tolist())).cast("b").cast("f", [3, 4])
    out = np.zeros((3, 4), np.float32)
    from qkv import _core

    _core.forward(None, None, "softmax", plain, plain, plain, out, None, None, None)
    x = values.reshape(3, 4)
    assert np.array_equal(out, qkv.attention(x, x, x))


def test_torch_and_jax_arrays_give_their_own_kind() -> None:
    q, k, v = problem(3, 1, 2, 5, 5, 4)
    expected = qkv.attention(q, k, v, causal=True)
    for name in ("torch", "jax.numpy"):
        library = pytest.importorskip(name)
        make = library.from_numpy if name == "torch" else library.asarray
        result = qkv.attention(make(q), make(k), make(v), causal=True)
        assert type(result).__module__.split(".")[0] in ("torch", "jaxlib", "jax")
        assert np.array_equal(np.asarray(result), expected)


def refused(kind: type[Exception], *parts: str, call: Any) -> None:
    with pytest.raises(kind) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_errors_say_what_to_do() -> None:
    q, k, v = problem(4, 2, 2, 6, 6, 4)
    refused(TypeError, "[attention] q must be float32, float64, bfloat16 or float16", "int64", call=lambda: qkv.attention(q.astype(int), k, v))
    refused(TypeError, "k must have q's element type", "float64", call=lambda: qkv.attention(q, k.astype(float), v))
    refused(TypeError, "k must be an array", "list", call=lambda: qkv.attention(q, [1.0], v))
    refused(ValueError, "[B, H, T, D]", "[2, 6, 4]", call=lambda: qkv.attention(q, k[0], v))
    refused(ValueError, "last axis of q must have stride 1", call=lambda: qkv.attention(q.swapaxes(2, 3), k.swapaxes(2, 3), v))
    refused(ValueError, "q must be [B, H, T, D]", "[4]", call=lambda: qkv.attention(q[0, 0, 0], k, v))
    refused(ValueError, "last axis", "np.ascontiguousarray", ".contiguous()", call=lambda: qkv.attention(q[..., ::2], k[..., ::2], v))
    refused(TypeError, "byte order", "newbyteorder", call=lambda: qkv.attention(*(x.astype(">f4") for x in (q, k, v))))
    refused(ValueError, '"bottom_right"', '"top_left"', call=lambda: qkv.attention(q[:, :, :3], k, v, causal=True))
    refused(TypeError, "scale must be a number: got 'a'", call=lambda: qkv.attention(q, k, v, scale="a"))
    refused(TypeError, "seed", "from 0 on: got -1", call=lambda: qkv.attention(q, k, v, dropout=0.5, seed=-1))
    refused(TypeError, "[dropout_factors] seed", "got -1", call=lambda: qkv.dropout_factors((1, 1, 2, 2), 0.5, -1))
    refused(TypeError, "[random_features] seed", "got 1.5", call=lambda: qkv.random_features((2, 2), 1.5))
    refused(TypeError, "key_lengths must be a sequence of whole numbers: got [2.5, 3]", call=lambda: qkv.attention(q, k, v, key_lengths=[2.5, 3]))
    refused(TypeError, "[attention_varlen] q_offsets", "got 6", call=lambda: qkv.attention_varlen(q[0], k[0], v[0], 6))
    refused(ValueError, "[ScoreMod] value", "[6, 6]", "[7, 9]", call=lambda: qkv.attention(q, k, v, score_mod=lambda *_: np.zeros((7, 9))))
    refused(TypeError, "[ScoreMod] value must be a function", "str", call=lambda: qkv.ScoreMod("x"))
    refused(TypeError, "inside= takes masks: got ndarray", call=lambda: qkv.Mask.documents([0, 6], inside=np.ones((6, 6))))
    refused(TypeError, "inside= takes masks: got int", call=lambda: qkv.Mask.documents([0, 6], inside=0))
    refused(TypeError, "Mask() takes nothing: got ndarray", "Mask.keep(array)", call=lambda: qkv.Mask(np.tri(6)))
    for keep in ([[None, True]], [["no", "yes"]], [[b"0", b"1"]]):
        refused(TypeError, "keep must hold bools or numbers", call=lambda keep=keep: qkv.Mask.keep(np.array(keep), "bk"))
    refused(TypeError, "which pairs may attend: got None", call=lambda: qkv.Mask.of(lambda b, h, i, j: None, 6, 6))
    refused(TypeError, "a masked one", call=lambda: qkv.Mask.of(lambda b, h, i, j: np.ma.masked_less(i >= j, 0), 6, 6))
    refused(TypeError, "[Mask.blocks] block_map must be a qkv.BlockMap: got str", call=lambda: qkv.Mask.blocks("x"))
    refused(qkv.ShapeError, "[Mask.document_ids]", "got [2] and [1, 2]", call=lambda: qkv.Mask.document_ids([0, 1], [[0, 1]]))
    refused(TypeError, "qkv.PositionBias", "int", call=lambda: qkv.attention(q, k, v, position_bias=3))
    refused(TypeError, "qkv.ScoreMod", "int", call=lambda: qkv.attention(q, k, v, score_mod=3))
    assert np.array_equal(qkv.attention(q, k, v, causal=np.True_), qkv.attention(q, k, v, causal=True))
    refused(TypeError, "Mask.keep(array)", "ndarray", call=lambda: qkv.Mask.causal() & np.ones((6, 6), bool))
    refused(TypeError, "Mask.keep(array)", "ndarray", call=lambda: np.ones((6, 6), bool) | qkv.Mask.causal())
    out, lse = qkv.attention(q, k, v, return_lse=True)
    backward = qkv.attention_backward
    refused(ValueError, "out must be [2, 2, 6, 4]", "[1, 2, 6, 4]", call=lambda: backward(out, q, k, v, out[:1], lse))
    refused(TypeError, "lse must be float32", "float64", call=lambda: backward(out, q, k, v, out, lse.astype(float)))
    expanded = np.broadcast_to(q[..., :1], q.shape)
    refused(ValueError, "last axis of dout must have stride 1", call=lambda: backward(expanded, q, k, v, out, lse))
    refused(ValueError, "'bias'", "none", call=lambda: backward(out, q, k, v, out, lse, need="bias"))
    refused(TypeError, "Capture", "str", call=lambda: backward(out, q, k, v, out, lse, weights="all"))
    refused(qkv.OptionError, 'of="gradient"', call=lambda: backward(out, q, k, v, out, lse, weights=qkv.Capture(rows=[0])))
    out = np.empty_like(q)
    out.flags.writeable = False
    refused(ValueError, "out is written to", "read-only", "writable", call=lambda: qkv.attention(q, k, v, out=out))
    refused(ValueError, "share no element", call=lambda: qkv.attention(q, k, v, out=q))
    refused(ValueError, "mask_axes", '"bk"', call=lambda: qkv.attention(q, k, v, keep=np.ones((2, 6), bool)))
    refused(TypeError, "qkv.Mask", "keep=", call=lambda: qkv.attention(q, k, v, mask=np.ones((6, 6))))
    refused(ValueError, "causal", "bottom_right", call=lambda: qkv.attention(q, k, v, causal="lower"))
    refused(ValueError, "seed", call=lambda: qkv.attention(q, k, v, dropout=0.1))
    refused(ValueError, "[0, 1]", call=lambda: qkv.attention(q, k, v, dropout=1.5, seed=0))
    refused(ValueError, "empty_row", "mean", call=lambda: qkv.attention(q, k, v, empty_row="one"))
    refused(ValueError, "weights", "Capture", call=lambda: qkv.attention(q, k, v, weights="some"))
    refused(TypeError, "bias", call=lambda: qkv.attention(q, k, v, bias=np.zeros((1, 1, 6, 6), int)))
    refused(ValueError, "head_dim must be at least 1", call=lambda: qkv.attention(q[..., :0], k[..., :0], v))
    refused(ValueError, "at least 1", call=lambda: qkv.set_num_threads(0))
    refused(ValueError, "scalar", call=lambda: qkv.set_isa("sse9"))


def test_a_masked_arrays_mask_is_not_ignored() -> None:
    q, k, v = problem(4, 1, 2, 6, 6, 4)
    masked, hidden = np.ma.array(k, mask=k > 0), np.ma.array(np.ones((6, 6), bool), mask=True)
    for call in (
        lambda: qkv.attention(q, masked, v), lambda: qkv.attention(q, masked, v, layout="bthd"), lambda: qkv.Mask.keep(hidden, "qk"),
        lambda: qkv.attention(q, k, v, key_lengths=np.ma.array([6], mask=True)), lambda: qkv.Mask.keys(np.ma.array([[[[1]]]], mask=True)),
    ):  # fmt: skip
        refused(TypeError, "must be a plain array: got a masked one", "keep=~np.ma.getmaskarray", call=call)


def test_fractions_are_no_whole_numbers() -> None:
    q, ids = numbers(1, 1, 2, 3, 8), np.array([0.5, 1, 2])
    layer = qkv.nn.GroupedQueryAttention(8, 2, 1, rotary=qkv.Rotary(4))
    refused(TypeError, "[Mask.document_ids] q_ids must hold whole numbers: got float64", call=lambda: qkv.Mask.document_ids([0.2, 0.7]))
    refused(TypeError, "[Rotary] ids must hold whole numbers: got float64", call=lambda: qkv.Rotary(8)(q, ids=ids))
    refused(TypeError, "position_ids must hold whole numbers: got float64", call=lambda: layer(q[0], position_ids=ids))
    assert np.array_equal(layer(q[0], position_ids=[0, 1, 2]), layer(q[0]))


def test_an_unknown_option_names_the_function() -> None:
    q, k, v = problem(4, 1, 2, 6, 6, 4)
    rows = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    out, lse = qkv.attention(q, k, v, return_lse=True)
    calls: dict[str, Any] = {
        "attention_backward": lambda: qkv.attention_backward(out, q, k, v, out, lse, casual=True),
        "attention_weights": lambda: qkv.attention_weights(q, k, casual=True),
        "attention_plan": lambda: qkv.attention_plan(q, k, v, casual=True),
        "attention_varlen": lambda: qkv.attention_varlen(*rows, [0, 6], casual=True),
    }
    for name, call in calls.items():
        refused(TypeError, f"[{name}] casual is no option: there are bias, bits, causal,", call=call)
    known = "[linear_attention] tokens_first is no option: there are beta, causal,"
    refused(TypeError, known, call=lambda: qkv.linear_attention(q, k, v, tokens_first=True))
    refused(ValueError, "return_lse must be False or True: got 'low'", call=lambda: qkv.attention_varlen(*rows, [0, 6], return_lse="low"))


def test_numpys_scalars_are_numbers() -> None:
    q, k, v = problem(4, 1, 2, 6, 6, 4)
    captured = [qkv.attention(q, k, v, weights=qkv.Capture(statistics=yes, column_mass=yes))[1] for yes in (True, np.True_)]
    assert np.array_equal(captured[0].entropy, captured[1].entropy) and np.array_equal(captured[0].column_mass, captured[1].column_mass)
    biases = [qkv.PositionBias.alibi(heads) for heads in (2, np.int64(2))]
    assert np.array_equal(*(qkv.attention(q, k, v, position_bias=bias) for bias in biases))
    table, (cosines, sines) = numbers(5, 8, 2), (numbers(n, 6, 2) for n in (6, 7))
    for make in (
        lambda yes: qkv.Rotary(4, interleaved=yes)(q),
        lambda yes: qkv.Rotary.from_tables(cosines, sines, interleaved=yes)(q),
        lambda yes: qkv.attention(q, k, v, position_bias=qkv.PositionBias.t5(table, bidirectional=yes)),
        lambda yes: qkv.linear_attention(q, k, v, causal=yes, normalized=yes),
        lambda yes: np.array(qkv.AttentionLM(context=4, width=4, blocks=yes).parameter_count),
        lambda yes: np.array("bias" in qkv.nn.Linear(4, 4, bias=yes).state_dict()),
    ):
        assert np.array_equal(make(True), make(np.True_)) and np.array_equal(make(False), make(np.False_))
    model = qkv.AttentionLM(context=4, width=4)
    assert model.generate("a", 9, temperature=np.float32(0.5), seed=1) == model.generate("a", 9, temperature=0.5, seed=1)


def test_what_is_no_array_is_told_so() -> None:
    q, k, v = problem(4, 1, 2, 6, 6, 4)
    rows = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    refused(TypeError, "q must be an array: got list", call=lambda: qkv.attention_varlen([1.0], *rows[1:], [0, 6]))
    refused(TypeError, "v must be an array: got NoneType", call=lambda: qkv.attention_varlen(*rows[:2], None, [0, 6]))  # type: ignore[arg-type]
    refused(TypeError, "k_index must be an array: got NoneType", call=lambda: qkv.top_keys(q, None, q[..., 0], 2))
    refused(TypeError, "[Rotary] x must be an array: got list", call=lambda: qkv.Rotary(4)([1.0]))
    refused(TypeError, "lse must be an array", "got dict", call=lambda: qkv.attention_backward(q, q, k, v, q, {}))


def test_none_is_not_given() -> None:
    q, k, v = problem(4, 1, 2, 6, 6, 4)
    plain, given = (qkv.linear_attention(q, k, v, return_state=True, **options) for options in ({}, {"normalized": None, "scale": None}))
    assert all(np.array_equal(a, b) for a, b in zip((plain[0], *plain[1]), (given[0], *given[1])))


def test_unsupported_combinations_are_named() -> None:
    q, k, v = problem(5, 1, 1, 4, 4, 4)
    cache = qkv.KVCache(num_kv_heads=1, head_dim=4, capacity=8)
    cache.append(k, v)
    refused(NotImplementedError, "dropout", call=lambda: qkv.attention(q, cache, dropout=0.5, seed=1))
    refused(TypeError, "sequences are those of a KVCache", call=lambda: qkv.attention(q, k, v, sequences=[0]))
    assert issubclass(qkv.UnsupportedError, (qkv.Error, NotImplementedError))


def test_a_cuda_tensor_is_told_to_move() -> None:
    torch = pytest.importorskip("torch")
    q = torch.empty(1, 1, 2, 4, device="meta")
    refused(ValueError, "CPU", "meta", "q.cpu()", call=lambda: qkv.attention(q, q, q))


def test_a_callbacks_exception_reaches_the_caller() -> None:
    q, k, v = problem(6, 1, 2, 9, 9, 4)

    def broken(*_: object) -> None:
        raise KeyError("from the callback")

    refused(KeyError, "from the callback", call=lambda: qkv.attention(q, k, v, score_mod=broken))
    assert np.isfinite(qkv.attention(q, k, v)).all()


def test_no_reference_is_lost_or_kept() -> None:
    q, k, v = problem(7, 1, 1, 4, 4, 4)
    keep = np.ones((1, 1, 4, 4), bool)
    before = [sys.getrefcount(x) for x in (q, k, v, keep)]
    for _ in range(50):
        qkv.attention(q, k, v, keep=keep, causal=True)
    assert [sys.getrefcount(x) for x in (q, k, v, keep)] == before

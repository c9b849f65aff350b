"""qkv.standins' fla: every function of its table, plain and with every argument on, against a recurrence in float64; packs bit for bit; refusals."""

import importlib
import inspect
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv.standins
import torch.nn.functional as F
from qkv.standins import fla
from support_torch import compare, numbers
from torch import Tensor

OPS = fla.MODULES["fla.ops"]
NAMES = [x for x in OPS if not x.endswith("_gdn")]
SWITCHES = ("use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval", "reverse", "normalize", "state_v_first")
B, T, H, K, V = 2, 17, 2, 5, 4


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    if "fla" not in qkv.standins.install("fla", quiet=True):
        pytest.skip("the real fla is installed")
    yield
    qkv.standins.uninstall()


def inputs(name: str, full: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and other arguments by name: those that are needed, or all."""
    known = set(inspect.signature(OPS[name]).parameters) | ({"use_gate_in_kernel", "A_log", "dt_bias"} if "gated" in name or "kda" in name else set())
    wide = "gla" in name and "simple" not in name or "kda" in name
    keys = F.normalize(numbers(2, B, T, H, K), dim=-1).abs()  # positive: what is normalised does not cancel
    every = {
        "q": numbers(1, B, T, H, K).abs(), "k": keys, "v": numbers(3, B, T, H, V), "beta": numbers(4, B, T, H).sigmoid(),
        "g": -numbers(5, B, T, H, *((K,) if wide else ())).abs(), "gk": -numbers(6, B, T, H, K).abs(),
        "g_gamma": -numbers(8, H).abs(), "A_log": numbers(9, H), "dt_bias": numbers(10, H * (K if wide else 1)),
        "initial_state": numbers(11, B, H, *((V, K) if "state_v_first" in known else (K, V))),
    }  # fmt: skip
    needed = {"q", "k", "v", "beta", "g"}
    tensors = {x: y.requires_grad_() for x, y in every.items() if x in known and (full or x in needed)}
    options: dict[str, Any] = {x: full for x in SWITCHES if x in known}
    options |= {x: 3 if x == "layer_idx" else 7 for x in ("layer_idx", "num_layers") if x in known}
    return tensors, options | ({"output_final_state": True, "scale": 0.3} if full and "output_final_state" in known else {})


def recurrence(name: str, o: dict[str, Any], a: dict[str, Tensor]) -> Any:
    dtype = torch.promote_types(a["q"].dtype, torch.float32)
    a = {x: y.to(dtype) for x, y in a.items()}
    q, k, v, g, beta = a["q"], a["k"], a["v"], a.get("g"), a.get("beta")
    if o.get("use_qk_l2norm_in_kernel"):
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    if o.get("use_gate_in_kernel"):
        bias, rate = a["dt_bias"].view(g.shape[2:]), a["A_log"].exp()
        g = -(rate[:, None] if g.dim() == 4 else rate) * F.softplus(g + bias)
    if beta is not None and o.get("use_beta_sigmoid_in_kernel"):
        beta = beta.sigmoid() * 2
    heads = torch.arange(H, dtype=dtype)
    log = torch.zeros(B, T, H, K, 1, dtype=dtype)
    log = log + (0 if g is None else g.reshape(B, T, H, -1, 1))
    log = log + (a["gk"][..., None] if "gk" in a else 0) + (a["g_gamma"][:, None, None] if "g_gamma" in a else 0)
    if "retention" in name:
        log = log + torch.log(1 - 2 ** (-5 - heads))[:, None, None]
    if "lightning" in name:
        log = log + (-8 / H * (1 - o["layer_idx"] / o["num_layers"]) * heads)[:, None, None]
    s, z = a.get("initial_state", torch.zeros(B, H, K, V, dtype=dtype)), torch.zeros(B, H, K, dtype=dtype)
    s = s.mT if o.get("state_v_first") and "initial_state" in a else s
    scale, outs = o.get("scale", K**-0.5), []
    for t in reversed(range(T)) if o.get("reverse") else range(T):
        s, z = s * log[:, t].exp(), z + k[:, t]
        u = v[:, t] if beta is None else beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * u[:, :, None]
        out = scale * torch.einsum("bhkv,bhk->bhv", s, q[:, t])
        outs.append(out / (scale * (z * q[:, t]).sum(-1, keepdim=True) + 1e-10) if o.get("normalize") else out)
    out = torch.stack(outs[::-1] if o.get("reverse") else outs, 1).to(a["v"].dtype)
    return (out, s.mT if o.get("state_v_first") else s) if o.get("output_final_state") else out


@pytest.mark.parametrize("full,dtype", [(True, torch.float32), (True, torch.bfloat16), (False, torch.float64), (False, torch.float16)])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_the_recurrences(name: str, full: bool, dtype: torch.dtype) -> None:
    tensors, options = inputs(name, full)

    def ours(*values: Tensor) -> Any:
        out, final = OPS[name](**dict(zip(tensors, values)), **options)
        final = final[0] if isinstance(final, tuple) else final
        assert out.dtype is values[0].dtype and out.shape == values[2].shape
        return out.to(torch.promote_types(dtype, torch.float32)), final

    def theirs(*values: Tensor) -> Any:
        return recurrence(name, options, dict(zip(tensors, values)))

    if not full and "output_final_state" in options:
        assert ours(*tensors.values())[1] is None
    compare(ours, theirs, list(tensors.values()), dtype)


@pytest.mark.parametrize("name", [x for x in NAMES if "parallel" not in x])
def test_a_sequence_of_a_pack_has_the_bits_that_it_has_alone(name: str) -> None:
    """Gates apart: PyTorch's sigmoid and softplus depend on where in memory a number lies."""
    tensors, options = inputs(name, True)
    tensors = {x: y.detach().float() for x, y in tensors.items()}
    options |= {x: False for x in ("normalize", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval") if x in options}
    packed = {x: y.flatten(0, 1)[None] if y.dim() > 2 and x != "initial_state" else y for x, y in tensors.items()}
    out, final = OPS[name](**packed, **options, cu_seqlens=torch.tensor([0, T, B * T]))
    for n in range(B):
        alone, state = OPS[name](**{x: y[n : n + 1] if y.dim() > 2 else y for x, y in tensors.items()}, **options)
        assert torch.equal(out[:, n * T : (n + 1) * T], alone) and torch.equal(final[n : n + 1], state)


def test_linear_attention_goes_on_from_its_state_and_parallel_forms_return_scores() -> None:
    q, k, v = (numbers(n, 1, 8, 2, 4).abs() for n in range(3))
    whole, _ = OPS["chunk_linear_attn"](q, k, v)
    _, state = OPS["chunk_linear_attn"](q[:, :5], k[:, :5], v[:, :5], output_final_state=True)
    rest, _ = OPS["chunk_linear_attn"](q[:, 5:], k[:, 5:], v[:, 5:], initial_state=state)
    torch.testing.assert_close(rest, whole[:, 5:])
    out, scores = OPS["parallel_retention"](q, k, v, output_attentions=True)
    torch.testing.assert_close(torch.einsum("bhij,bjhv->bihv", scores, v), out)


@pytest.mark.parametrize("arguments,error,text", [
    ({"cp_context": object()}, NotImplementedError, "cp_context"), ({"head_first": True}, NotImplementedError, "head_first"),
    ({"unknown": 3}, NotImplementedError, "unknown"), ({"chunk_size": 16}, ValueError, "chunk_size"),
    ({"state_v_first": True, "transpose_state_layout": True}, ValueError, "transpose_state_layout"), ({"allow_neg_eigval": True}, ValueError, "sigmoid"),
    ({"use_gate_in_kernel": True}, ValueError, "A_log"), ({"v": torch.zeros(1, 8, 2, 4, device="meta")}, NotImplementedError, "v on meta"),
    ({"beta": torch.zeros(1, 8, 3)}, ValueError, "beta"), ({"beta": None}, TypeError, "needs beta"), ({"g": None}, TypeError, "needs g"),
    ({"g": torch.zeros(1, 8, 2)}, ValueError, "g must be"), ({"g": torch.zeros(1, 8, 2, 4).long()}, TypeError, "g must hold real"),
    ({"beta": torch.ones(1, 8, 2).bool()}, TypeError, "beta must hold real"),
    ({"initial_state": torch.zeros(1, 2, 4, 4) + 0j}, TypeError, "initial_state must hold real"),
])  # fmt: skip
def test_refusals_name_the_argument(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {x: torch.zeros(1, 8, 2, 4) for x in ("q", "k", "v", "g")} | {"beta": torch.zeros(1, 8, 2)}
    with pytest.raises(error, match=text):
        OPS["chunk_kda"](**{**given, **arguments})


def test_gates_and_beta_are_those_of_the_family() -> None:
    q, wide, thin = torch.ones(1, 8, 2, 4), -torch.ones(1, 8, 2, 4), -torch.ones(1, 8, 2)
    for name, given, text in (
        ("chunk_gla", {}, "needs g"), ("chunk_gated_delta_rule", {"g": thin}, "needs beta"), ("chunk_delta_rule", {}, "needs beta"),
        ("fused_recurrent_kda", {"g": wide}, "needs beta"), ("chunk_gla", {"g": thin}, "g must be"), ("chunk_simple_gla", {"g": wide}, "g must be"),
        ("fused_recurrent_gated_delta_rule", {"gk": thin}, "gk must be"),
        ("fused_recurrent_gated_delta_rule", {"use_beta_sigmoid_in_kernel": True}, "use_beta_sigmoid_in_kernel needs beta"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=text):
            OPS[name](q, q, q, **given)
    with pytest.raises(ValueError, match=r"dt_bias must have the size of g's \[2, 4\]: got \[2\]"):
        fla.fused_kda_gate(wide, wide[0, 0, :, 0], wide[0, 0, :, 0])


def test_scores_where_a_gate_lets_nothing_through() -> None:
    q, k, v = (numbers(n, 1, 8, 2, 4) for n in range(3))
    g = -numbers(3, 1, 8, 2).abs()
    g[:, [0, 3]] = -torch.inf
    out, scores = OPS["parallel_simple_gla"](q, k, v, g.requires_grad_(), output_attentions=True)
    torch.testing.assert_close(torch.einsum("bhij,bjhv->bihv", scores, v), out)
    (back,) = torch.autograd.grad(scores.sum(), g)
    assert not scores[..., 3:, :3].any() and bool(back.isfinite().all()) and back.any()


def test_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(OPS["chunk_gla"])) is OPS["chunk_gla"]


def test_scores_of_packed_sequences_are_refused() -> None:
    q = torch.zeros(1, 8, 2, 4)
    for name in ("parallel_retention", "parallel_simple_gla"):
        with pytest.raises(NotImplementedError, match=rf"{name}: output_attentions.*without cu_seqlens: got cu_seqlens \[3\]"):
            OPS[name](q, q, q, output_attentions=True, cu_seqlens=torch.tensor([0, 3, 8]))


def test_modules_that_models_import() -> None:
    import fla.ops

    assert fla.__version__ and fla.ops.gla.chunk.chunk_gla is OPS["chunk_gla"]
    for name in ("fla.ops.gated_delta_rule.chunk", "fla.ops.kda.gate", "fla.modules.l2norm"):
        assert importlib.import_module(name)
    torch.testing.assert_close(importlib.import_module("fla.modules.l2norm").l2norm(torch.ones(2, 4)), torch.full((2, 4), 0.5))
    with pytest.raises(ModuleNotFoundError, match="rwkv7"):
        importlib.import_module("fla.ops.rwkv7")
    qkv.standins.uninstall()
    assert "fla.ops" not in sys.modules

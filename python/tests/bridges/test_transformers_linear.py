"""qkv.transformers.register(linear=True): logits, gradients and generated text of small random hybrid models against the same models
in float64 and against transformers' own functions; packed sequences; what is replaced and put back.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")
if not hasattr(tf, "Qwen3NextConfig") or not hasattr(tf, "OlmoHybridConfig"):
    pytest.skip("needs transformers with hybrid models", allow_module_level=True)
import qkv.transformers
from support_torch import compare, delta_rule, expect_all, expect_close, numbers
from torch import Tensor, nn

tf.logging.set_verbosity_error()

TOKENS = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} | TOKENS
SIZES |= {"intermediate_size": 48, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
SIZES |= {"linear_value_head_dim": 16}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
MAMBA = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2}

# Kimi Delta Attention: a decay per channel.
KIMI = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
KIMI |= {"moe_intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "kv_lora_rank": 16, "v_head_dim": 16}
KIMI |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2} | TOKENS
LAYERS = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
KIMI_HEADS = {"linear_head_dim": 16, "linear_num_heads": 2}
BAILING = {"head_dim": 16, "layer_group_size": 4, "num_mtp_layers": 0}

# Mamba-2 beside attention.
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= TOKENS
BLOCKS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16}
GRANITE = {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 48, "num_local_experts": 0}
NEMOTRON = {
    "layers_block_type": ["mamba", "attention"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
}
ZAMBA = {
    "layers_block_type": ["mamba", "hybrid"],
    "n_mamba_heads": 4,
    "mamba_headdim": 16,
    "mamba_ngroups": 2,
    "mamba_d_state": 16,
}

MODELS: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: tf.Qwen3NextForCausalLM(tf.Qwen3NextConfig(**SIZES, **MOE)),
    "qwen3_5": lambda: tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**SIZES)),
    "qwen3_5_moe": lambda: tf.Qwen3_5MoeForCausalLM(tf.Qwen3_5MoeTextConfig(**SIZES, **MOE)),
    "olmo_hybrid": lambda: tf.OlmoHybridForCausalLM(tf.OlmoHybridConfig(**SIZES)),
    "kimi_linear": lambda: tf.KimiLinearForCausalLM(tf.KimiLinearConfig(**KIMI, **KIMI_HEADS, **LAYERS)),
    "bailing_hybrid": lambda: tf.BailingHybridForCausalLM(tf.BailingHybridConfig(**KIMI, **BAILING, **LAYERS)),
    "mamba": lambda: tf.MambaForCausalLM(tf.MambaConfig(hidden_size=32, state_size=16, num_hidden_layers=2, **TOKENS)),
    "mamba2": lambda: tf.Mamba2ForCausalLM(tf.Mamba2Config(**MAMBA, **TOKENS)),
    "bamba": lambda: tf.BambaForCausalLM(tf.BambaConfig(**SMALL, **BLOCKS, attn_layer_indices=[1])),
    "falcon_h1": lambda: tf.FalconH1ForCausalLM(tf.FalconH1Config(**SMALL, **BLOCKS, mamba_d_ssm=64)),
    "granitemoehybrid": lambda: tf.GraniteMoeHybridForCausalLM(tf.GraniteMoeHybridConfig(**SMALL, **BLOCKS, **GRANITE)),
    "nemotron_h": lambda: tf.NemotronHForCausalLM(tf.NemotronHConfig(**SMALL, **NEMOTRON)),
    "zamba2": lambda: tf.Zamba2ForCausalLM(tf.Zamba2Config(**SMALL, **ZAMBA)),
}


@pytest.fixture(autouse=True)
def taken_out() -> Iterator[None]:
    yield
    qkv.transformers.unregister()


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Random weights, the same numbers in every type."""
    torch.manual_seed(0)
    model = MODELS[name]().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.bfloat16())
    if "num_experts" in model.config.to_dict():
        model.set_experts_implementation("eager")  # the others know no float64
    return model.to(dtype)


def exact_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, initial_state: Any = None, **_: Any
) -> Any:
    return delta_rule(query, key, value, g, beta, initial_state, None, True)


def exact_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, **_: Any) -> Tensor:
    """Mamba-2's recurrence. arXiv:2405.21060, eq. 2."""
    dt = nn.functional.softplus(dt + dt_bias)
    group = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(group, 2), C.repeat_interleave(group, 2)
    state, outs = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3]), []
    for t in range(x.shape[1]):
        state = state * (A * dt[:, t]).exp()[..., None, None]
        state = state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        outs.append(torch.einsum("bhpn,bhn->bhp", state, C[:, t]) + D[:, None] * x[:, t])
    return torch.stack(outs, 1)


def exact_selective(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor, **_: Any) -> Tensor:
    """Mamba-1's recurrence, u [B, D, T], B [B, N, T]. arXiv:2312.00752, algorithm 2."""
    dt = nn.functional.softplus(dt + delta_bias[:, None])
    state, outs = u.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[2]):
        state = state * (A * dt[..., t, None]).exp() + (dt * u)[..., t, None] * B[:, None, :, t]
        outs.append((state * C[:, None, :, t]).sum(-1))
    return (torch.stack(outs, -1) + D[:, None] * u) * nn.functional.silu(z)


def run(model: nn.Module, ids: Tensor, **more: Any) -> dict[str, Tensor]:
    """Logits and every parameter's gradient."""
    result = model(ids, labels=ids, use_cache=False, **more)
    result.loss.backward()
    return {"logits": result.logits, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_within_three_times_pytorchs_error(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.randint(3, 61, (2, 75), generator=torch.Generator().manual_seed(1))
    naive = run(model_of(name, dtype), ids)
    model = model_of(name, dtype)
    qkv.transformers.register(linear=True)  # after the model was built
    fast = run(model, ids)
    qkv.transformers.unregister()
    truth = model_of(name, torch.float64)
    module = sys.modules[type(truth).__module__]
    rules = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
    scans = (("mamba2_chunk_scan", exact_scan), ("mamba_selective_scan", exact_selective))
    for function, exact in (*((rule, exact_delta_rule) for rule in rules), *scans):
        if hasattr(module, function):
            monkeypatch.setattr(
                module, function, (lambda *a, **k: (exact_delta_rule(*a, **k)[0], None)) if exact is exact_delta_rule else exact
            )
    exact = run(truth, ids)
    expect_all(fast, exact, naive, dtype, name)


@pytest.mark.parametrize("name", MODELS)
def test_generate_gives_the_same_ids(name: str) -> None:
    model = model_of(name).eval()
    ids = torch.randint(3, 61, (2, 70), generator=torch.Generator().manual_seed(1))
    expected = model.generate(ids, max_new_tokens=24, do_sample=False)
    qkv.transformers.register(linear=True)
    assert torch.equal(model.generate(ids, max_new_tokens=24, do_sample=False), expected)


@pytest.mark.parametrize("name", ["qwen3_next", "bailing_hybrid", "bamba"])
def test_under_autocast_norms_may_leave_other_types(name: str) -> None:
    ids = torch.randint(3, 61, (2, 75), generator=torch.Generator().manual_seed(1))
    logits = []
    for model in (model_of(name, torch.float64), model_of(name), model_of(name)):
        if len(logits) == 2:
            qkv.transformers.register(linear=True)
            model.set_attn_implementation("qkv")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=len(logits) > 0):
            logits.append(model(ids, use_cache=False).logits)
    exact, naive, fast = logits
    fast.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    expect_close(fast, exact, naive, torch.bfloat16, name)


def packed(lengths: list[int]) -> dict[str, Tensor]:
    """A batch as DataCollatorWithFlattening makes it with return_flash_attn_kwargs and return_seq_idx."""
    collate = tf.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    generator = torch.Generator().manual_seed(4)
    batch = collate([{"input_ids": torch.randint(3, 61, (n,), generator=generator).tolist()} for n in lengths])
    return {key: value for key, value in batch.items() if key != "labels"}


@pytest.mark.parametrize("without", ["nothing", "seq_idx", "cu_seq_lens"])
@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in ("granitemoehybrid", "mamba")]
)  # the attention of the one is passed no position ids, the scan of the other no sequences
def test_packed_sequences_stay_apart(name: str, without: str) -> None:
    lengths = [1, 7, 64, 65]
    batch = {key: value for key, value in packed(lengths).items() if not key.startswith(without)}
    qkv.transformers.register(linear=True)
    model, wide = (model_of(name, dtype).eval().base_model for dtype in (torch.float32, torch.float64))
    with torch.no_grad():
        whole = model(**batch, use_cache=False).last_hidden_state
        begin = 0
        for n in lengths:
            ids = {"input_ids": batch["input_ids"][:, begin : begin + n]}
            # PyTorch's Linear has other bits for other numbers of rows: within the bound, not equal.
            naive, exact = (m(**ids, use_cache=False).last_hidden_state for m in (model, wide))
            expect_close(whole[:, begin : begin + n], exact, naive, torch.float32, f"{name} {n}")
            begin += n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("channels_innermost", [False, True])
def test_the_convolution_is_transformers(dtype: torch.dtype, grad: bool, channels_innermost: bool) -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as modelling

    pytorchs = modelling.causal_conv1d_fn.__wrapped__
    qkv.transformers.register(linear=True)
    x, weight, bias = numbers(1, 2, 70, 12), numbers(2, 12, 4), numbers(3, 12)
    x = x if channels_innermost else x.transpose(1, 2).contiguous().transpose(1, 2)
    arguments = [t.requires_grad_(grad) for t in (x, weight, bias)]

    def with_(function: Any) -> Any:
        return lambda x, weight, bias: function(x.transpose(1, 2), weight, bias, activation="silu")

    compare(with_(modelling.causal_conv1d_fn), with_(pytorchs), arguments, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased,before", [(True, 3), (False, 4)])
def test_a_step_of_the_convolution_is_transformers(dtype: torch.dtype, biased: bool, before: int) -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as modelling

    pytorchs = modelling.causal_conv1d_update.__wrapped__
    qkv.transformers.register(linear=True)
    x, state, weight, bias = numbers(1, 2, 12, 1), numbers(2, 2, 12, before), numbers(3, 12, 4), numbers(4, 12)

    def with_(function: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        held = state.to(dtype, copy=True)
        return function(x.to(dtype), held, weight.to(dtype), bias.to(dtype) if biased else None, activation="silu"), held

    fast, naive = with_(modelling.causal_conv1d_update, dtype), with_(pytorchs, dtype)
    assert fast[0].dtype is dtype and torch.equal(fast[1], naive[1])
    expect_close(fast[0], with_(pytorchs, torch.float64)[0], naive[0], dtype, "out")


def exact_step(s: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor, z: Any) -> Any:
    """One token of Mamba-2's recurrence, all channels with their own numbers. arXiv:2405.21060, eq. 2."""
    dt = nn.functional.softplus(dt + bias)[..., None]
    B, C = (y.repeat_interleave(x.shape[1] // y.shape[1], 1)[:, :, None] for y in (B, C))
    s = s * (dt * A).exp() + dt * x[..., None] * B
    out = (s * C).sum(-1) + D * x
    return out if z is None else out * nn.functional.silu(z), s


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(16, 32), (64, 16), (5, 7)])
@pytest.mark.parametrize("narrow,gated,per_head", [(False, False, True), (True, True, True), (False, True, False)])
def test_mamba_2s_step_is_the_recurrences(
    dtype: torch.dtype, sizes: tuple[int, int], narrow: bool, gated: bool, per_head: bool
) -> None:
    """`narrow`: a state of the model's type; without `per_head` every channel has its own dt, which is left to PyTorch's code."""
    from transformers.models.mamba2 import modeling_mamba2 as modelling

    pytorchs = modelling.mamba2_selective_state_update.__wrapped__
    qkv.transformers.register(linear=True)
    width, states = sizes
    made = [numbers(1, 2, 4, width, states), numbers(2, 2, 4, width), numbers(3, 2, 4, 1 if per_head else width)]
    made += [-numbers(4, 4, 1, 1).abs(), numbers(5, 2, 2, states), numbers(6, 2, 2, states), numbers(7, 4, 1), numbers(8, 4, 1)]
    made = [x.half().bfloat16().double() for x in made]
    z = numbers(9, 2, 4, width).bfloat16().double() if gated else None

    def with_(function: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        wide = dtype if narrow or dtype is torch.float64 else torch.float32
        state, x, dt, A, B, C, D, bias = (t.to(wide if n in (0, 3) else dtype) for n, t in enumerate(made))
        arguments = (x, dt.expand(2, 4, width), A.expand(4, width, states), B, C, D.expand(4, width))
        bias, gate = bias.expand(4, width), None if z is None else z.to(dtype)
        if function is exact_step:
            return exact_step(state, *arguments, bias, gate)
        state = state.clone()
        return function(state, *arguments, z=gate, dt_bias=bias, dt_softplus=True), state

    fast, naive = (with_(f, dtype) for f in (modelling.mamba2_selective_state_update, pytorchs))
    for f, n, exact, what in zip(fast, naive, with_(exact_step, torch.float64), ("out", "state")):
        assert f.dtype is n.dtype and f.shape == n.shape
        expect_close(f, exact, n, f.dtype, what)


@pytest.mark.parametrize(
    "model,functions",
    [
        ("qwen3_next", ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")),
        ("kimi_linear", ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")),
        ("glm5_next", ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")),
        ("mamba2", ("mamba2_chunk_scan", "mamba2_selective_state_update")),
        ("mamba", ("mamba_selective_scan",)),
    ],
)
def test_what_is_replaced_is_put_back(model: str, functions: tuple[str, ...]) -> None:
    modelling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    names = (*functions, "causal_conv1d_fn", "causal_conv1d_update")
    before = [getattr(modelling, name) for name in names]
    qkv.transformers.register()
    assert [getattr(modelling, name) for name in names] == before
    qkv.transformers.register(linear=True)
    qkv.transformers.register(linear=True)
    assert all(getattr(modelling, name) is not function for name, function in zip(names, before))
    qkv.transformers.unregister()
    assert [getattr(modelling, name) for name in names] == before
    qkv.transformers.unregister()


def test_an_export_keeps_transformers_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modelling

    calls: list[str] = []
    monkeypatch.setattr(modelling, "torch_chunk_gated_delta_rule", lambda *a, **k: calls.append("original"))
    qkv.transformers.register(linear=True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    x = torch.zeros(1, 2, 1, 4)
    modelling.torch_chunk_gated_delta_rule(x, x, x, g=x[..., 0], beta=x[..., 0])
    qkv.transformers.unregister()
    assert calls == ["original"]


def test_a_fresh_process_says_nothing_of_falling_back() -> None:
    """Registered before the modelling file is imported; without it, transformers says so once per process and function."""
    program = """
    import sys, torch, transformers as tf, qkv.transformers
    qkv.transformers.register(linear=True)
    sizes = dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=61)
    linear = dict(linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
    model = tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**sizes, **linear, intermediate_size=48))
    for _ in range(2):
        model.generate(torch.arange(3, 9)[None], max_new_tokens=3, do_sample=False)
        print("then", file=sys.stderr, flush=True)
        qkv.transformers.unregister()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    said = done.stderr.split("then")
    assert "falling back" not in said[0], said[0]
    assert "falling back" in said[1]


def test_arguments_by_position_are_the_originals() -> None:
    """Of the four functions two have chunk_size as the sixth argument, and two the state."""
    from transformers.models.qwen3_next import modeling_qwen3_next as modelling

    draw = torch.Generator().manual_seed(4)
    q, k, v = (torch.rand(1, 3, 2, 8, generator=draw) for _ in range(3))
    g, beta = -torch.rand(1, 3, 2, generator=draw), torch.rand(1, 3, 2, generator=draw)
    state = torch.rand(1, 2, 8, 8, generator=draw)
    calls = [
        lambda: modelling.torch_recurrent_gated_delta_rule(q, k, v, g, beta, state, True, True),
        lambda: modelling.torch_chunk_gated_delta_rule(q, k, v, g, beta, 64, state, True, True),
    ]
    expected = [call() for call in calls]
    qkv.transformers.register(linear=True)
    for call, theirs in zip(calls, expected):
        for ours, original in zip(call(), theirs):
            torch.testing.assert_close(ours, original)
    two = [x.repeat(2, 1, 1, 1) for x in (q, k, v)]
    with pytest.raises(ValueError, match=r"packed sequences \(cu_seq_lens_q\) lie in one row, B = 1.*with 2 rows"):
        modelling.torch_chunk_gated_delta_rule(
            *two, *(x.repeat(2, 1, 1) for x in (g, beta)), cu_seq_lens_q=torch.tensor([0, 1, 3])
        )
    with pytest.raises(TypeError, match="use_gate_in_kernel is not computed here"):
        modelling.torch_chunk_gated_delta_rule(q, k, v, g, beta, use_gate_in_kernel=True)

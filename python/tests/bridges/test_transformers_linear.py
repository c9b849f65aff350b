"""qkv.transformers.register(linear=True): logits, gradients and generated text of small random hybrid models against the same models
in float64 and against transformers' own functions; packed sequences; what is replaced and put back.
"""

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import qkv.transformers
from qkv.transformers._linear import BESIDE, REPLACEMENTS
from support_hybrid import MODELS, model_of, run, tf
from support_torch import everything_in, expect_all, expect_close
from torch import Tensor


@pytest.fixture(autouse=True)
def taken_out() -> Iterator[None]:
    yield
    qkv.transformers.unregister()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_within_three_times_pytorchs_error(name: str, dtype: torch.dtype) -> None:
    ids = torch.randint(3, 61, (2, 75), generator=torch.Generator().manual_seed(1))
    naive = run(model_of(name, dtype), ids)
    model = model_of(name, dtype)
    qkv.transformers.register(linear=True)  # after the model was built
    fast = run(model, ids)
    qkv.transformers.unregister()
    truth = model_of(name, torch.float64)
    with everything_in(torch.float64):
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
    "name", [name for name in MODELS if name not in ("granitemoehybrid", "mamba", "jamba")]
)  # the attention of the first is passed no position ids, the scan of the others no sequences
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


@pytest.mark.parametrize("model", ["qwen3_next", "kimi_linear", "glm5_next", "mamba2", "mamba"])
def test_what_is_replaced_is_put_back(model: str) -> None:
    modelling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    names = [name for name in REPLACEMENTS | BESIDE if hasattr(modelling, name)]
    assert len(names) >= 4
    before = [getattr(modelling, name) for name in names]
    qkv.transformers.register()
    assert [getattr(modelling, name) for name in names] == before
    qkv.transformers.register(linear=True)
    qkv.transformers.register(linear=True)
    assert all(getattr(modelling, name) is not function for name, function in zip(names, before))
    qkv.transformers.unregister()
    assert [getattr(modelling, name) for name in names] == before
    qkv.transformers.unregister()


def test_a_models_own_file_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trust_remote_code, loaded after register() and once more in another version."""
    dynamic = importlib.import_module("transformers.dynamic_module_utils")
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "transformers_modules" / "own" / "modeling_own.py"
    file.parent.mkdir(parents=True)
    file.write_text("def torch_chunk_gated_delta_rule(query=0, key=0, value=0, g=0, beta=0):\n    return 1\n\n\nclass Own:\n    pass\n")
    qkv.transformers.register(linear=True)
    for _ in range(2):
        dynamic.get_class_in_module("Own", "transformers_modules/own/modeling_own.py", force_reload=True)
        module = sys.modules["transformers_modules.own.modeling_own"]
        assert module.torch_chunk_gated_delta_rule.__wrapped__() == 1
    qkv.transformers.unregister()
    assert not hasattr(module.torch_chunk_gated_delta_rule, "__wrapped__")
    assert not hasattr(dynamic.get_class_in_module, "__wrapped__")


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
    from transformers.models.mamba2 import modeling_mamba2 as mamba

    with pytest.raises(ValueError, match="cu_seq_lens_q"):  # one token stands behind the last sequence
        mamba.mamba2_chunk_scan(v, g, g[0, 0], k, q, 64, cu_seq_lens_q=torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match="use_gate_in_kernel is not computed here"):
        modelling.torch_chunk_gated_delta_rule(q, k, v, g, beta, use_gate_in_kernel=True)

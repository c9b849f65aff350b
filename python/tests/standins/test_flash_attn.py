"""qkv.standins: names that are found, undone and refused; flash_attn's functions against PyTorch's attention, and in models of
transformers. Its own tests: tests/peers/run.py."""

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import qkv
import qkv.standins
from support_torch import compare, leaf, numbers, theirs

if qkv.standins.install("flash_attn", quiet=True) != ["flash_attn"]:
    pytest.skip("the real flash_attn is installed", allow_module_level=True)
import flash_attn
from flash_attn import bert_padding
from flash_attn.layers import rotary
from flash_attn.ops.triton import layer_norm

qkv.standins.uninstall()


@pytest.fixture
def installed() -> Iterator[None]:
    qkv.standins.install("flash_attn", quiet=True)
    yield
    qkv.standins.uninstall()


def dense(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """PyTorch's on [B, T, H, D]."""
    return theirs(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **options).transpose(1, 2)


def lower(q_len: int, kv_len: int, left: int = 99) -> Any:
    """What a causal query may attend, aligned at the bottom right."""
    distance = torch.arange(q_len)[:, None] + kv_len - q_len - torch.arange(kv_len)
    return (distance >= 0) & (distance <= left)


def test_names_are_those_of_an_installed_package(installed: None, capsys: Any) -> None:
    assert qkv.standins.install() and "flash_attn" not in capsys.readouterr().err  # once
    import flash_attn as found

    assert found.__version__ == importlib.metadata.version("flash-attn") == importlib.metadata.version("flash_attn")
    assert "qkv" in found.__doc__ and importlib.metadata.packages_distributions()["flash_attn"] == ["flash-attn"]
    with pytest.raises(ModuleNotFoundError, match=r"flash_attn\.modules is not computed here.*needs the real flash-attn"):
        __import__("flash_attn.modules.mha")
    with pytest.raises(ValueError, match="there are stand-ins for flash_attn.*got 'torch'"):
        qkv.standins.install("torch")
    qkv.standins.uninstall()
    assert "flash_attn" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        __import__("flash_attn")


def test_a_package_that_is_there_is_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "flash_attn.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "flash_attn" not in qkv.standins.install("flash_attn", quiet=True)
    import flash_attn as found

    assert found.real
    del sys.modules["flash_attn"]


POOL = """
import multiprocessing, sys, torch, flash_attn
def shape(n):
    q = torch.zeros(1, n, 2, 8)
    return flash_attn.flash_attn_func(q, q, q).shape
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map_async(shape, [4]).get(timeout=60))
"""


def test_scripts_run_with_their_options(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    (tmp_path / "it.py").write_text("import sys, beside\nfrom flash_attn import flash_attn_func\nprint(__name__, beside.name, sys.argv[1:])\n")
    done = subprocess.run([sys.executable, "-m", "qkv.standins", "it.py", "--its", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "__main__ beside ['--its', '1']\n" and done.stderr.count("is qkv, not the package") == 1
    (tmp_path / "pool.py").write_text(POOL)
    for way in ("spawn", "forkserver"):
        done = subprocess.run([sys.executable, "-m", "qkv.standins", "pool.py", way], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.stdout == "[torch.Size([1, 4, 2, 8])]\n", done.stderr
    missing = subprocess.run([sys.executable, "-m", "qkv.standins", "other.py"], cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 1 and missing.stderr == "python -m qkv.standins: there is no file other.py\n"


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_functions_are_attention(dtype: Any) -> None:
    q, k, v = leaf(1, 2, 5, 4, 8), leaf(2, 2, 7, 2, 8), leaf(3, 2, 7, 2, 8)
    compare(flash_attn.flash_attn_func, dense, (q, k, v), dtype)
    causal = lambda *x: flash_attn.flash_attn_func(*x, causal=True, window_size=(3, 0), softmax_scale=0.3)
    compare(causal, lambda *x: dense(*x, attn_mask=lower(5, 7, 3), scale=0.3), (q, k, v), dtype)
    compare(lambda q, kv: flash_attn.flash_attn_kvpacked_func(q, kv), lambda q, kv: dense(q, *kv.unbind(2)), (q, leaf(4, 2, 7, 2, 2, 8)), dtype)
    compare(flash_attn.flash_attn_qkvpacked_func, lambda x: dense(*x.unbind(2)), (leaf(5, 2, 5, 3, 2, 8),), dtype)
    cu = torch.tensor([0, 5, 10]), torch.tensor([0, 7, 14])
    packed = lambda q, k, v: flash_attn.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *cu, 5, 7).unflatten(0, (2, 5))
    compare(packed, dense, (q, k, v), dtype)


def test_dropout_returns_its_mask_and_lse() -> None:
    q, k, v = (numbers(n, 2, 6, 2, 8, dtype=torch.float32) for n in range(3))
    slopes = torch.tensor([[0.5, 0.25], [0.125, 1.0]])
    out, lse, kept = flash_attn.flash_attn_func(q, k, v, 0.3, alibi_slopes=slopes, softcap=3.0, return_attn_probs=True)
    weights = kept.abs()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 6))
    torch.testing.assert_close(torch.einsum("bhij,bjhd->bihd", kept.clamp(min=0) / 0.7, v), out, rtol=1e-4, atol=1e-5)
    plain, lse_alone, none = flash_attn.flash_attn_func(q, k, v, alibi_slopes=slopes, softcap=3.0, return_attn_probs=True)
    assert none is None and torch.equal(lse, lse_alone) and not torch.equal(out, plain)
    flat = flash_attn.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), torch.tensor([0, 6, 12]), torch.tensor([0, 6, 12]), 6, 6,
                                             alibi_slopes=slopes, softcap=3.0)  # fmt: skip
    assert torch.equal(flat, plain.flatten(0, 1))


@pytest.mark.parametrize("paged", (False, True))
def test_caches_are_appended_to_and_read(paged: bool) -> None:
    """Rotary positions inside; the cache's rows in another order than the batch's; against the whole sequence at once."""
    lengths, total, page = torch.tensor([5, 2]), 8, 4
    q, k, v = (numbers(n, 2, total, 2, 8, dtype=torch.float32) for n in range(3))
    angles = torch.outer(torch.arange(total), torch.tensor([1.0, 0.1, 0.01]))
    cos, sin = angles.cos(), angles.sin()
    turned = [rotary.apply_rotary_emb(x, cos, sin, interleaved=True) for x in (q, k)]
    table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    caches = [torch.zeros(4, page, 2, 8) if paged else torch.zeros(3, total, 2, 8) for _ in range(2)]
    for cache, rows in zip(caches, (turned[1], v)):
        for b, n in enumerate(lengths.tolist()):
            for t in range(n):
                where = (int(table[b, t // page]), t % page) if paged else (2 - b, t)
                cache[where] = rows[b, t]
    step = lambda x: torch.stack([x[b, n : n + 2] for b, n in enumerate(lengths.tolist())])
    given = {"block_table": table} if paged else {"cache_batch_idx": torch.tensor([2, 1])}
    out, lse = flash_attn.flash_attn_with_kvcache(
        step(q), *caches, step(k), step(v), cos, sin, cache_seqlens=lengths.int(), causal=True, return_softmax_lse=True, **given
    )
    for b, n in enumerate(lengths.tolist()):
        whole = dense(turned[0][b : b + 1, : n + 2], turned[1][b : b + 1, : n + 2], v[b : b + 1, : n + 2], is_causal=True)
        torch.testing.assert_close(out[b], whole[0, n:])
    assert lse.shape == (2, 2, 2)
    if not paged:
        left = flash_attn.flash_attn_with_kvcache(step(q), *caches, cache_seqlens=7, cache_leftpad=torch.tensor([1, 3]), **given)
        torch.testing.assert_close(left[1:], dense(step(q)[1:], caches[0][1:2, 3:7], caches[1][1:2, 3:7]))
    with pytest.raises(RuntimeError, match=f"must fit the {'block_table' if paged else 'cache'} of 8"):
        flash_attn.flash_attn_with_kvcache(step(q), *caches, step(k), step(v), cache_seqlens=7, **given)


def new_key(**changed: Any) -> dict[str, Any]:
    """A step of one token on a cache of two sequences of 8."""
    q, cache = numbers(1, 2, 1, 4, 8, dtype=torch.float32), numbers(2, 2, 8, 2, 8, dtype=torch.float32)
    given = {"q": q, "k_cache": cache, "v_cache": cache.clone(), "k": q[:, :, :2], "v": q[:, :, :2], "cache_seqlens": 5}
    return given | changed


TABLES = torch.zeros(4, 4)
REFUSED = {
    r"k must be \[B, new, Hkv, D\] = \[2, 1, 2, 8\]": {"k": torch.zeros(2, 1, 1, 8)},
    "v must be": {"v": torch.zeros(1, 1, 2, 8)},
    "cache_seqlens must be given": {"cache_seqlens": None},
    "exclude each other": {"cache_batch_idx": torch.tensor([0, 1]), "block_table": torch.zeros(2, 1, dtype=torch.int32)},
    "block_table must name one of 2 rows": {"block_table": torch.tensor([[0], [-1]], dtype=torch.int32)},
    "must have one type|the same type|float": {"q": torch.zeros(2, 1, 4, 8, dtype=torch.float64)},
    "alibi_slopes must be": {"alibi_slopes": torch.zeros(3)},
    "each of 6 positions": {"rotary_cos": TABLES, "rotary_sin": TABLES},
    "each of 8 positions": {"rotary_cos": torch.zeros(7, 4), "rotary_sin": torch.zeros(7, 4), "causal": True, "q": torch.zeros(2, 3, 4, 8)},
    "cache_batch_idx must name one of 2 rows": {"cache_batch_idx": torch.tensor([-1, 0]), "cache_leftpad": torch.tensor([0, 1])},
    "cache_seqlens must hold integers": {"cache_seqlens": torch.tensor([5.9, 5])},
    "must fit the cache of 8": {"cache_seqlens": torch.tensor([-1, 5])},
    "cache_batch_idx must hold integers": {"cache_batch_idx": torch.tensor([True, False])},
    "block_table must hold integers": {"block_table": torch.tensor([[0.0], [1.0]])},
    "one element type.*v float16": {"v": torch.zeros(2, 1, 2, 8).half()},
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_cache_is_as_it_was_where_a_call_is_refused(text: str) -> None:
    given = new_key(**REFUSED[text])
    before = [given[name].clone() for name in ("k_cache", "v_cache")]
    with pytest.raises((ValueError, TypeError, NotImplementedError, RuntimeError), match=text):
        flash_attn.flash_attn_with_kvcache(**given)
    assert torch.equal(given["k_cache"], before[0]) and torch.equal(given["v_cache"], before[1])
    flash_attn.flash_attn_with_kvcache(**new_key())


def test_keys_of_another_batch_are_refused() -> None:
    q, k = numbers(1, 2, 6, 4, 8), numbers(2, 4, 3, 4, 8)
    with pytest.raises(ValueError, match=r"k must be \[B, Tk, Hkv, D\] = \[2, Tk, Hkv, 8\]"):
        flash_attn.flash_attn_func(q, k, k)


def test_rotary_tables_cover_the_positions() -> None:
    cos, sin, x = torch.zeros(4, 4), torch.ones(4, 4), numbers(1, 1, 4, 2, 8)
    rotary.apply_rotary_emb(x, cos, sin)
    for given in ({"x": numbers(1, 1, 8, 2, 8)}, {"x": x, "seqlen_offsets": 1}, {"x": numbers(1, 7, 2, 8), "cu_seqlens": torch.tensor([0, 2, 7])}):
        with pytest.raises(ValueError, match="cos and sin must have a row for each position: got 4"):
            rotary.apply_rotary_emb(**given, cos=cos, sin=sin)
    x = numbers(1, 7, 2, 8)
    assert torch.equal(rotary.apply_rotary_emb(x, cos, sin, inplace=True, cu_seqlens=torch.tensor([0, 2, 5]))[5:], numbers(1, 7, 2, 8)[5:])
    for cu in ([1, 3, 7], [0, 3, 9], [0, 4, 3]):
        with pytest.raises(ValueError, match=r"\[apply_rotary_emb\] cu_seqlens must start with 0, not decrease and end at no more than 7"):
            rotary.apply_rotary_emb(x, cos, sin, cu_seqlens=torch.tensor(cu))
    for given, text in (
        ({"cu_seqlens": torch.tensor([0.0, 3, 7])}, "cu_seqlens must hold integers"), ({"sin": sin[:3]}, "sin must be"),
        ({"cos": cos[:, :3]}, "sin must be"), ({"cos": cos[0]}, "cos must be"), ({"x": x[..., :6]}, "half as many numbers"),
        ({"seqlen_offsets": torch.tensor([0])}, "seqlen_offsets must be"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=text):
            rotary.apply_rotary_emb(**{"x": x, "cos": cos, "sin": sin, "cu_seqlens": torch.tensor([0, 3, 7]), **given})
    with pytest.raises(ValueError, match="each position"):
        rotary.RotaryEmbedding(8)(numbers(1, 1, 5, 3, 2, 8), max_seqlen=3)


def test_rotary_in_place_of_a_leaf_changes_its_memory_and_gives_the_graph() -> None:
    cos, sin = numbers(1, 3, 2), numbers(2, 3, 2)
    for change, x in ((rotary.apply_rotary_emb_kv_, leaf(3, 1, 3, 2, 2, 6)), (rotary.apply_rotary_emb_qkv_, leaf(4, 1, 3, 3, 2, 6))):
        parts = [rotary.apply_rotary_emb(y, cos, sin) if n < x.shape[2] - 1 else y for n, y in enumerate(x.detach().clone().unbind(2))]
        out = change(x, cos, sin)
        assert torch.equal(out, torch.stack(parts, 2)) and torch.equal(out, x)
        (back,) = torch.autograd.grad(out, x, out.detach())
        assert torch.equal(back[:, :, -1], parts[-1])
        torch.testing.assert_close(back[:, :, 0], rotary.apply_rotary_emb(parts[0], cos, -sin))


def test_padding_is_taken_out_and_put_back() -> None:
    x, mask = numbers(1, 2, 4, 3), torch.tensor([[1, 0, 1, 1], [1, 0, 0, 0]])
    tokens, places, cu, longest, used = bert_padding.unpad_input(x, mask)
    assert places.tolist() == [0, 2, 3, 4] and cu.tolist() == [0, 3, 4] and longest == 3 and used.tolist() == [3, 1]
    assert torch.equal(bert_padding.pad_input(tokens, places, 2, 4), x * mask[..., None])
    for unpad in (bert_padding.unpad_input, bert_padding.unpad_input_for_concatenated_sequences):  # a batch of none
        tokens, places, cu, longest, *_ = unpad(x[:0], mask[:0])
        assert tokens.shape == (0, 3) and cu.tolist() == [0] and longest == 0
    assert bert_padding.unpad_input_for_concatenated_sequences(x, torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0]]))[2].tolist() == [0, 2, 3, 7]


def test_norms() -> None:
    x, w, b, residual = leaf(1, 3, 8), leaf(2, 8), leaf(3, 8), leaf(4, 3, 8)
    norm = torch.nn.functional.layer_norm
    compare(lambda *a: layer_norm.layer_norm_fn(*a, prenorm=True), lambda x, w, b, r: (norm(x + r, (8,), w, b, 1e-6), x + r), (x, w, b, residual))
    rms = lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w
    compare(lambda x, w: layer_norm.rms_norm_fn(x, w, None), rms, (x, w))
    for given, text in (
        ({"out": x}, "out is not computed"), ({"residual": residual[:1]}, "residual must be"), ({"bias1": b}, "bias1 without weight1 is not computed"),
        ({"dropout_p": 1.0}, "dropout_p must be"), ({"dropout_p": -0.5}, "dropout_p must be"), ({"x": torch.ones(3, 8).long()}, "x must hold real"),
        ({"rowscale": w[:1]}, "rowscale must be"), ({"weight": w[:1]}, "weight must be"),
    ):  # fmt: skip
        with pytest.raises((NotImplementedError, ValueError, TypeError), match=f"layer_norm_fn.*{text}"):
            layer_norm.layer_norm_fn(**{"x": x, "weight": w, "bias": b, **given})


def test_rms_norms_have_their_packages_arguments() -> None:
    mamba = importlib.import_module("qkv.standins.mamba_ssm").MODULES["mamba_ssm.ops.triton.layer_norm"]
    plain = importlib.import_module("qkv.standins.flash_attn").MODULES["flash_attn.ops.rms_norm"]["RMSNorm"]
    x, w = numbers(1, 3, 8), numbers(2, 8)
    for made in (plain(8, 1e-5, None, torch.float64), mamba["RMSNorm"](8, 1e-5, 0.0, None, torch.float64)):
        assert made.weight.dtype is torch.float64 and bool((made.weight == 1).all())
        torch.testing.assert_close(made(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-5))
        made.weight.data.zero_()
        made.reset_parameters()
        assert bool((made.weight == 1).all())
    centered = layer_norm.RMSNorm(8, 1e-5, 0.0, True)
    centered.weight.data.fill_(3)
    centered.reset_parameters()
    assert not centered.weight.any()
    # The 13th argument is is_rms_norm in mamba_ssm, zero_centered_weight in flash_attn.
    rest = (None, None, None, None, None, 1e-6, 0.0, None, False, False)
    wanted = torch.nn.functional.rms_norm(x, (8,), w, 1e-6)
    torch.testing.assert_close(mamba["layer_norm_fn"](x, w, *rest, True), wanted)
    torch.testing.assert_close(mamba["rms_norm_fn"](x, w, *rest, True)[0], wanted)  # and no mask of dropout
    torch.testing.assert_close(layer_norm.rms_norm_fn(x, w - 1, *rest, True, True)[0], wanted)


def test_rotary_frequencies_of_sixteen_bits_are_not_rounded() -> None:
    layer = rotary.RotaryEmbedding(16)
    qkv_rows = numbers(1, 1, 4, 3, 2, 16).to(torch.bfloat16)
    wanted = layer(qkv_rows.clone(), seqlen_offset=4000)
    assert torch.equal(layer.to(torch.bfloat16)(qkv_rows.clone(), seqlen_offset=4000), wanted)


def test_other_devices_are_refused() -> None:
    q = torch.randn(1, 2, 2, 8, device="meta")
    with pytest.raises(NotImplementedError, match="computes on the CPU: got q on meta; install the real flash_attn"):
        flash_attn.flash_attn_func(q, q, q)


@pytest.mark.parametrize("name", ("llama", "mistral", "gemma2", "bert", "modernbert"))
def test_models_with_flash_attention_2(name: str, installed: None) -> None:
    support = pytest.importorskip("support_transformers")
    inputs = support.inputs_of(name, "left")
    kept = inputs["attention_mask"].bool()
    made, gradients, texts = [], [], []
    for way in ("eager", "flash_attention_2"):
        model = support.model_of(name)
        model.set_attn_implementation(way)
        out = model(**inputs)[0][kept]
        out.square().sum().backward()
        made.append(out.detach())
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
        if "bert" not in name:
            texts.append(model.generate(**inputs, max_new_tokens=5, do_sample=False))
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-4)
    assert not texts or torch.equal(*texts)
    size = max(float(x.abs().max()) for x in gradients[0].values())
    for key, x in gradients[0].items():
        assert float((x - gradients[1][key]).abs().max()) < 1e-4 * size, key


def test_transformers_answers_are_its_own_afterwards() -> None:
    """Installed between transformers and the module of it that asks, which then imports the answers."""
    pytest.importorskip("transformers")
    program = """
import transformers.utils.import_utils as asked
from qkv import standins
assert "transformers.modeling_flash_attention_utils" not in __import__("sys").modules
standins.install("flash_attn", quiet=True)
import transformers.modeling_flash_attention_utils as module
names = "is_flash_attn_2_available", "is_flash_attn_greater_or_equal"
table = module.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
assert module.is_flash_attn_2_available() and table["general_availability_check"]()
assert asked.is_flash_attn_greater_or_equal("2.8.3") and not asked.is_flash_attn_greater_or_equal("2.8.4")
standins.uninstall()
assert not module.is_flash_attn_2_available() and not asked.is_flash_attn_2_available() and not table["general_availability_check"]()
assert not asked.is_flash_attn_greater_or_equal("2.1.0") and len(table["supported_devices"]) > 1
standins.install("flash_attn", quiet=True)
assert module.is_flash_attn_2_available()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_remote_code_that_imports_it_at_its_top(tmp_path: Path, installed: None, monkeypatch: Any) -> None:
    """transformers reads the imports of a model's own file, and refuses what is not installed."""
    tf = pytest.importorskip("support_transformers").tf
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "modeling_own.py").write_text(
        "from flash_attn import flash_attn_func\nfrom flash_attn.bert_padding import unpad_input\nfrom transformers import BertModel\n\n\n"
        "class OwnModel(BertModel):\n    attend = staticmethod(flash_attn_func)\n"
    )
    config = tf.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=61)
    tf.BertModel(config).save_pretrained(tmp_path)
    config.auto_map = {"AutoModel": "modeling_own.OwnModel"}
    config.save_pretrained(tmp_path)
    load = lambda: tf.AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    assert load().attend.__module__ == "qkv.standins.flash_attn"
    qkv.standins.uninstall()
    with pytest.raises(ImportError, match="flash_attn"):
        load()


def test_subclasses_of_rotary_embedding_scale_it() -> None:
    class Slower(rotary.RotaryEmbedding):
        def _compute_inv_freq(self, device: Any = None) -> Any:
            return super()._compute_inv_freq(device) / 8

    class Shifted(rotary.RotaryEmbedding):
        def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
            super()._update_cos_sin_cache(seqlen + 1, device, dtype)
            self._cos_cached, self._sin_cached = self._cos_cached[1:], self._sin_cached[1:]

    x, plain = numbers(1, 2, 5, 3, 2, 8), rotary.RotaryEmbedding(8)
    assert torch.equal(Shifted(8)(x.clone()), plain(x.clone(), seqlen_offset=1))
    slower = rotary.RotaryEmbedding(8)
    slower.inv_freq /= 8
    assert torch.equal(Slower(8)(x.clone()), slower(x.clone())) and not torch.equal(slower(x.clone()), plain(x.clone()))
    plain._update_cos_sin_cache(7, dtype=torch.float64)
    assert plain._cos_cached.shape == plain._sin_cached.shape == (7, 4)


def test_a_probe_for_a_module_that_is_not_there_finds_none(installed: None) -> None:
    assert importlib.util.find_spec("flash_attn.modules") is None
    with pytest.raises(ModuleNotFoundError, match="flash_attn.modules is not computed here"):
        importlib.import_module("flash_attn.modules")


def test_a_refused_call_leaves_the_caches(installed: None) -> None:
    q, new, cache = numbers(1, 2, 1, 1, 8), numbers(2, 2, 1, 1, 8), numbers(3, 4, 4, 1, 8)
    pages = {"block_table": torch.tensor([[0, 1], [2, 3]]), "cache_seqlens": torch.tensor([4, 4])}
    rows = {"cache_batch_idx": torch.tensor([0, 1]), "cache_seqlens": torch.tensor([2, 2])}
    refused = (
        pages | {"block_table": torch.tensor([[77, 1], [2, 3]])}, pages | {"softmax_scale": float("nan")}, rows | {"softcap": float("inf")},
        rows | {"cache_leftpad": torch.tensor([9, 0])}, rows | {"alibi_slopes": torch.tensor([float("nan")])}, rows | {"v": new + 0j},
    )  # fmt: skip
    for given in refused:
        keys, values = cache.clone(), cache.clone()
        with pytest.raises((ValueError, TypeError, RuntimeError, qkv.Error)):
            flash_attn.flash_attn_with_kvcache(q, keys, values, new, **{"v": new, **given})
        assert torch.equal(keys, cache) and torch.equal(values, cache)
    flash_attn.flash_attn_with_kvcache(q, keys, values, new, new, **rows)
    assert torch.equal(keys[:2, 2], new[:, 0])

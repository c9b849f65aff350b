"""A capture of real architectures holds what their eager attention gives: maps by blocks, every weight of short texts. Bounds: error <= 2
error(eager, float32) + 4 eps A, against eager in float64; A is the weight with room for the rounding of its scores (support.py). Pages in
Chromium open without a complaint and compute those weights from q, k and lse."""

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("support_transformers")
import qkv
import qkv.torch
import qkv.transformers
from explored_models import IMAGES, MODELS, PATCHES, T, eager_weights, inputs_of, model_of
from qkv._explore.layer import Layer, block_means, decoded
from support import run_program
from support_explorer import Browser, tile
from support_transformers import tf, torch

TEXTS = [name for name in MODELS if name not in IMAGES and name not in ("t5", "whisper")]
EPSILON = float(np.finfo(np.float32).eps)


def part_of(layer: Layer) -> str:
    return "cross" if layer.cross else "decoder" if layer.name.startswith("decoder") else "self"


def by_part(layers: list[Layer]) -> dict[str, list[Layer]]:
    made: dict[str, list[Layer]] = {}
    for layer in layers:
        made.setdefault(part_of(layer), []).append(layer)
    return made


def blocks(weights: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Sums over blocks [..., rows, columns]."""
    q_len, kv_len = weights.shape[-2:]
    row, column = np.eye(rows)[np.arange(q_len) * rows // q_len], np.eye(columns)[np.arange(kv_len) * columns // kv_len]
    return row.T @ weights @ column


def room(layer: Layer, weights: np.ndarray) -> np.ndarray:
    """A of weights [B, H, Tq, Tk], of a layer that was captured with every head exact."""
    held, group = layer.exact, layer.num_heads // layer.num_kv_heads
    q, k = held.q.astype(np.float64), np.repeat(held.k.astype(np.float64), group, 1)
    size = (1 + q.shape[-1] ** 0.5 / 4) * abs(layer.pages[0][0]["scale"]) * (abs(q) @ abs(k).swapaxes(-1, -2))
    for b, (_, tensors) in enumerate(layer.pages):
        if "bias" in tensors:
            size[b] += np.where(np.isfinite(tensors["bias"]), abs(tensors["bias"]), 0)
    return weights * (1 + (size + (weights * size).sum(-1, keepdims=True)) / 4)


def expect_within(got: np.ndarray, exact: np.ndarray, naive: np.ndarray, a: np.ndarray, what: str, more: float = 0.0) -> None:
    """more: of the bound, beside it."""
    bound = 2 * abs(naive - exact).max() + 4 * EPSILON * a + more
    error = abs(got - exact)
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), f"{what}{list(map(int, worst))}: error {error[worst]:.3g} > bound {bound[worst]:.3g}"


ALL = [(layer, head) for layer in range(6) for head in range(4)]


def every_head(name: str) -> list[tuple[int, int]]:
    return ALL if name in ("t5", "whisper") else ALL[:8]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_maps_and_exact_weights_are_eagers(name: str, padded: bool) -> None:
    if padded and name not in TEXTS:
        pytest.skip("texts only have padding")
    inputs = inputs_of(name, padded=padded)
    exact, naive = eager_weights(name, inputs), eager_weights(name, inputs, torch.float32)
    maps = qkv.transformers.capture_attention(model_of(name), inputs, exact=every_head(name))
    coarse = qkv.transformers.capture_attention(model_of(name), inputs, capture=qkv.Capture(map=(4, 3)))
    assert {part: len(layers) for part, layers in by_part(maps.layers).items()} == {part: len(w) for part, w in exact.items()}
    for part, layers in by_part(maps.layers).items():
        for n, layer in enumerate(layers):
            true, rough = exact[part][n], naive[part][n]
            what, a = f"{name} {part} {n}", room(layer, true)
            expect_within(coarse[layer.index].map, *(blocks(x, 4, 3) for x in (true, rough, a)), f"{what} map of 4 x 3")
            expect_within(maps[layer.index].map, true, rough, a, f"{what} map")
            expect_within(decoded(layer.weights), true, rough, a, f"{what} bytes", layer.weights_error)
            held = layer.exact
            assert held.heads == (0, 1, 2, 3)
            assert all("refused" not in formula for formula, _ in layer.pages)


@pytest.mark.parametrize("name", ["bert", "llama", "gemma3", "vit", "t5"])
def test_any_torch_model_is_captured(name: str) -> None:
    """qkv.torch.capture sees transformers' own calls of scaled_dot_product_attention."""
    inputs = inputs_of(name)
    exact, naive = eager_weights(name, inputs), eager_weights(name, inputs, torch.float32)
    model = model_of(name)
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), qkv.torch.capture(exact=every_head(name)) as maps:
        model(**inputs)
    assert not maps.skipped and len(maps) == sum(len(layers) for layers in exact.values())
    for part, layers in by_part(maps.layers).items():
        for n, layer in enumerate(layers):
            true = exact[part][n]
            expect_within(layer.captured.map, true, naive[part][n], room(layer, true), f"{name} {part} {n}")


@pytest.mark.parametrize(("name", "before"), [("deit", 2), ("siglip", 0)])
def test_patches_lie_behind_what_a_model_puts_before_them(name: str, before: int) -> None:
    maps = qkv.transformers.capture_attention(model_of(name), inputs_of(name))
    layer = maps.layers[0]
    assert maps.runs[0].image == (before, 3, 3) and layer.q_len == before + PATCHES
    assert layer.kinds and (before > 0 or all(kind.first == 0 for kind in layer.kinds))


@pytest.mark.parametrize("name", list(MODELS))
def test_the_page_and_its_file(name: str, tmp_path: Path) -> None:
    """Every architecture's file is one that qkv makes a page of; its texts and views are those of the model."""
    maps = qkv.transformers.capture_attention(model_of(name), inputs_of(name), exact=[(1, 2)])
    maps.save(tmp_path / "maps.safetensors")
    maps.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>".upper()[:2])
    file = qkv.io.load_safetensors(tmp_path / "maps.safetensors")
    made = json.loads(file.metadata["explorer"])
    crossing = name in ("t5", "whisper")
    assert len(made["views"]) == (6 if crossing else 2)  # of two sequences
    assert [view["kind"] for view in made["views"][:3]] == (["self", "self", "cross"] if crossing else ["self", "self"])
    if name in IMAGES:
        assert made["texts"][0]["image"] == {"start": IMAGES[name], "height": 3, "width": 3}
        assert made["texts"][0]["length"] == IMAGES[name] + PATCHES
    elif name in TEXTS:
        assert made["texts"][0]["tokens"] == [str(int(n)) for n in inputs_of(name)["input_ids"][0]]
    for view in made["views"]:
        for n, layer in enumerate(view["layers"]):
            assert len(layer["head_info"]) == layer["heads"] and all("kind" in info for info in layer["head_info"])
            assert file[f"{made['views'].index(view)}/{n}/weights"].shape == (layer["heads"], layer["q_len"], layer["kv_len"])


# Caches and generation.


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3"])
def test_what_is_generated_is_captured(name: str, padded: bool) -> None:
    model, inputs = model_of(name), inputs_of(name, padded=padded)
    model.generation_config.eos_token_id = None
    generate = {"max_new_tokens": 5, "do_sample": False}
    maps = qkv.transformers.capture_attention(model, inputs, generate=generate, exact=ALL[:8])
    read = torch.from_numpy(maps.runs[0].ids[""])
    assert read.shape == (2, T + 4) and torch.equal(read[:, :T], inputs["input_ids"])
    assert torch.equal(maps.outputs.logits[:, T - 1 : -1].argmax(-1), read[:, T:])
    whole, live = {"input_ids": read}, np.ones((2, T + 4), bool)
    if padded:
        whole["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones(2, 4, dtype=torch.long)], 1)
        whole["position_ids"] = (whole["attention_mask"].cumsum(1) - 1).clamp(min=0)  # as generate() counts them
        live = whole["attention_mask"].bool().numpy()
    exact, naive = eager_weights(name, whole)["self"], eager_weights(name, whole, torch.float32)["self"]
    for layer, true, rough in zip(maps.layers, exact, naive, strict=True):
        for b, a in enumerate(room(layer, true)):
            expect_within(*(x[b][:, live[b]] for x in (layer.captured.map, true, rough)), a[:, live[b]], f"{name} {layer.index}")
    made, _ = maps._made()
    assert made["texts"][0]["answer"] == T and len(made["texts"][0]["tokens"]) == T + 4


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_what_an_encoder_decoder_generates_is_captured(name: str) -> None:
    torch.manual_seed(0)
    config, inputs = model_of(name).config, inputs_of(name)
    del inputs["decoder_input_ids"]
    kind = tf.T5ForConditionalGeneration if name == "t5" else tf.WhisperForConditionalGeneration
    model = kind(config).eval()
    model.generation_config.eos_token_id = None
    maps = qkv.transformers.capture_attention(model, inputs, generate={"max_new_tokens": 5, "do_sample": False})
    made, _ = maps._made()
    assert [view["kind"] for view in made["views"]] == ["self", "self", "cross"] * 2
    text = made["texts"][1]
    assert text["answer"] == 1 and len(text["tokens"]) == 5 and text["tokens"][0] == str(config.decoder_start_token_id)
    assert maps.outputs.logits.shape[:2] == (2, 5)


@pytest.mark.parametrize("how", ["position_ids", "cu_seq_lens"])
def test_packed_sequences(how: str) -> None:
    """A ragged batch, as DataCollatorWithFlattening packs it: each sequence's weights are those that it has alone."""
    lengths, ids = (9, 14), inputs_of("llama")["input_ids"][:1]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    if how == "cu_seq_lens":
        cu = torch.tensor([0, lengths[0], T], dtype=torch.int32)
        inputs |= {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 14, "max_length_k": 14}
    maps = qkv.transformers.capture_attention(model_of("llama"), inputs, exact=ALL[:8])
    for first, behind in ((0, lengths[0]), (lengths[0], T)):
        alone = {"input_ids": ids[:, first:behind]}
        exact, naive = (eager_weights("llama", alone, dtype)["self"] for dtype in (torch.float64, torch.float32))
        for n, layer in enumerate(maps.layers):
            whole = [np.zeros((1, 4, T, T)) for _ in range(2)]
            for x, weights in zip(whole, (exact, naive)):
                x[:, :, first:behind, first:behind] = weights[n]
            parts = (x[:, :, first:behind] for x in (layer.captured.map, *whole, room(layer, whole[0])))
            expect_within(*parts, f"layer {n}, from {first}")
            assert "intervals" in layer.pages[0][1] and "bias" not in layer.pages[0][1]
    # The first key of either sequence is set apart, not the first of the row of tokens.
    alone_too = [eager_weights("llama", {"input_ids": ids[:, a:b]})["self"][0] for a, b in ((0, lengths[0]), (lengths[0], T))]
    apart = np.concatenate([weights[0, :, 1:, 0] for weights in alone_too], 1).mean(1)
    np.testing.assert_allclose([kind.first for kind in maps.layers[0].kinds], apart, atol=1e-4)


def test_calls_on_a_cache_are_counted_under_qkv_torch_capture() -> None:
    model, inputs = model_of("llama"), inputs_of("llama")
    model.set_attn_implementation("sdpa")
    model.generation_config.eos_token_id = None
    with qkv.torch.capture() as maps:
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert [[layer.q_len for layer in run.layers] for run in maps.runs] == [[T, T]] and list(maps.skipped.values()) == [3]
    assert "3 calls were not captured: forwards on a cache" in maps.runs[0].notes[0]


def test_rollout_is_the_product_of_means() -> None:
    exact, rough = (eager_weights("bert", inputs_of("bert"), dtype)["self"] for dtype in (torch.float64, torch.float32))
    want = np.eye(T)
    for weights in exact:
        want = (0.5 * np.eye(T) + 0.5 * weights[1].mean(0)) @ want
    got = qkv.transformers.capture_attention(model_of("bert"), inputs_of("bert")).rollout(sequence=1)
    # Rows of products of stochastic matrices: each of T terms of two products is rounded.
    assert abs(got - want).max() <= 4 * T * EPSILON + 2 * max(abs(a - b).max() for a, b in zip(exact, rough, strict=True))


def test_errors_say_what_to_do() -> None:
    model, inputs = model_of("gpt2"), inputs_of("gpt2")
    capture = qkv.transformers.capture_attention
    with pytest.raises(ValueError, match=r"exact: layer 1 has heads 0\.\.3: got 4"):
        capture(model, inputs, exact=[(1, 4)])
    with pytest.raises(ValueError, match=r"exact: layers must lie in 0\.\.1: got \[7\]"):
        capture(model, inputs, exact=[(7, 0)])
    with pytest.raises(ValueError, match="num_beams=1"):
        capture(model, inputs, generate={"num_beams": 2})
    with pytest.raises(ValueError, match="no prompt_lookup_num_tokens"):
        capture(model, inputs, generate={"prompt_lookup_num_tokens": 3})
    model.generation_config.num_beams = 3  # a model's own default
    with pytest.raises(ValueError, match="num_beams=3"):
        capture(model, inputs, generate={"max_new_tokens": 3})
    with pytest.raises(ValueError, match="pass the whole text"):
        capture(model, {**inputs, "past_key_values": tf.DynamicCache()})
    with pytest.raises(TypeError, match="inputs must be a tensor of input_ids, or a dict .*got ndarray"):
        capture(model, inputs["input_ids"].numpy())
    with pytest.raises(TypeError, match="captured must be a qkv.Capture: got str"):
        capture(model, inputs, capture="x")
    maps = capture(model, inputs)
    with pytest.raises(ValueError, match=r"residual is a share and must lie in \[0, 1\]: got 2.0"):
        maps.rollout(residual=2.0)
    with pytest.raises(ValueError, match=r"run must lie in 0\.\.0: got 9"):
        maps.rollout(run=9)
    with pytest.raises(ValueError, match="must end in .html or .safetensors"):
        maps.save("page.pdf")
    with pytest.raises(ValueError, match="there is no layer 0 with a head 9"):
        maps.save("page.html", weights=[(0, 9)])
    with pytest.raises(ValueError, match="must name the 23 positions: got 2"):
        maps.html(tokens=["a", "b"])
    with pytest.raises(ValueError, match="every head of a layer"):
        capture(model, inputs, heads=[1]).html()
    long = torch.randint(3, 61, (1, 600))
    llama = capture(model_of("llama"), long)
    assert llama.layers[0].weights is None and llama.layers[0].map.shape == (1, 4, 128, 128)
    with pytest.raises(ValueError, match="up to 512 tokens"):
        llama.rollout()
    assert np.allclose(block_means(llama[0].map, 600).sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_page_computes_eagers_weights(name: str, tmp_path: Path, browser: Browser) -> None:
    padded = name in TEXTS
    inputs = inputs_of(name, padded=padded)
    crossing = name in ("t5", "whisper")
    heads = range(4)
    maps = qkv.transformers.capture_attention(model_of(name), inputs, exact=every_head(name))
    maps.save(tmp_path / "page.html")
    exact, naive = eager_weights(name, inputs), eager_weights(name, inputs, torch.float32)
    page = browser.open(tmp_path / "page.html")
    parts = ["self", "decoder", "cross"] if crossing else ["self"]
    for view, (b, part) in enumerate((b, part) for b in range(2) for part in parts):
        rows = inputs["attention_mask"][b].bool().numpy() if padded else slice(None)
        for layer, head in ((layer, head) for layer in range(2) for head in heads):
            true, rough = (w[part][layer][b, head] for w in (exact, naive))
            got, _ = tile(page, layer, head, 0, 0, view)
            # A page may be off by 1e-3 of a weight, on top of the rounding of float32 in the layers before.
            bound = 1e-3 * true + 2 * max(abs(a - b).max() for a, b in zip(exact[part], naive[part]))
            assert got.shape == true.shape and (abs(got - true) <= bound)[rows].all(), f"{name} {part} {layer}"
            assert abs(rough - true).max() < 1e-3


def test_prompt_and_answer(tmp_path: Path, browser: Browser) -> None:
    model, inputs = model_of("llama"), inputs_of("llama")
    model.generation_config.eos_token_id = None
    generate = {"max_new_tokens": 5, "do_sample": False}
    maps = qkv.transformers.capture_attention(model, inputs, generate=generate, exact=[(1, 2)])
    maps.save(tmp_path / "page.html")
    want = eager_weights("llama", {"input_ids": torch.from_numpy(maps.runs[0].ids[""])})["self"][1][0, 2]
    page = browser.open(tmp_path / "page.html")
    got, _ = tile(page, 1, 2, 0, 0)
    assert got.shape == want.shape == (T + 4, T + 4) and (abs(got - want) <= 1e-3 * want + 1e-5).all()
    page.locator("#panel .tokens span").nth(T + 2).click()
    assert "this query is part of the answer" in page.locator("#pair").inner_text()


# How large pages of short texts are, and how much memory a capture of a long one takes: last, a child begins at this process's peak.


@pytest.mark.parametrize("sharp", [1.0, 6.0])
def test_pages_of_short_texts_are_small(sharp: float, tmp_path: Path) -> None:
    """Two of BERT base's twelve layers at 512 tokens, with attention spread and pointed: a sixth of 12 MB for maps of all heads and every
    weight of one in twelve, a sixth of 40 MB for every weight."""
    torch.manual_seed(0)
    model = tf.BertModel(tf.BertConfig(num_hidden_layers=2)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter *= sharp
    maps = qkv.transformers.capture_attention(model, torch.randint(0, 30000, (1, 512)))
    maps.save(tmp_path / "some.html", weights=[(0, 3), (1, 5)])
    maps.save(tmp_path / "all.html")
    assert (tmp_path / "some.html").stat().st_size < 12e6 / 6
    assert (tmp_path / "all.html").stat().st_size < 40e6 / 6
    print(*(f"{(tmp_path / name).stat().st_size / 1e6:.2f} MB" for name in ("some.html", "all.html")))


def test_capture_of_a_long_text_takes_little_memory(tmp_path: Path) -> None:
    """Above the same forward without a capture: far less than one head's weights."""
    script = """
    import resource, sys, torch, transformers, qkv.transformers
    config = transformers.Qwen2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=50)
    model = transformers.Qwen2Model(config).eval()
    qkv.transformers.register()
    model.set_attn_implementation("qkv")
    tokens = torch.randint(0, 50, (1, 8192))
    capture = lambda ids: qkv.transformers.capture_attention(model, ids, exact=[(1, 2)])
    capture(tokens[:, :600])
    with torch.no_grad():
        model(input_ids=tokens)
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = peak()
    maps = capture(tokens)
    assert maps.layers[1].kinds is not None and maps.layers[1].map.shape == (1, 4, 128, 128)
    print(peak() - before)
    """
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(script))
    assert int(run_program(program, tmp_path)) * 1024 < 8192 * 8192 * 4 / 4

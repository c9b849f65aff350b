"""What heads write, of every architecture, against its definition in float64: projections by their names, values from attention's weights and
result, the final norm and the unembedding by their formulas."""

import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("support_transformers")
import qkv.transformers
from support_transformers import DECODERS, EXPLORED, MODELS, MORE, inputs_of, model_of, tf, torch

NORMED = ("gemma2", "gemma3", "glm4", "olmo2")  # attention's result goes through a norm before it is added
OWN = ("bloom", "mpt", "falcon")  # attention that no interface reaches
READERS = ("o_proj", "c_proj", "dense", "out_proj", "o", "out_lin", "Wo", "wo")


def projections(model: Any) -> list[Any]:
    """Of every layer, by name: the reader of the heads that stands in or behind the attention."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        *_, last = parts = name.split(".")
        is_attention = any(part in ("attn", "self_attn", "attention", "self_attention", "SelfAttention") for part in parts)
        if last in READERS and is_attention and "mlp" not in parts and "intermediate" not in parts:
            found[name] = module
    return list(found.values())


VALUES: list[Any] = []


def eager_that_tells(module: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
    """The eager attention of the model's own file; values [B, H, T, D]."""
    VALUES.append(value.repeat_interleave(query.shape[1] // value.shape[1], 1).detach())
    return vars(sys.modules[type(module).__module__])["eager_attention_forward"](module, query, key, value, *args, **options)


tf.AttentionInterface.register("eager that tells", eager_that_tells)
tf.AttentionMaskInterface.register("eager that tells", tf.AttentionMaskInterface()["eager"])


def by_definition(name: str) -> tuple[list[Any], Any]:
    """Of every layer: values and result [B, H, T, D] and projection [H, D, d], all in float64; and the model."""
    model = model_of(name, torch.float64, scale=0.3)
    model.set_attn_implementation("eager" if name in OWN else "eager that tells")
    VALUES.clear()
    read: dict[int, Any] = {}
    some = projections(model)
    for n, module in enumerate(some):
        module.register_forward_pre_hook(lambda _, args, n=n: read.update({n: args[0].detach()}))
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs_of(name).items()}
    with torch.no_grad():
        model(**inputs)
    layers = []
    for n, module in enumerate(some):
        w = module.weight.detach() if type(module).__name__ == "Conv1D" else module.weight.detach().T
        z = read[n].reshape(2, -1, 4, len(w) // 4).transpose(1, 2)
        layers.append((VALUES[n] if VALUES else None, z, w.unflatten(0, (4, -1))))
    return layers, model


def near(got: np.ndarray, exact: Any, what: str) -> None:
    exact = np.asarray(exact)
    assert got.shape == exact.shape, what
    assert abs(got - exact).max() <= 1e-4 * abs(exact).max(), f"{what}: {abs(got - exact).max() / abs(exact).max():.3g}"


@pytest.mark.parametrize("name", [name for name in {**MODELS, **MORE, **EXPLORED} if name not in ("t5", "whisper", "albert", "modernbert")])
def test_norms_and_sizes(name: str) -> None:
    layers, _ = by_definition(name)
    maps = qkv.transformers.capture_attention(model_of(name, scale=0.3), inputs_of(name), writes=True)
    assert len(maps.layers) == len(layers) == 2
    assert bool(maps.runs[0].notes) == (name in NORMED)
    for layer, (v, z, w) in zip(maps.layers, layers):
        if v is not None:
            near(layer.writes.norms, (v @ w).norm(dim=-1), f"{name} {layer.index} norms")
        near(layer.writes.sizes, (z @ w).norm(dim=-1), f"{name} {layer.index} sizes")


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in NORMED])
def test_tokens_that_heads_raise(name: str) -> None:
    layers, model = by_definition(name)
    inputs = inputs_of(name)
    norm = next(m for n, m in reversed(list(model.named_modules())) if "Norm" in type(m).__name__ and not any(c.isdigit() for c in n))
    given: list[Any] = []
    norm.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    with torch.no_grad():
        model(**inputs)
    (x,) = given
    centres = isinstance(norm, torch.nn.LayerNorm) or "Layer" in type(norm).__name__
    eps = getattr(norm, "eps", None) or getattr(norm, "variance_epsilon", None)
    middle = x - x.mean(-1, keepdim=True) if centres else x
    divisor = (middle.square().mean(-1) + eps).sqrt()
    gain = norm.weight.detach() + ("Gemma" in type(norm).__name__)
    words = model.get_output_embeddings().weight.detach() * gain
    maps = qkv.transformers.capture_attention(model_of(name, scale=0.3), inputs, writes=True)
    for layer, (v, z, w) in zip(maps.layers, layers):
        parts = z @ w
        parts = parts - parts.mean(-1, keepdim=True) if centres else parts
        logits = parts / divisor[:, None, :, None] @ words.T
        logits = logits - logits.mean(-1, keepdim=True)
        high, low = logits.topk(5, -1).values, logits.topk(5, -1, largest=False).values
        near(layer.writes.push_by, torch.cat([high, low], -1), f"{name} raised and lowered")
        near(logits.gather(-1, torch.from_numpy(layer.writes.push)).numpy(), layer.writes.push_by, f"{name} by these tokens")
        following = inputs["input_ids"][:, None, 1:, None].expand(-1, 4, -1, -1)
        near(layer.writes.next_token[..., :-1], logits[:, :, :-1].gather(-1, following)[..., 0], f"{name} next token")
        assert (layer.writes.next_token[..., -1] == 0).all()
        if v is None:
            continue
        v = v @ w
        v = v - v.mean(-1, keepdim=True) if centres else v
        towards = (words - words.mean(0))[inputs["input_ids"]][:, None]
        read = v @ words.T
        near(layer.writes.copies, torch.cosine_similarity(v * gain, towards / gain, -1).mean(-1), f"{name} copies")
        near(read.gather(-1, torch.from_numpy(layer.writes.ov)).numpy(), read.topk(3, -1).values, f"{name} OV")


def test_a_factor_of_what_is_added_belongs_to_it() -> None:
    whole, half = model_of("granite"), model_of("granite")
    half.config.residual_multiplier = 0.5 * whole.config.residual_multiplier
    for layer in half.model.layers:
        layer.residual_multiplier = half.config.residual_multiplier
    one, other = (qkv.transformers.capture_attention(model, inputs_of("granite"), writes=True).layers[0].writes for model in (whole, half))
    near(other.norms, one.norms / 2, "norms")
    assert not np.allclose(one.push_by, other.push_by)


def test_a_gate_behind_attention_is_refused() -> None:
    """A model that changes the heads before W_o reads them writes something else: nothing is said, and the notes say why."""
    model = model_of("llama")
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))
    maps = qkv.transformers.capture_attention(model, inputs_of("llama"), writes=True)
    assert all(layer.writes is None for layer in maps.layers) and "no projection reads" in maps.runs[0].notes[0]


def test_adapters_are_asked_what_they_do() -> None:
    """A projection of an unknown class, with a bias, is the linear map that it computes."""

    class Adapted(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + x.flip(-1)

    plain, adapted = model_of("llama"), model_of("llama")
    for layer in adapted.model.layers:
        layer.self_attn.o_proj.__class__ = Adapted
    for layer in plain.model.layers:
        layer.self_attn.o_proj.weight.data += torch.eye(32).flip(1)
    one, other = (qkv.transformers.capture_attention(model, inputs_of("llama"), writes=True).layers[1].writes for model in (plain, adapted))
    near(other.norms, one.norms, "norms")
    near(other.push_by, one.push_by, "pushed")


def test_sixteen_bits_and_other_norms() -> None:
    """Models of bfloat16; and a last norm that reads rows of another width is none of the unembedding's."""
    one, other = (qkv.transformers.capture_attention(model_of("llama", dtype), inputs_of("llama"), writes=True) for dtype in (torch.float32, torch.bfloat16))
    wide, narrow = (maps.layers[0].writes for maps in (one, other))
    assert abs(narrow.push_by - wide.push_by).max() < 0.1 * abs(wide.push_by).max() and abs(narrow.norms / wide.norms - 1).max() < 0.1
    model = model_of("llama")
    model.last_norm = torch.nn.LayerNorm(5)
    made = qkv.transformers.capture_attention(model, inputs_of("llama"), writes=True).layers[0].writes
    assert made.push is None and made.norms is not None


def test_long_texts_hold_their_last_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv._explore.writes._WORK", 2 * 4 * 61 * 32 * 2 * 3)
    made = qkv.transformers.capture_attention(model_of("llama"), inputs_of("llama"), writes=True).layers[0].writes
    assert made.push.shape == (2, 4, 3, 10) and made.ov.shape == (2, 4, 3, 3) and made.next_token.shape == (2, 4, 11)


def test_fewer_words_than_are_told_of() -> None:
    model = tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=2, n_positions=8, bos_token_id=0, eos_token_id=0)).eval()
    made = qkv.transformers.capture_attention(model, {"input_ids": torch.arange(6)[None] % 2}, writes=True).layers[0].writes
    for told in (made.push[..., :2], made.push[..., 2:], made.ov):
        assert (np.sort(told) == [0, 1]).all() and told.shape == (1, 4, 6, 2)

"""qkv.transformers.unpad and optimize: encoders on tokens alone, against the same model with padding; the bits of a text, alone and in a
batch; what is refused."""

import copy
import io
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import qkv.transformers
from support_transformers import ENCODERS, SIZES, encoder_of, model_of, tf, torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from transformers.activations import GELUActivation, SiLUActivation

LENGTHS = (11, 3, 0, 7, 1)
T = max(LENGTHS)


def batch(lengths: Any = LENGTHS, side: str = "right") -> dict[str, Any]:
    """Token numbers that depend on text and position alone; 1 at padding, RoBERTa's."""
    mask = torch.arange(T)[None] < torch.tensor(lengths)[:, None]
    ids = torch.where(mask, 3 + (torch.arange(len(lengths))[:, None] * 7 + torch.arange(T) * 5) % 58, 1)
    return {"input_ids": ids.flip(1) if side == "left" else ids, "attention_mask": (mask.flip(1) if side == "left" else mask).long()}


def results(model: Any, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of tokens: hidden states and gradients of a loss on them; of texts: what the pooler gives."""
    made = model(**inputs, output_hidden_states=True)
    kept = inputs["attention_mask"].bool()
    weights = torch.linspace(-1, 1, kept.numel() * 32, dtype=torch.float64).view(*kept.shape, 32)[kept]
    model.zero_grad()
    (made.last_hidden_state[kept] * weights).sum().backward()
    found = {f"layer {n}": x[kept] for n, x in enumerate(made.hidden_states)} | {"out": made.last_hidden_state[kept]}
    if getattr(made, "pooler_output", None) is not None:
        found["pooled"] = made.pooler_output[inputs["attention_mask"][:, 0].bool()]  # of the first place, which may be padding
    found |= {f"d {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.detach().double().numpy() for name, x in found.items()}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ENCODERS)
def test_tokens_alone_are_the_padded_models(name: str, side: str) -> None:
    """In float64: rounding is far below what a wrong row, position or window gives."""
    model, inputs = encoder_of(name).double(), batch(side=side)
    if name == "modernbert":  # transformers' eager gives NaN at padding that has no token within its window
        inputs = batch((11, 9, 8, 10, 9), side)
    expected = results(model, inputs)
    with qkv.transformers.unpadded(model):
        found = results(model, inputs)
        padding = model(**inputs).last_hidden_state[~inputs["attention_mask"].bool()]
    assert not padding.any()
    assert found.keys() == expected.keys()
    largest = max(abs(x).max() for key, x in expected.items() if key.startswith("d "))
    for key, value in found.items():
        size = largest if key.startswith("d ") else abs(expected[key]).max()
        assert abs(value - expected[key]).max() <= 1e-7 * size, key
    assert results(model, inputs).keys() == expected.keys() and not hasattr(model, "_qkv_unpadded")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_texts_bits_are_the_same_alone_and_in_any_batch(name: str) -> None:
    model = qkv.transformers.optimize(qkv.transformers.unpad(encoder_of(name)))
    lengths = (11, 3, 9, 7, 1, 11, 2)
    inputs = batch(lengths)
    with torch.no_grad():
        whole = model(**inputs)
        for n, length in enumerate(lengths):
            alone = model(**{key: x[n : n + 1, :length] for key, x in inputs.items()})
            assert torch.equal(alone.last_hidden_state[0], whole.last_hidden_state[n, :length])
            if getattr(whole, "pooler_output", None) is not None:
                assert torch.equal(alone.pooler_output[0], whole.pooler_output[n])


def test_a_texts_gradients_have_their_own_bits_too() -> None:
    """Of what goes into DeBERTa, whose scores have biases of their own for each text."""
    model, (lengths, mask) = qkv.transformers.optimize(qkv.transformers.unpad(encoder_of("deberta-v3"))), (LENGTHS, batch()["attention_mask"])
    rows, weights = torch.randn(2, len(lengths), T, 32, generator=torch.Generator().manual_seed(1))

    def gradient(x: Any, mask: Any, weights: Any) -> Any:
        x = x.clone().requires_grad_()
        (model(inputs_embeds=x, attention_mask=mask).last_hidden_state * weights).sum().backward()
        return x.grad

    whole = gradient(rows, mask, weights)
    for n, length in enumerate(lengths):
        alone = gradient(rows[n : n + 1, :length], None, weights[n : n + 1, :length])
        assert torch.equal(alone[0], whole[n, :length])


def test_models_that_share_a_config_and_blocks_that_overlap() -> None:
    config = tf.BertConfig(**SIZES, pad_token_id=1)
    one, two = tf.BertModel(config).eval(), tf.BertModel(config).eval()
    before = config._attn_implementation
    assert one.config is two.config and before != "qkv"
    qkv.transformers.unpad(nn.ModuleList([one, two]))
    qkv.transformers.pad(one)
    assert not two(**batch()).last_hidden_state[2].any()  # still on tokens alone
    qkv.transformers.pad(two)
    assert config._attn_implementation == before
    first, second = qkv.transformers.unpadded(one), qkv.transformers.unpadded(one)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not one(**batch()).last_hidden_state[2].any()
    second.__exit__(None, None, None)
    assert one(**batch()).last_hidden_state[2].any() and config._attn_implementation == before


def test_heads_get_what_they_expect_and_copies_stay_unpadded() -> None:
    config = tf.BertConfig(**SIZES, pad_token_id=1, num_labels=3)
    torch.manual_seed(0)
    model, inputs = tf.BertForSequenceClassification(config).eval(), batch()
    expected = model(**inputs).logits
    both = nn.Sequential(copy.deepcopy(qkv.transformers.unpad(model)))
    for one in (model, both[0]):
        assert one.config._attn_implementation == "qkv"
        torch.testing.assert_close(one(**inputs).logits[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])
        torch.testing.assert_close(one(**inputs, return_dict=False)[0], one(**inputs).logits)
    assert qkv.transformers.pad(both)[0].config._attn_implementation != "qkv"
    torch.testing.assert_close(both[0](**inputs).logits, expected)


def test_compiled_stored_and_from_several_threads() -> None:
    model, inputs = qkv.transformers.optimize(qkv.transformers.unpad(encoder_of("bert"))), batch()
    expected = model(**inputs).last_hidden_state
    assert torch.equal(torch.compile(model, backend="eager")(**inputs).last_hidden_state, expected)
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    assert torch.equal(torch.load(kept, weights_only=False)(**inputs).last_hidden_state, expected)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(x.last_hidden_state, expected) for x in pool.map(lambda _: model(**inputs), range(8)))
    with pytest.raises(NotImplementedError, match="is not traced"):
        torch.export.export(model, (), inputs)


def test_a_forward_that_another_library_put_there_stays() -> None:
    """Before unpad(), and around its own, which pad() then leaves alone."""
    model, inputs, calls = encoder_of("bert"), batch(), []
    expected = model(**inputs).last_hidden_state

    def wrapped(original: Any, name: str) -> Any:
        return lambda *a, **k: calls.append(name) or original(*a, **k)

    model.forward = before = wrapped(model.forward, "before")
    qkv.transformers.unpad(model)
    assert not model(*inputs.values()).last_hidden_state[2].any() and calls == ["before"]
    model.forward = wrapped(model.forward, "around")
    torch.testing.assert_close(qkv.transformers.pad(model)(**inputs).last_hidden_state, expected)
    assert calls == ["before", "around", "before"]
    assert not qkv.transformers.unpad(model)(**inputs).last_hidden_state[2].any()
    model.forward = before
    qkv.transformers.unpad(qkv.transformers.pad(model))
    assert qkv.transformers.pad(model).forward is before


def test_dropout_and_embeddings_as_inputs() -> None:
    model = qkv.transformers.unpad(encoder_of("bert"))
    embedded = torch.randn(2, T, 32, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, T)
    mask[1, 4:] = 0
    out = model(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(out, torch.cat([model(inputs_embeds=embedded[:1]).last_hidden_state, out[1:]]))
    model.train()
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(model(inputs_embeds=embedded, attention_mask=mask).last_hidden_state)
    assert torch.equal(*drawn) and not torch.allclose(drawn[0], out)


def test_refusals() -> None:
    refused = pytest.raises(NotImplementedError, match="got model_type 'gpt2'")
    with refused:
        qkv.transformers.unpad(model_of("gpt2"))
    with pytest.raises(NotImplementedError, match="is_decoder"):
        qkv.transformers.unpad(tf.BertModel(tf.BertConfig(**SIZES, is_decoder=True)))
    with pytest.raises(NotImplementedError, match="a convolution over tokens.*got conv_kernel_size=3"):
        qkv.transformers.unpad(tf.DebertaV2Model(tf.DebertaV2Config(**SIZES, conv_kernel_size=3)))
    with pytest.raises(TypeError, match="a model of transformers"):
        qkv.transformers.unpad(nn.Linear(2, 2))
    with pytest.raises(ValueError, match='bits must be "invariant" or "fast"'):
        qkv.transformers.optimize(nn.Linear(2, 2), bits="exact")
    model, inputs = qkv.transformers.unpad(encoder_of("bert")), batch()
    model.set_attn_implementation("sdpa")
    with pytest.raises(NotImplementedError, match="must stay"):
        model(**inputs)
    qkv.transformers.unpad(model)(**inputs)
    with pytest.raises(NotImplementedError, match="output_attentions is not computed"):
        model(**inputs, output_attentions=True)
    with pytest.raises(NotImplementedError, match=r"attention_mask must be \[B, T\].*got \[5, 1, 11, 11\]"):
        model(**inputs | {"attention_mask": torch.ones(5, 1, T, T)})
    holes = batch((11, 11))
    holes["attention_mask"][0, 4] = 0
    with pytest.raises(NotImplementedError, match="attention_mask with gaps"):
        qkv.transformers.unpad(encoder_of("modernbert"))(**holes)
    assert model(**inputs).last_hidden_state.shape == (5, T, 32)  # after a call that failed
    model.set_attn_implementation("eager")
    with pytest.raises(NotImplementedError, match='must stay "qkv": got \'eager\''):
        model(**inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 24), (0, 24), (24,)])
@pytest.mark.parametrize("bits", ["invariant", "fast"])
def test_optimized_linear_is_pytorchs(bits: str, shape: tuple[int, ...], dtype: Any) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 16).to(dtype), torch.randn(shape).to(dtype).requires_grad_()
    dy = torch.randn(*shape[:-1], 16).to(dtype)

    def made() -> list[Any]:
        y = layer(x)
        return [y.detach(), *torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)]

    expected = made()
    with qkv.transformers.optimized(layer, bits=bits):
        for one, other in zip(made(), expected):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other)
        layer.weight.requires_grad_(False)
        torch.testing.assert_close(torch.autograd.grad(layer(x), layer.bias, dy)[0], expected[3])
        assert type(layer) is not nn.Linear
        exported = torch.export.export(layer, (x.detach(),)).module()(x.detach()) if x.numel() else expected[0]
        torch.testing.assert_close(exported, expected[0])
        with pytest.raises(NotImplementedError, match="differentiated once"):
            (dx,) = torch.autograd.grad(layer(x), x, dy, create_graph=True)
            dx.sum().backward()
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("layer", [nn.GELU(), GELUActivation(), GELUActivation(use_gelu_python=True), nn.SiLU(), SiLUActivation()])
@pytest.mark.parametrize("shape", [(3, 2001), (0, 24), (5, 0), ()])
def test_optimized_activations_are_float64s(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.linspace(-12, 12, 6003)[: max(1, math.prod(shape))].reshape(shape) if 0 not in shape else torch.zeros(shape)
    x, dy, kind = x.requires_grad_(), torch.rand(shape), type(layer)
    formula = F.silu if isinstance(layer, (nn.SiLU, SiLUActivation)) else F.gelu

    def errors() -> list[float]:
        y, exact_x = layer(x), x.detach().double().requires_grad_()
        exact = formula(exact_x)
        pairs = ((y, exact), (torch.autograd.grad(y, x, dy)[0], torch.autograd.grad(exact, exact_x, dy.double())[0]))
        assert all(one.shape == other.shape and one.dtype is torch.float32 for one, other in pairs)
        return [float((one.detach().double() - other.detach()).abs().max()) if other.numel() else 0.0 for one, other in pairs]

    theirs, plain = errors(), layer(x.detach())
    with qkv.transformers.optimized(layer):
        assert isinstance(layer, kind) and type(layer) is not kind
        own = errors()
        assert own[0] <= max(1.2 * theirs[0], 2e-8) and own[1] <= 2 * torch.finfo(torch.float32).eps
        at = torch.tensor([-math.inf, math.inf, -0.0, 2.0**100, -(2.0**100), -3e38, math.nan]).requires_grad_()
        ends, slopes = layer(at), torch.autograd.grad(layer(at).sum(), at)[0].tolist()
        assert ends.tolist()[:6] == [0, math.inf, 0, 2.0**100, 0, 0] and math.isnan(ends[6]) and slopes[:6] == [0, 1, 0.5, 1, 0, 0]
        negative = torch._neg_view(x.detach())
        assert torch.equal(layer(negative), layer(-x.detach())) and torch.equal(layer(input=x), layer(x))
        assert torch.equal(layer(x.detach().T.contiguous().T) if x.dim() == 2 else layer(x), layer(x))
        exported = torch.export.export(layer, (x.detach(),)).module()(x.detach())
        assert layer(x.bfloat16()).dtype is torch.bfloat16 and torch.equal(exported, plain)
    assert type(layer) is kind


def test_other_activations_stay_pytorchs() -> None:
    layer, x = nn.GELU("tanh"), torch.randn(64)
    with qkv.transformers.optimized(layer):
        assert torch.equal(layer(x), F.gelu(x, approximate="tanh"))
    in_place, given = qkv.transformers.optimize(nn.SiLU(inplace=True)), x.clone()
    assert in_place(given) is given and torch.equal(given, F.silu(x))


def test_bits_are_those_of_the_last_call_and_restored() -> None:
    layer = nn.Linear(4, 4)
    kinds = []
    for bits in ("fast", "invariant"):
        kinds.append(type(qkv.transformers.optimize(layer, bits=bits)))
    assert kinds[0] is not kinds[1]
    with qkv.transformers.optimized(layer, bits="fast"):
        assert type(layer) is kinds[0]
    assert type(layer) is kinds[1] and type(qkv.transformers.restore(layer)) is nn.Linear
    with qkv.transformers.optimized(layer):
        nn.utils.parametrizations.weight_norm(layer)
        expected = layer(torch.ones(2, 4))
    assert torch.equal(layer(torch.ones(2, 4)), expected)
    layer = qkv.transformers.optimize(nn.Linear(4, 4))
    nn.utils.parametrizations.weight_norm(layer)
    qkv.transformers.restore(layer)
    assert type(layer).__bases__ == (nn.Linear,)
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear


def test_rows_that_overlap_are_copied() -> None:
    """A gradient of a sum, a query that is expanded, overlapping frames."""
    for layer, width in ((nn.Linear(4, 4), 4), (nn.GELU(), 4), (nn.SiLU(), 4)):
        torch.manual_seed(0)
        probe, audio = torch.randn(1, 1, width, requires_grad=True), torch.randn(1, 20, requires_grad=True)
        for rows in (lambda: probe.expand(3, -1, -1), lambda: audio.unfold(-1, width, 2), lambda: torch.randn(3, width, requires_grad=True)):
            given = rows()
            results = []
            for function in (copy.deepcopy(layer), qkv.transformers.optimize(copy.deepcopy(layer))):
                out = function(given)
                results.append([out, *torch.autograd.grad(out.sum(0).pow(2).sum(), [given, *function.parameters()])])
            for theirs, ours in zip(*results):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_negative_views_tangents_and_what_has_no_rows() -> None:
    layer, x = nn.Linear(24, 16), torch.randn(5, 24)
    weight, dy = layer.weight, torch.randn(5, 16)
    with qkv.transformers.optimized(layer):
        assert torch.equal(layer(torch._neg_view(x)), layer(-x))
        grads = [torch.autograd.grad(layer(x), (weight, layer.bias), d) for d in (torch._neg_view(dy), -dy)]
        assert all(torch.equal(*pair) for pair in zip(*grads))
        for function in (layer, qkv.transformers.optimize(nn.GELU())):
            with torch.no_grad(), forward_ad.dual_level(), pytest.raises(NotImplementedError, match="differentiated once"):
                function(forward_ad.make_dual(x, x))
        assert torch.fx.symbolic_trace(layer)(x).shape == (5, 16)
    none = qkv.transformers.optimize(nn.Linear(0, 3))
    assert none(torch.ones(2, 0)).shape == (2, 3) and layer(torch.ones(0, 3, 24)).shape == (0, 3, 16)


def test_what_unpadded_models_cannot_know_is_refused() -> None:
    model, inputs = qkv.transformers.unpad(encoder_of("bert")), batch()
    for name, value in {"is_causal": True, "head_mask": torch.zeros(1), "encoder_hidden_states": torch.zeros(5, 2, 32)}.items():
        with pytest.raises(NotImplementedError, match=f"{name} is not computed"):
            model(**inputs, **{name: value})
    with pytest.raises(ValueError, match=r"is unpadded: pad\(\) undoes that"):
        qkv.transformers.capture_attention(model, inputs)
    assert not batch((0, 0))["attention_mask"].any() and model(**batch((0, 0))).last_hidden_state.shape == (2, T, 32)
    model.train().gradient_checkpointing_enable()
    with pytest.raises(NotImplementedError, match="gradient_checkpointing_disable"):
        model(**inputs)
    assert model.eval()(**inputs).last_hidden_state.shape == (5, T, 32)
    holes = batch((11, 11))
    holes["attention_mask"][0, 4] = 0
    for name in ("mpnet", "deberta-v3"):
        with pytest.raises(NotImplementedError, match="distances of texts whose tokens are neighbours"):
            qkv.transformers.unpad(encoder_of(name))(**holes)
    mpnet = qkv.transformers.unpad(encoder_of("mpnet"))
    qkv.transformers.unregister()
    with pytest.raises(NotImplementedError, match="register\\(\\) again"):
        mpnet(**inputs)
    qkv.transformers.register()
    with pytest.raises(NotImplementedError, match="chunk_size_feed_forward=4"):
        qkv.transformers.unpad(tf.BertModel(tf.BertConfig(**SIZES, chunk_size_feed_forward=4)))

"""Golden files of the layers: the articles' shapes, masks and fills, in evaluation and in training with qkv's dropout."""

import numpy as np
import torch

import forms
import philox
import sdpa
import store
import terms
from store import Case

RAGGED = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=np.uint8)  # [B, Tk], article 004
ONE_EMPTY = np.array([[0, 1], [0, 0], [1, 0]], dtype=np.uint8)  # [B, Tk]: the second sequence has no key


def broadcastable(mask):
    """To axes that broadcast against [B, H, T, T], by rank: (B, Tk), (B, Tq, Tk), or four."""
    if mask is None or mask.ndim == 4:
        return mask
    return mask[:, None, None] if mask.ndim == 2 else mask[:, None]


def layer_case(name, layer, sizes, *, heads=1, fill="-1e20", causal=False, mask=None, axes="none", train=False, dropout=0.0,
               residual=0.0, seed=0, exponent=-1, **form_options):
    batch, length, embed_dim = sizes
    torch.manual_seed(0)
    module = forms.make(layer, embed_dim, heads=heads, fill=float(fill), causal=causal, length=length, **form_options)
    case = Case(name, kind="layer", layer=layer, heads=heads, fill=fill if mask is not None or causal else "none",
                causal=int(causal), mask_axes=axes, dropout=dropout, residual=residual, seed=seed,
                mode="train" if train else "eval", torch=torch.__version__)
    x = case.input("x", sizes)
    parameters = {}
    for parameter_name, value in module.named_parameters():
        parameters[parameter_name] = case.input("param." + parameter_name, tuple(value.shape), exponent)
    if mask is not None:
        case.add("mask", mask)
    factors = philox.weight_factors(batch, heads, length, length, dropout, seed) if train and dropout else None
    width = form_options.get("width") or embed_dim
    output_factors = philox.output_factors(batch, length, width, residual, seed) if train and residual else None
    dout = case.input("dout", (batch, length, width))
    keep = None if mask is None else torch.from_numpy(broadcastable(mask).astype(bool))
    exact, rounded = (store.run(module, dtype, x, parameters, dout, lambda form, leaf, dtype=dtype: form(
        leaf, keep, *(None if f is None else torch.from_numpy(f).to(dtype) for f in (factors, output_factors))))
                      for dtype in (torch.float64, torch.float32))
    if layer in ("average", "fixed-weights"):
        positive = {}
    else:
        positive = terms.positive_terms(x, parameters, dout, exact["weights"], heads, factors=factors,
                                        output_factors=output_factors)
    for result_name, value in exact.items():
        case.result(result_name, value, rounded[result_name], positive.get(result_name, np.abs(value)))
    return case


def layer_cases():
    """Shapes of the articles: every layer, names of parameters, masks in each spelling, rows without a key, training."""
    small, ragged = (3, 2, 4), (3, 4, 2)
    yield layer_case("v1_3x2x4", "v1", small)
    yield layer_case("v2_3x2x4_without_output", "v2", small, output=False)
    yield layer_case("v2_3x2x4", "v2", small)
    yield layer_case("v4_3x2x4", "v4", small)
    yield layer_case("single_head_3x2x4", "single-head", small, fill="-inf", causal=True)
    for names in ("W_O", "in_proj"):
        yield layer_case(f"mha_3x2x4_{names}", "mha", small, heads=2, names=names)
    yield layer_case("mha_2x5x6_causal_train", "mha", (2, 5, 6), heads=3, causal=True, train=True, dropout=0.25, residual=0.5,
                     seed=(1 << 40) + 5)
    yield layer_case("average_2x5x3", "average", (2, 5, 3))
    yield layer_case("fixed_weights_2x5x3", "fixed-weights", (2, 5, 3))
    repeated = np.ascontiguousarray(np.repeat(RAGGED[:, None], 4, axis=1))  # [B, Tq, Tk]
    yield layer_case("v3_3x4x2_ragged_bk", "v3", ragged, mask=RAGGED, axes="bk")
    yield layer_case("v3_3x4x2_ragged_train", "v3", ragged, mask=repeated, axes="bqk", train=True, dropout=0.1, seed=3)
    yield layer_case("v4_3x4x2_ragged_b1qk_inf", "v4", ragged, mask=repeated[:, None].copy(), axes="bhqk", fill="-inf")
    yield layer_case("self_attention_3x4x2_ragged", "self-attention", ragged, mask=RAGGED, axes="bk", width=5)
    small_empty = np.ascontiguousarray(np.broadcast_to(ONE_EMPTY[:, None, None], (3, 2, 2, 2)))
    for fill, word in (("-1e20", "mean"), ("-inf", "nan")):
        yield layer_case(f"mha_3x2x6_{word}_train", "mha", (3, 2, 6), heads=2, mask=small_empty, axes="bhqk", fill=fill,
                         train=True, dropout=0.5, residual=0.25, seed=9)
    # The articles' larger shapes: inputs by formula, results as samples and sums.
    yield layer_case("mha_16x100x512", "mha", (16, 100, 512), heads=8, exponent=-3, names="out_proj")
    yield layer_case("mha_2x10x768", "mha", (2, 10, 768), heads=12, exponent=-3, names="W_O")


def formula_case():
    """A generated tensor and its values: a reader with a wrong formula fails here."""
    case = Case("formula", kind="formula")
    case.add("values", case.input("x", (3, 700), 2).astype(np.float32))
    return case


def cases():
    yield formula_case()
    yield sdpa.five_tokens()
    yield sdpa.dropout_factors()
    yield from layer_cases()

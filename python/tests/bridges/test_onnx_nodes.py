"""ONNX's own node tests of Attention, FlexAttention, LinearAttention and RotaryEmbedding (opset 23 and newer), from the generators in
the onnx package, computed by qkv: inputs, expected outputs and tolerances are theirs. Cases that do not apply are listed here, with the
reason; a new test of theirs must be computed or listed.
"""

import functools
import warnings
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
import qkv

NOT_APPLICABLE = {
    "test_flexattention_prob_mod": "a function of weights: qkv has functions of scores",
    "test_linear_attention_fp16": "qkv.linear_attention takes float32 and float64; qkv.torch's delta rules take 16 bits",
}
SCALED, CAPPED, BIASED, WEIGHTS = range(4)  # qk_matmul_output_mode: the scores after each step, and their softmax


@functools.cache
def cases() -> dict[str, Any]:
    """{name: test case} of single nodes; "expanded" ones spell the same in other operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        every = collect_testcases()
    wanted = ("Attention", "FlexAttention", "LinearAttention", "RotaryEmbedding")
    return {c.name: c for c in every if len(c.model.graph.node) == 1 and c.model.graph.node[0].op_type in wanted}


def tensors_of(case: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Inputs and outputs by position, None where left out, and attributes."""
    node = case.model.graph.node[0]
    inputs, outputs = (list(side) for side in case.data_sets[0])
    by_position = [
        [side.pop(0) if name else None for name in names] for side, names in ((inputs, node.input), (outputs, node.output))
    ]
    graph = onnx.AttributeProto.GRAPH
    attributes = {a.name: None if a.type == graph else onnx.helper.get_attribute_value(a) for a in node.attribute}
    return by_position[0], by_position[1], attributes


def heads_of(x: Any, heads: int) -> Any:
    """[B, T, H D] as [B, H, T, D]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def widened(x: Any) -> Any:
    return None if x is None else np.asarray(x).astype(np.float64) if x.dtype.kind != "b" else x


def attention(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    """[Y, present key, present value, weights], as the operator's specification says it in terms of qkv."""
    q, k, v, attn_mask, past_key, past_value, nonpad = inputs + [None] * (7 - len(inputs))
    packed = q.ndim == 3
    if packed:
        q = heads_of(q, attributes["q_num_heads"])
        k, v = (heads_of(x, attributes["kv_num_heads"]) for x in (k, v))
    offset = 0
    if past_key is not None:
        offset = past_key.shape[2]
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    batch, heads, q_len, kv_len = len(q), q.shape[1], q.shape[2], k.shape[2]
    offsets = np.full(batch, offset) if nonpad is None else nonpad - q_len
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    options: dict[str, Any] = {"scale": attributes.get("scale"), "softcap": attributes.get("softcap", 0.0)}
    masks = []
    if attributes.get("is_causal"):
        masks.append(qkv.Mask.causal(offsets=offsets))
    if left >= 0 or right >= 0:
        masks.append(qkv.Mask.window(left, right, offsets=offsets))
    if nonpad is not None:
        masks.append(qkv.Mask.key_lengths(nonpad))
    if attn_mask is not None:
        hidden = False if attn_mask.dtype == np.bool_ else -np.inf
        padding = [(0, 0)] * (attn_mask.ndim - 1) + [(0, kv_len - attn_mask.shape[-1])]
        attn_mask = np.pad(attn_mask, padding, constant_values=hidden)
        whole = np.ascontiguousarray(np.broadcast_to(attn_mask, (batch, heads, q_len, kv_len)))
        if attn_mask.dtype == np.bool_:
            masks.append(qkv.Mask.keep(whole))
        else:
            options["bias"] = whole.astype(np.float32)
    if masks:
        options["mask"] = functools.reduce(lambda a, b: a & b, masks)
    q, k, v = (np.ascontiguousarray(x) for x in (q, k, v))
    mode = attributes.get("qk_matmul_output_mode", SCALED)
    y, weights = qkv.attention(q, k, v, weights="all" if mode == WEIGHTS else "scores", **options)
    if mode in (SCALED, CAPPED):
        before_bias = {name: options[name] for name in ("scale", "softcap")}
        weights = qkv.attention(q, k, v, weights="scores", **before_bias)[1]
    return [y.swapaxes(1, 2).reshape(batch, q_len, -1) if packed else y, k, v, weights]


SCORE_MODS: dict[str, Any] = {
    "test_flexattention_score_mod": lambda s, b, h, i, j: s + 0.5,
    "test_flexattention_causal_mask": lambda s, b, h, i, j: np.where(i >= j, s, -np.inf),
    "test_flexattention_soft_cap": lambda s, b, h, i, j: np.tanh(s / 20) * 20,
    "test_flexattention_relative_positional": lambda s, b, h, i, j: s + (i - j),
}


def flex_attention(name: str, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    options: dict[str, Any] = {"scale": attributes.get("scale")}
    if "score_mod" in attributes:
        options["score_mod"] = SCORE_MODS[name]
    return [qkv.attention(*inputs, **options)]


def linear_attention(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    """[Y, the state after the last key]."""
    q, k, v, past, decay, beta = inputs + [None] * (6 - len(inputs))
    q = heads_of(q, attributes["q_num_heads"])
    k, v = (heads_of(x, attributes["kv_num_heads"]) for x in (k, v))
    scale = attributes.get("scale", 0.0) or q.shape[-1] ** -0.5
    by_token = {} if beta is None else {"beta": np.broadcast_to(beta, (*beta.shape[:2], k.shape[1])).swapaxes(1, 2)}
    if decay is not None:  # a number for each token and head, or for each channel of k
        by_token["log_decay"] = decay.swapaxes(1, 2) if decay.shape[2] == k.shape[1] else heads_of(decay, k.shape[1])
    y, state = qkv.linear_attention(
        *(np.ascontiguousarray(x) for x in (q, k, v)), feature_map="identity", causal=True, normalized=False, scale=scale,
        state=None if past is None else qkv.LinearState(past), return_state=True, **by_token,
    )  # fmt: skip
    return [y.swapaxes(1, 2).reshape(len(y), y.shape[2], -1), state.kv]


def rotary_embedding(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    x, cosines, sines, ids = inputs + [None] * (4 - len(inputs))
    packed = x.ndim == 3
    if packed:
        x = heads_of(x, attributes["num_heads"])
    if ids is None:  # cosines [B, T, R / 2]: a row for each token
        ids = np.arange(len(x) * x.shape[2]).reshape(len(x), -1)
        cosines, sines = (table.reshape(-1, table.shape[-1]) for table in (cosines, sines))
    turn = qkv.Rotary.from_tables(cosines, sines, head_dim=x.shape[-1], interleaved=bool(attributes.get("interleaved", 0)))
    y = turn(np.ascontiguousarray(x), ids=ids)
    return [y.swapaxes(1, 2).reshape(len(y), y.shape[2], -1) if packed else y]


def test_every_test_is_computed_or_listed() -> None:
    names = set(cases())
    assert set(NOT_APPLICABLE) <= names, "a test that is listed no longer exists"
    assert len(names) >= 126  # of onnx 1.23.2


@pytest.mark.parametrize("name", sorted(set(cases()) - set(NOT_APPLICABLE)))
def test_node(name: str) -> None:
    case = cases()[name]
    inputs, expected, attributes = tensors_of(case)
    kind = case.model.graph.node[0].op_type
    if kind == "Attention":
        got = attention(inputs, attributes)
    elif kind == "FlexAttention":
        got = flex_attention(name, inputs, attributes)
    else:
        got = (linear_attention if kind == "LinearAttention" else rotary_embedding)(inputs, attributes)
    assert any(x is not None for x in expected)
    for ours, theirs in zip(got, expected):
        if theirs is None:
            continue
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(str(theirs.dtype), 0.0)  # theirs are computed in 16 bits
        np.testing.assert_allclose(widened(ours), widened(theirs), rtol=max(case.rtol, 4 * eps), atol=max(case.atol, 2 * eps))

"""ONNX Runtime: Attention (ONNX 23, and com.microsoft's with the projection), MultiHeadAttention and, on caches of f32, f16 and
8 bits, GroupQueryAttention (com.microsoft).

Inputs and outputs are bound once, so that a run copies nothing. No training, and no bf16 on its CPU provider.
"""

import itertools

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from . import textbook

CACHES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "int8": np.dtype(np.int8)}
_threads = 1


def version():
    return onnxruntime.__version__


def settings(threads):
    global _threads
    _threads = threads
    return f"intra_op_num_threads {threads}, graph optimisations all, inputs and outputs bound"


def variants(case):
    makers = {"forward": _forward, "decode": _decode, "weights": _weights, "linear": _linear, "mha": _layer}
    found = dict(makers[case.kind](case)) if case.kind in makers and case.dtype == "f32" else {}
    return found | (dict(_on_cache(case)) if case.kind in ("decode", "prefill") and case.dtype in CACHES else {})


def _model(nodes, inputs, outputs, initializers=()):
    """Shapes of inputs and outputs: f32, or (shape, type)."""

    def value(name, shape):
        shape, kind = shape if isinstance(shape[-1], np.dtype) else (shape, np.dtype(np.float32))
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), shape)

    graph = helper.make_graph(
        nodes,
        "case",
        [value(*item) for item in inputs.items()],
        [value(*item) for item in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers],
    )
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def _load(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _bound(session, inputs, outputs):
    """Inputs: a dict of arrays; outputs: one of arrays, written in place, which may be inputs too."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return binding


def _session(model, inputs, outputs):
    """run() -> the first output; inputs: a dict of arrays, or several, bound in turn."""
    session = _load(model)
    out = {name: np.empty(shape, np.float32) for name, shape in outputs.items()}
    bindings = itertools.cycle([_bound(session, arrays, out) for arrays in (inputs if isinstance(inputs, list) else [inputs])])

    def run():
        session.run_with_iobinding(next(bindings))
        return next(iter(out.values()))

    run()
    return run


def _onnx_attention(q, k, out, causal, weights=None):
    outputs = {"out": out} | ({"weights": weights} if weights else {})
    names = ["out"] if weights is None else ["out", "", "", "weights"]
    attributes = {"is_causal": int(causal)} | ({} if weights is None else {"qk_matmul_output_mode": 3})
    node = helper.make_node("Attention", ["q", "k", "v"], names, **attributes)
    return _model([node], {"q": q, "k": k, "v": k}, outputs)


def _forward(case):
    q, k, v, _ = textbook.numbers(case)
    run = _session(_onnx_attention(q.shape, k.shape, q.shape, case.causal), {"q": q, "k": k, "v": v}, {"out": q.shape})
    yield "Attention (ONNX 23)", (run, textbook.row_error(case, run(), q, k, v))

    rows = (case.batch, case.q_len, case.embed_dim)
    packed = {name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(rows) for name, x in (("q", q), ("k", k), ("v", v))}
    attributes = {"num_heads": case.heads, "unidirectional": int(case.causal)}
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["out"], domain="com.microsoft", **attributes)
    run = _session(_model([node], dict.fromkeys("qkv", rows), {"out": rows}), packed, {"out": rows})
    heads = run().reshape(case.batch, case.q_len, case.heads, -1).transpose(0, 2, 1, 3)
    yield "MultiHeadAttention", (run, textbook.row_error(case, heads, q, k, v))


def _decode(case):
    """The query heads of a group as rows of one head. Tq 1 only: ONNX 23 aligns is_causal to the first query, not the last."""
    if case.causal:
        return
    q, k, v, _ = textbook.numbers(case)
    rows = np.ascontiguousarray(q.reshape(case.batch, case.hkv, case.heads // case.hkv, case.head_dim))
    for name, query in (("grouped heads", q), ("group as rows", rows)):
        inputs = [{"q": query, "k": keys, "v": values} for keys, values in textbook.caches(case, [k, v], np.copy)]
        run = _session(_onnx_attention(query.shape, k.shape, query.shape, False), inputs, {"out": query.shape})
        yield f"Attention (ONNX 23), {name}", (run, textbook.row_error(case, run().reshape(q.shape), q, k, v))


def _on_cache(case):
    """The operator of exported language models: the last tokens are given, the cache before them is shared with the output."""
    q, k, v, _ = textbook.numbers(case)
    kind = CACHES[case.dtype]
    real = np.dtype(np.float16 if case.dtype == "f16" else np.float32)
    tokens = [x[:, :, -case.q_len :].transpose(0, 2, 1, 3).reshape(case.batch, case.q_len, -1).astype(real) for x in (q, k, v)]
    inputs = dict(zip("qkv", tokens))
    inputs["lengths"], inputs["total"] = np.full(case.batch, case.tk - 1, np.int32), np.array([case.tk], np.int32)
    attributes, scales, stored = {}, [], [x.astype(kind) for x in (k, v)]
    if case.dtype == "int8":
        scales = [np.abs(x).max((0, 2), keepdims=True) / np.float32(127) for x in (k, v)]
        stored = [np.round(x / scale).astype(np.int8) for x, scale in zip((k, v), scales)]
        inputs |= dict(zip(("k_scale", "v_scale"), scales))
        attributes = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
    names = ["q", "k", "v", "past_k", "past_v", "lengths", "total", *[""] * 5, *(["k_scale", "v_scale"] if scales else [])]
    attributes |= {"num_heads": case.heads, "kv_num_heads": case.hkv}
    outputs = ["out", "present_k", "present_v"]
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes)
    out = np.empty_like(inputs["q"])
    shapes = {name: (x.shape, x.dtype) for name, x in inputs.items()}
    past = dict.fromkeys(("past_k", "past_v"), (k.shape, kind))
    present = dict.fromkeys(("present_k", "present_v"), (k.shape, kind))
    session = _load(_model([node], shapes | past, {"out": (out.shape, real)} | present))
    turns = itertools.cycle(
        [
            _bound(session, inputs | dict(zip(past, pair)), {"out": out} | dict(zip(present, pair)))
            for pair in textbook.caches(case, stored, np.copy)
        ]
    )

    def run():
        session.run_with_iobinding(next(turns))
        return out

    rows = run().reshape(case.batch, case.q_len, case.heads, -1).transpose(0, 2, 1, 3)
    yield "GroupQueryAttention", (run, textbook.row_error(case, rows, q, k, v))


def _weights(case):
    q, k, v, _ = textbook.numbers(case)
    weights = (case.batch, case.heads, case.q_len, case.tk)
    model = _onnx_attention(q.shape, k.shape, q.shape, False, weights)
    run = _session(model, {"q": q, "k": k, "v": v}, {"out": q.shape, "weights": weights})
    yield "Attention (ONNX 23) with qk_matmul_output", (run, textbook.row_error(case, run(), q, k, v))


def _linear(case):
    x, weight, bias, _ = textbook.linear_numbers(case)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    model = _model([node], {"x": x.shape}, {"y": x.shape}, [("w", weight), ("b", bias)])
    run = _session(model, {"x": x}, {"y": x.shape})
    yield "Gemm", (run, textbook.difference(run(), textbook.linear(x, weight, bias)))


def _layer(case):
    x, (weight, bias, out_weight, out_bias) = textbook.layer_numbers(case)
    nodes = [
        helper.make_node("Attention", ["x", "w", "b"], ["attended"], domain="com.microsoft", num_heads=case.heads),
        helper.make_node("MatMul", ["attended", "wo"], ["projected"]),
        helper.make_node("Add", ["projected", "bo"], ["y"]),
    ]
    parameters = [("w", np.concatenate(weight, 1)), ("b", bias.reshape(-1)), ("wo", out_weight), ("bo", out_bias)]
    run = _session(_model(nodes, {"x": x.shape}, {"y": x.shape}, parameters), {"x": x}, {"y": x.shape})
    exact = textbook.layer(case, x, weight, bias, out_weight, out_bias)
    yield "Attention (com.microsoft) + MatMul", (run, textbook.difference(run(), exact))

"""OpenVINO: ScaledDotProductAttention (opset 13) in f32 and with the hint of 16 bits, also on a model's state. No training."""

import itertools
import os

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from . import textbook

TYPES = {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16, "f16": openvino.Type.f16}
_core = openvino.Core()
_threads = 1


def version():
    return openvino.__version__


def settings(threads):
    global _threads
    _threads = threads
    return f"INFERENCE_NUM_THREADS {threads}, LATENCY" + (
        "" if _computes("bf16") else "; no bf16 on this CPU, 16-bit tensors compute in f32"
    )


def variants(case):
    makers = {"forward": _forward, "decode": _decode, "prefill": _decode, "linear": _linear, "mha": _layer}
    found = dict(makers[case.kind](case)) if case.kind in makers and case.dtype in TYPES else {}
    # A state of 4 bits (KV_CACHE_PRECISION u4) ends the process by SIGSEGV (2026.4.1).
    return found | (dict(_on_state(case)) if case.kind in ("decode", "prefill") and case.dtype != "int4" else {})


def _attention(q, k, causal, dtype, mask=None):
    """16-bit tensors in and out; where the CPU computes in f32 they are converted around the operator, as a user would by hand."""
    element = TYPES[dtype]
    convert = not _computes(dtype)
    parameters = [ops.parameter(list(shape), element) for shape in (q, k, k)]
    inputs = [ops.convert(x, openvino.Type.f32) for x in parameters] if convert else parameters
    attention = ops.scaled_dot_product_attention(*inputs, *([] if mask is None else [ops.constant(mask)]), causal=causal)
    return openvino.Model([ops.convert(attention, element) if convert else attention], parameters)


def _computes(dtype):
    """With oneDNN held to AVX2 a 16-bit hint finds no softmax."""
    if dtype == "f32":
        return True
    limited = os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2"
    return {"bf16": "BF16", "f16": "FP16"}[dtype] in _core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") and not limited


def _tensor(x, dtype):
    if dtype == "f32":
        return openvino.Tensor(x, shared_memory=True)
    if dtype == "f16":
        return openvino.Tensor(x.astype(np.float16))
    upper_half = np.ascontiguousarray(x.view(np.uint32) >> 16).astype(np.uint16)  # already rounded to bf16
    return openvino.Tensor(upper_half, list(x.shape), openvino.Type.bf16)


def _compiled(model, dtype, **more):
    config = {"INFERENCE_NUM_THREADS": _threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1} | more
    config["INFERENCE_PRECISION_HINT"] = dtype if _computes(dtype) else "f32"
    return _core.compile_model(model, "CPU", config)


def _request(model, inputs, dtype="f32"):
    """run() and the output as f32; inputs: several sets of arrays, used in turn."""
    request = _compiled(model, dtype).create_infer_request()
    turns = itertools.cycle([[_tensor(x, dtype) for x in arrays] for arrays in inputs])

    def bind():
        for index, tensor in enumerate(next(turns)):
            request.set_input_tensor(index, tensor)

    def run():
        if len(inputs) > 1:
            bind()
        request.infer()

    bind()
    run()
    return run, lambda: _output(request, dtype)


def _output(request, dtype):
    out = request.get_output_tensor(0).data
    return (out.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else out.astype(np.float32)


def _rounded(x):
    """Rounds to the nearest bf16, as f32."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _arrays(case):
    arrays = textbook.numbers(case)[:3]
    return [_rounded(x) for x in arrays] if case.dtype == "bf16" else list(arrays)


def _name(case):
    return case.dtype if _computes(case.dtype) else "f32 inside"


def _forward(case):
    q, k, v = _arrays(case)
    run, output = _request(_attention(q.shape, k.shape, case.causal, case.dtype), [[q, k, v]], case.dtype)
    yield f"SDPA, {_name(case)}", (run, textbook.row_error(case, output(), q, k, v))


def _decode(case):
    """The query heads of a group as rows of one head: the operator has no grouped heads."""
    q, k, v = _arrays(case)
    group = case.heads // case.hkv
    rows = np.ascontiguousarray(q.reshape(case.batch, case.hkv, group * case.q_len, case.head_dim))
    mask = np.tile(textbook.keep_of(case)[0], (group, 1)) if case.causal else None
    inputs = [[rows, *kv] for kv in textbook.caches(case, [k, v], np.copy)]
    run, output = _request(_attention(rows.shape, k.shape, False, case.dtype, mask), inputs, case.dtype)
    yield f"SDPA, group as rows, {_name(case)}", (run, textbook.row_error(case, output().reshape(q.shape), q, k, v))


def _stateful(case):
    """q, the new k and v -> attention on the state, which they extend, as exported language models are written."""

    def parameter(name, heads):
        return ops.parameter([-1, heads, -1, case.head_dim], openvino.Type.f32, name=name)

    def sizes(x, *axes):
        return ops.gather(ops.shape_of(x), ops.constant(np.array(axes)), ops.constant(np.int64(0)))

    q, mask = parameter("q", case.heads), ops.parameter([1, 1, -1, -1], openvino.Type.f32, name="mask")
    beam, zero = ops.parameter([-1], openvino.Type.i32, name="beam"), ops.constant(np.float32(0))
    parameters, sinks, inputs = [q, beam, *([mask] if case.causal else [])], [], []
    for name in "kv":
        info = VariableInfo()
        info.data_shape = openvino.PartialShape([-1, case.hkv, -1, case.head_dim])
        info.data_type, info.variable_id = openvino.Type.f32, name
        state, new = Variable(info), parameter(name, case.hkv)
        empty = ops.broadcast(zero, ops.concat([sizes(q, 0), ops.constant(np.array([case.hkv, 0, case.head_dim]))], 0))
        past = ops.gather(ops.read_value(empty, state), beam, ops.constant(np.int64(0)))
        rows = ops.concat([past, new], 2)
        groups = ops.concat([sizes(rows, 0), ops.constant(np.array([case.hkv, case.heads // case.hkv])), sizes(rows, 2, 3)], 0)
        shared = ops.broadcast(ops.unsqueeze(rows, ops.constant(np.int64(2))), groups, broadcast_spec="BIDIRECTIONAL")
        inputs.append(ops.reshape(shared, ops.constant(np.array([0, case.heads, -1, case.head_dim])), True))
        parameters.append(new)
        sinks.append(ops.assign(rows, state))
    out = ops.scaled_dot_product_attention(q, *inputs, *([mask] if case.causal else []))
    return openvino.Model([ops.result(out)], sinks, parameters, "cache")


def _on_state(case):
    """A run adds its tokens to the state, which is set before each run that has a mask."""
    q, k, v = _arrays(case)
    first = case.tk - case.q_len
    past, new = (
        {name: np.ascontiguousarray(x) for name, x in zip("kv", kv)} for kv in zip(*(np.split(x, [first], 2) for x in (k, v)))
    )
    given = new | {"q": q}
    if case.causal:
        given["mask"] = np.where(textbook.keep_of(case)[:1, None], 0, -np.inf).astype(np.float32)
    hint = "bf16" if case.dtype == "bf16" else "f32"
    model = _compiled(_stateful(case), hint, KV_CACHE_PRECISION={"int8": "u8"}.get(case.dtype, case.dtype))
    requests = [model.create_infer_request() for _ in textbook.caches(case, [], None)]

    def restore(request):
        for state in request.query_state():
            state.state = openvino.Tensor(past[state.name])

    for request in requests:
        restore(request)
        request.set_tensor("beam", openvino.Tensor(np.arange(case.batch, dtype=np.int32)))
        for name, x in given.items():
            request.set_tensor(name, openvino.Tensor(x))
    requests[0].infer()
    error = textbook.row_error(case, _output(requests[0], "f32"), q, k, v)
    turns = itertools.cycle(requests)

    def run():
        run.request.infer()

    def before():
        run.request = next(turns)
        if case.causal:
            restore(run.request)

    run.before = before
    yield f"SDPA on a state, {case.dtype}", (run, error)


def _linear(case):
    """16-bit rows in and out, as in _attention."""
    element = TYPES[case.dtype]
    x, weight, bias, _ = textbook.linear_numbers(case)
    if case.dtype == "bf16":
        x, weight = _rounded(x), _rounded(weight)
    node = ops.parameter(list(x.shape), element)
    rows = ops.convert(node, openvino.Type.f32) if case.dtype == "bf16" else node
    y = ops.add(ops.matmul(rows, ops.constant(weight), False, True), ops.constant(bias))
    model = openvino.Model([ops.convert(y, element) if case.dtype == "bf16" else y], [node])
    run, output = _request(model, [[x]], case.dtype)
    yield f"MatMul, {_name(case)}", (run, textbook.difference(output(), textbook.linear(x, weight, bias)))


def _layer(case):
    x, (weight, bias, out_weight, out_bias) = textbook.layer_numbers(case)
    if case.dtype == "bf16":
        x = _rounded(x)
    element = TYPES[case.dtype]
    given = ops.parameter(list(x.shape), element)
    node = given if case.dtype == "f32" else ops.convert(given, openvino.Type.f32)
    heads_first = ops.constant(np.array([0, 2, 1, 3]))
    parts = []
    for n in range(3):
        part = ops.add(ops.matmul(node, ops.constant(weight[n]), False, False), ops.constant(bias[n]))
        part = ops.reshape(part, ops.constant(np.array([case.batch, case.q_len, case.heads, -1])), False)
        parts.append(ops.transpose(part, heads_first))
    attended = ops.transpose(ops.scaled_dot_product_attention(*parts), heads_first)
    attended = ops.reshape(attended, ops.constant(np.array(x.shape)), False)
    y = ops.add(ops.matmul(attended, ops.constant(out_weight), False, False), ops.constant(out_bias))
    y = y if case.dtype == "f32" else ops.convert(y, element)
    run, output = _request(openvino.Model([y], [given]), [[x]], case.dtype)
    exact = textbook.layer(case, x, weight, bias, out_weight, out_bias)
    yield "MatMul + SDPA + MatMul", (run, textbook.difference(output(), exact))

"""ggml, built from source into its environment: flash_attn_ext, and the two products with a softmax that models had before it.

A cache in each of its types: f32, f16, bf16, q8_0 as 8-bit and q4_0 as 4-bit caches; queries are f32. No training.
"""

import ctypes
import itertools
import math
import os
import pathlib
import sys
import types

import numpy as np

from . import textbook
from .cases import ATTENTION

TYPES = {"f32": 0, "f16": 1, "int4": 2, "int8": 8, "bf16": 30}  # enum ggml_type: int4 is q4_0, int8 q8_0
BUILD = os.environ.get("QKV_GGML_BUILD", "native")
PRODUCT_LENGTH = 4096  # the products store Tq x Tk numbers per head
P, I64, F32, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_threads = 1


class Plan(ctypes.Structure):
    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", P), ("n_threads", INT), ("threadpool", P)]
    _fields_ += [("abort_callback", P), ("abort_callback_data", P), ("use_ref", ctypes.c_bool)]


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", P), ("no_alloc", ctypes.c_bool)]


def _load():
    """ggml's functions by their names without the prefix."""
    folder = pathlib.Path(sys.prefix) / BUILD / "src"
    libraries = [ctypes.CDLL(str(folder / f"libggml-{part}.so"), ctypes.RTLD_GLOBAL) for part in ("base", "cpu")]
    signatures = {
        "version": (ctypes.c_char_p,),
        "init": (P, InitParams),
        "free": (None, P),
        "new_tensor_4d": (P, P, INT, I64, I64, I64, I64),
        "get_data": (P, P),
        "row_size": (ctypes.c_size_t, INT, I64),
        "quantize_chunk": (ctypes.c_size_t, INT, P, P, I64, I64, I64, P),
        "flash_attn_ext": (P, P, P, P, P, P, F32, F32, F32),
        "mul_mat": (P, P, P, P),
        "soft_max_ext": (P, P, P, P, F32, F32),
        "new_graph": (P, P),
        "build_forward_expand": (None, P, P),
        "graph_plan": (Plan, P, INT, P),
        "graph_compute": (INT, P, ctypes.POINTER(Plan)),
        "cpu_init": (None,),
    }
    found = types.SimpleNamespace()
    for name, (result, *arguments) in signatures.items():
        function = next(getattr(library, f"ggml_{name}") for library in libraries if hasattr(library, f"ggml_{name}"))
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    found.cpu_init()
    return found


_ggml = _load()


def version():
    return _ggml.version().decode()


def settings(threads):
    global _threads
    _threads = threads
    return f"{threads} thread(s), OpenMP, built here for {BUILD}"


class _Memory:
    """A context of ggml that holds tensors of at most `size` bytes; all of it goes with the last run that uses it."""

    def __init__(self, size):
        self.context = _ggml.init(InitParams(int(size) + (64 << 20), None, False))

    def __del__(self):
        _ggml.free(self.context)

    def tensor(self, array, kind):
        """`array` [.., rows, n] in storage `kind`."""
        array = np.ascontiguousarray(array, np.float32)
        x = _ggml.new_tensor_4d(self.context, TYPES[kind], *reversed((1,) * (4 - array.ndim) + array.shape))
        rows, length = array.size // array.shape[-1], array.shape[-1]
        _ggml.quantize_chunk(TYPES[kind], array.ctypes.data, _ggml.get_data(x), 0, rows, length, None)
        return x

    def graph(self, result):
        graph = _ggml.new_graph(self.context)
        _ggml.build_forward_expand(graph, result)
        plan = _ggml.graph_plan(graph, _threads, None)
        work = np.empty(plan.work_size + 64, np.uint8)
        plan.work_data = work.ctypes.data
        return lambda: (_ggml.graph_compute(graph, plan), work, self)


def _call(q, pairs, keep, kind, products=False):
    """(run, output [B, H, Tq, D]) on keys and values of `kind`, in turn. The products' values are stored transposed."""
    batch, heads, length, width = q.shape
    tokens = pairs[0][0].shape[2]
    numbers = 4 * (q.size + 2 * batch * heads * length * tokens if products else 2 * q.size)
    stored = 2 * pairs[0][0].size // width * _ggml.row_size(TYPES[kind], width)
    memory = _Memory(len(pairs) * (stored + numbers) + 2 * length * tokens)
    queries, scale = memory.tensor(q, "f32"), 1 / math.sqrt(width)
    mask = None if keep is None else memory.tensor(np.where(keep, 0.0, -np.inf), "f16")
    graphs = []
    for keys, values in pairs:
        keys, values = memory.tensor(keys, kind), memory.tensor(values.swapaxes(-1, -2) if products else values, kind)
        if products:
            weights = _ggml.soft_max_ext(memory.context, _ggml.mul_mat(memory.context, keys, queries), mask, scale, 0)
            out = _ggml.mul_mat(memory.context, values, weights)
        else:
            out = _ggml.flash_attn_ext(memory.context, queries, keys, values, mask, scale, 0, 0)
        graphs.append((memory.graph(out), out))
    turns = itertools.cycle(graphs)

    def output():
        graphs[0][0]()
        shape = q.shape if products else (batch, length, heads, width)
        rows = np.ctypeslib.as_array(ctypes.cast(_ggml.get_data(graphs[0][1]), ctypes.POINTER(F32)), shape).copy()
        return rows if products else rows.swapaxes(1, 2)

    return lambda: next(turns)[0](), output


def variants(case):
    return dict(_attention(case)) if case.kind in ATTENTION else {}


def _attention(case):
    q, k, v, _ = textbook.numbers(case)
    keep = textbook.keep_of(case)
    for products in (False, True):
        if products and (case.q_len > PRODUCT_LENGTH or case.dtype.startswith("int")):
            continue
        pairs = textbook.caches(case, [k, v], lambda x: x)
        run, output = _call(q, pairs, None if keep is None else keep[0], case.dtype, products)
        name = "mul_mat, soft_max_ext, mul_mat" if products else f"flash_attn_ext, {case.dtype}"
        yield name, (run, textbook.row_error(case, output(), q, k, v))

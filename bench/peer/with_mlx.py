"""MLX on the CPU: fast.scaled_dot_product_attention, and quantized_matmul around a softmax on 8-bit and 4-bit caches."""

import itertools
import os

import mlx.core as mx
import numpy as np

from . import textbook

TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
BITS = {"int8": 8, "int4": 4}
PRODUCT_LENGTH = 4096  # Tq x Tk numbers per head are stored


def version():
    return mx.__version__


def settings(threads):
    return f"{'OpenBLAS' if 'LD_PRELOAD' in os.environ else 'BLAS of its wheel'}, {threads} thread(s) of it, 1 of the rest"


def _sdpa(causal):
    mask = "causal" if causal else None
    return lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)


def attend(q, k, v, causal):
    return np.array(_sdpa(causal)(*map(mx.array, (q, k, v))))


def variants(case):
    if case.kind not in textbook.ATTENTION or case.q_len > PRODUCT_LENGTH:
        return {}
    *qkv, _ = textbook.numbers(case)
    if case.dtype in BITS:
        name, attention, q, pair = _quantized(case, *qkv)
    else:
        q, *pair = (mx.array(x).astype(TYPES[case.dtype]) for x in qkv)
        name, attention = "scaled_dot_product_attention", _sdpa(case.causal)
        qkv = [np.array(x.astype(mx.float32)) for x in (q, *pair)]
    compiled = mx.compile(attention)
    turns = itertools.cycle(textbook.caches(case, pair, lambda x: [y + 0 for y in x] if isinstance(x, list) else x + 0))

    def run():
        out = compiled(q, *next(turns))
        mx.eval(out)
        return out

    return {name: (run, textbook.row_error(case, np.array(run().astype(mx.float32)).reshape(qkv[0].shape), *qkv))}


def _quantized(case, q, k, v):
    """Groups of 64 along D with a scale and a bias, as mlx-lm keeps its quantized caches; heads of a group as one axis."""
    form = {"group_size": 64, "bits": BITS[case.dtype]}
    rows = mx.array(q).reshape(case.batch, case.hkv, -1, case.q_len, case.head_dim) * case.head_dim**-0.5
    keep = mx.array(textbook.keep_of(case)[0]) if case.causal else None

    def attention(rows, keys, values):
        scores = mx.quantized_matmul(rows, *keys, transpose=True, **form)
        scores = scores if keep is None else mx.where(keep, scores, -mx.inf)
        return mx.quantized_matmul(mx.softmax(scores, axis=-1), *values, transpose=False, **form)

    pair = [list(mx.quantize(mx.array(x)[:, :, None], **form)) for x in (k, v)]
    return f"quantized_matmul, {form['bits']} bits", attention, rows, pair

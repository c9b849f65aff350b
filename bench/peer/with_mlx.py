"""MLX on the CPU: fast.scaled_dot_product_attention. On 8-bit caches its quantized_matmul takes twenty times as long as others."""

import itertools
import os

import mlx.core as mx
import numpy as np

from . import textbook
from .cases import ATTENTION

TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
PRODUCT_LENGTH = 4096  # Tq x Tk numbers per head are stored


def version():
    return mx.__version__


def settings(threads):
    return f"{'OpenBLAS' if 'LD_PRELOAD' in os.environ else 'BLAS of its wheel'}, {threads} thread(s) of it, 1 of the rest"


def variants(case):
    if case.kind not in ATTENTION or case.dtype not in TYPES or case.q_len > PRODUCT_LENGTH:
        return {}
    q, k, v = (mx.array(x).astype(TYPES[case.dtype]) for x in textbook.numbers(case)[:3])
    turns = itertools.cycle(textbook.caches(case, [k, v], lambda x: x + 0))

    def run():
        mask = "causal" if case.causal else None
        out = mx.fast.scaled_dot_product_attention(q, *next(turns), scale=case.head_dim**-0.5, mask=mask)
        mx.eval(out)
        return out

    out, *arrays = (np.array(x.astype(mx.float32)) for x in (run(), q, k, v))
    return {"scaled_dot_product_attention": (run, textbook.row_error(case, out, *arrays))}

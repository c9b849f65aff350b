"""JAX: jax.nn.dot_product_attention, compiled. Its layout is [B, T, H, D]; backward starts from what forward kept."""

import functools
import itertools
import os

import numpy as np

from . import textbook


def settings(threads):
    """Must run before jax is imported, which reads the flags once."""
    global jax, jnp
    os.environ["JAX_PLATFORMS"] = "cpu"
    if threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), flags])
    import jax
    import jax.numpy as jnp

    return f"jit, {threads} thread(s) by affinity and XLA_FLAGS"


def version():
    return jax.__version__


def variants(case):
    makers = {"forward": _forward, "decode": _forward, "prefill": _forward, "backward": _gradient, "fwdbwd": _gradient}
    makers["linear"] = _linear
    # JAX stores the S x S scores, several times for the gradient.
    runs = case.kind in makers and not case.dtype.startswith("int") and case.q_len <= 4096
    return dict(makers[case.kind](case)) if runs else {}


def _type(dtype):
    return {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}[dtype]


def _to_jax(x, dtype):
    return jnp.asarray(np.ascontiguousarray(x.transpose(0, 2, 1, 3)), _type(dtype))


def _back(x):
    return np.asarray(x, np.float32).transpose(0, 2, 1, 3)


def _options(case):
    if case.extra == "window":
        return {"local_window_size": (case.window - 1, 0)}
    if case.extra == "lengths":
        return {"key_value_seq_lengths": jnp.asarray(case.key_lengths(), jnp.int32)}
    if case.causal and case.q_len != case.tk:
        return {"mask": jnp.asarray(textbook.keep_of(case)[:, None])}
    return {"is_causal": case.causal}


def _forward(case):
    arrays = [_to_jax(x, case.dtype) for x in textbook.numbers(case)[:3]]
    attention = jax.jit(functools.partial(jax.nn.dot_product_attention, **_options(case)))
    turns = itertools.cycle(textbook.caches(case, arrays[1:], lambda x: x + 0))

    def run():
        return attention(arrays[0], *next(turns)).block_until_ready()

    yield "dot_product_attention", (run, textbook.row_error(case, _back(run()), *map(_back, arrays)))


def _linear(case):
    x, weight, bias = (jnp.asarray(array, _type(case.dtype)) for array in textbook.linear_numbers(case)[:3])
    layer = jax.jit(lambda x, weight, bias: x @ weight.T + bias)

    def run():
        return layer(x, weight, bias).block_until_ready()

    exact = textbook.linear(*(np.asarray(array, np.float32) for array in (x, weight, bias)))
    yield "x @ weight.T + bias", (run, textbook.difference(np.asarray(run(), np.float32), exact))


def _call(case):
    """(the gradient, of backward from what a forward kept, otherwise with that forward; q, k, v, dout)."""
    *qkv, dout = (_to_jax(x, case.dtype) for x in textbook.numbers(case))
    bias = [jnp.asarray(textbook.bias_of(case))] if case.extra == "bias" else []
    options = _options(case)

    def forward(q, k, v, bias=None):
        return jax.nn.dot_product_attention(q, k, v, bias=bias, **options)

    def with_forward(dout, *arguments):
        return jax.vjp(forward, *arguments)[1](dout)

    if case.kind == "backward":
        _, kept = jax.jit(functools.partial(jax.vjp, forward))(*qkv, *bias)
        gradient = functools.partial(jax.jit(lambda kept, dout: kept(dout)), kept, dout)
    else:
        gradient = functools.partial(jax.jit(with_forward), dout, *qkv, *bias)
    return lambda: jax.block_until_ready(gradient()), [*qkv, dout]


def _gradient(case):
    if case.extra == "dropout":
        return
    call, arrays = _call(case.small())
    got = call()
    error = textbook.gradient_error([*map(_back, got[:3]), *map(np.asarray, got[3:])], case.small(), list(map(_back, arrays)))
    yield "gradient", (_call(case)[0], error)

"""JAX: jax.nn.dot_product_attention, compiled. Its layout is [B, T, H, D]; backward is measured as gradient minus forward."""

import functools
import itertools
import os

import numpy as np

NAME = "JAX"


def settings(threads):
    """Must run before jax is imported, which reads the flags once."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax  # noqa: F401

    return f"jit, {threads} thread(s) by affinity and XLA_FLAGS"


def version():
    import jax

    return jax.__version__


def variants(case):
    makers = {"forward": _forward, "decode": _forward, "backward": _gradient, "fwdbwd": _gradient, "linear": _linear}
    # JAX stores the S x S scores, several times for the gradient.
    too_long = case.q_len > 4096
    return dict(makers[case.kind](case)) if case.kind in makers and not too_long else {}


def attend(q, k, v, causal):
    import jax

    out = jax.nn.dot_product_attention(*(_to_jax(x, "f32") for x in (q, k, v)), is_causal=causal)
    return np.asarray(out).transpose(0, 2, 1, 3)


def _to_jax(x, dtype):
    import jax.numpy as jnp

    return jnp.asarray(np.ascontiguousarray(x.transpose(0, 2, 1, 3)), {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype])


def _back(x):
    return np.asarray(x, np.float32).transpose(0, 2, 1, 3)


def _options(case):
    import jax.numpy as jnp

    from . import textbook

    if case.extra == "window":
        return {"local_window_size": (case.window - 1, 0)}
    if case.extra == "lengths":
        return {"key_value_seq_lengths": jnp.asarray(case.key_lengths(), jnp.int32)}
    if case.causal and case.q_len != case.tk:
        return {"mask": jnp.asarray(textbook.keep_of(case)[:, None])}
    return {"is_causal": case.causal}


def _forward(case):
    import jax

    from . import textbook

    arrays = [_to_jax(x, case.dtype) for x in textbook.numbers(case)[:3]]
    attention = jax.jit(functools.partial(jax.nn.dot_product_attention, **_options(case)))
    caches = [arrays[1:]]
    if case.kind == "decode":
        caches += [[x + 0 for x in arrays[1:]] for _ in range(int(2**29 // case.cache_bytes()))]
    turns = itertools.cycle(caches)

    def run():
        return attention(arrays[0], *next(turns)).block_until_ready()

    rows, expected = textbook.rows_of(case, *(_back(x) for x in arrays))
    yield "dot_product_attention", (run, textbook.difference(_back(run())[-1, -1, rows], expected))


def _linear(case):
    import jax
    import jax.numpy as jnp

    from . import textbook

    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[case.dtype]
    x, weight, bias = (jnp.asarray(array, dtype) for array in textbook.linear_numbers(case)[:3])
    layer = jax.jit(lambda x, weight, bias: x @ weight.T + bias)

    def run():
        return layer(x, weight, bias).block_until_ready()

    exact = textbook.linear(*(np.asarray(array, np.float32) for array in (x, weight, bias)))
    yield "x @ weight.T + bias", (run, textbook.difference(np.asarray(run(), np.float32), exact))


def _gradient_call(case):
    """(compiled gradient, which contains the forward; its arguments)."""
    import jax
    import jax.numpy as jnp

    from . import textbook

    q, k, v, dout = (_to_jax(x, case.dtype) for x in textbook.numbers(case))
    options = _options(case)
    arguments = [q, k, v] + ([jnp.asarray(textbook.bias_of(case))] if case.extra == "bias" else [])

    def forward(q, k, v, bias=None):
        return jax.nn.dot_product_attention(q, k, v, bias=bias, **options)

    def gradient(dout, *arguments):
        return jax.vjp(forward, *arguments)[1](dout)

    return jax.jit(forward), jax.jit(gradient), dout, arguments


def _gradient(case):
    import jax

    from . import textbook

    if case.extra == "dropout":
        return
    small = case.small()
    _, gradient, dout, arguments = _gradient_call(small)
    got = gradient(dout, *arguments)
    expected = textbook.gradients(small, *(_back(x) for x in (*arguments[:3], dout)))[1:]
    back = [_back(x) for x in got[:3]] + [np.asarray(x) for x in got[3:]]
    error = max(textbook.difference(a, b) for a, b in zip(back, expected) if b is not None)

    forward, gradient, dout, arguments = _gradient_call(case)

    def run():
        return jax.block_until_ready(gradient(dout, *arguments))

    def run_forward():
        return jax.block_until_ready(forward(*arguments))

    if case.kind == "backward":
        yield "gradient - forward", (run, error, run_forward)
    else:
        yield "gradient", (run, error)

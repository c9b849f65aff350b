"""Linear attention, O(T D Dv): softmax's exp(q.k) is replaced by a product of feature maps. Formulas:
qkv/linear_attention.h."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _core
from ._arrays import check_inputs, dtype_name, empty, finish, sum_dtype
from ._options import require_64_bits

__all__ = ["LinearGradients", "LinearState", "linear_attention", "linear_attention_backward", "random_features"]

_WAYS = (
    "of linear attention, qkv.torch has the gated delta rule (qkv.torch.chunk_gated_delta_rule): for other forms, "
    "qkv.linear_attention_backward in a torch.autograd.Function gives gradients"
)
_WORDS = frozenset(("feature_map", "causal", "normalized", "scale", "form"))
operands = functools.partial(_arrays.operands, ways=_WAYS)


class LinearState(NamedTuple):
    """The sums over the keys so far: kv [B, Hkv, F, Dv], and z [B, Hkv, F] where normalised (otherwise None)."""

    kv: Any
    z: Any = None


class LinearGradients(NamedTuple):
    """The gradients from linear_attention_backward; None where there is nothing to differentiate."""

    dq: Any
    dk: Any
    dv: Any
    dlog_decay: Any = None
    dbeta: Any = None
    dinitial: LinearState | None = None


def _state(state: Any, name: str) -> LinearState:
    """Of a tuple (kv, z), or (kv,), that state; of None an empty one."""
    if state is None:
        return LinearState(None)
    if not isinstance(state, (tuple, list)) or not 1 <= len(state) <= 2:
        raise TypeError(f"[linear_attention] {name} must be a LinearState or a tuple (kv, z): got {type(state).__name__}")
    return LinearState(*state)


def _options(
    function: str, *, features: Any = None, log_decay: Any = None, beta: Any = None, state: Any = None, **words: Any
) -> Any:
    if not _WORDS.issuperset(words):
        known = sorted({*_WORDS, "features", "log_decay", "beta", "state"})
        raise TypeError(f"[{function}] {min(words.keys() - _WORDS)} is no option: there are {', '.join(known)}")
    if "scale" in words:
        _arrays.require_numbers(function, scale=words["scale"])
    kv, z = (None, None) if state is None else _state(state, "state")
    arrays = operands(features=features, log_decay=log_decay, beta=beta, **{"state.kv": kv, "state.z": z})
    return _core.LinearOptions(*arrays, **words)


def linear_attention(
    q: Any, k: Any, v: Any, *, return_state: bool = False, return_normalizer: bool = False, **options: Any
) -> Any:
    """phi(q) (phi(k)^T v), divided by phi(q) sum phi(k) where normalised.

    Args:
        q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv], float32 or float64 (fewer axes as in :func:`qkv.attention`).
            Value groups: where q and k have as many heads, v may have any multiple of them, Hv = G H; head h of v reads head h // G
            of q and k, and Hv replaces H and Hkv everywhere else.
        feature_map: "elu+1" (the default), "relu", "identity", "unit" (x / sqrt(|x|^2 + 1e-6)), or "softmax" with features [F, D] of
            :func:`random_features`.
        causal: False; True (Tq == Tk): a query sums the keys up to its own.  normalized: True; False: nothing is divided.
        scale: multiplies phi(q).phi(k), the normaliser too; default 1. Of "softmax" it multiplies q.k, default 1/sqrt(D).
        form, of a causal sum: "chunked" (the default), or "recurrent", token by token.
        log_decay [B|1, Hkv|1, T|1]: logarithm of each token's decay (RetNet, Mamba-2, gated), or with four axes, [B|1, Hkv|1, T|1, F],
            of each channel's (Kimi Delta Attention, GLA; causal, not normalized). beta [B|1, Hkv|1, T|1]: the delta rule.
        state: the :class:`LinearState` before the first key, or a tuple (kv, z); none: zeros.
    Returns:
        out [B, H, Tq, Dv], then the normaliser [B, H, Tq] (return_normalizer; None where not normalized) and the
        :class:`LinearState` after the last key (return_state).
    Raises:
        TypeError: for element types that are not supported or differ, an option that there is not, or a tensor as scale. ShapeError,
            OptionError (ValueErrors): for what does not fit. UnsupportedError (a NotImplementedError): for a decay, the delta rule or the
            form "recurrent" without causal; the delta rule or a decay of each channel where normalized.
    """
    shape = check_inputs("linear_attention", q=q, k=k, v=v)
    options = {name: x for name, x in options.items() if x is not None}  # None: as if it were not given
    made = _options("linear_attention", **options)
    normalized = options.get("normalized", True)
    features = options.get("features")
    width = shape[-1] if features is None else features.shape[0]
    rows = shape[:-1]
    if len(shape) > 2 and v.shape[-3] > k.shape[-3]:
        rows = (*shape[:-3], v.shape[-3], shape[-2])
    out = empty(q, (*rows, v.shape[-1]), dtype_name(q))
    normalizer = empty(q, rows, sum_dtype(q)) if return_normalizer and normalized else None
    kv = z = None
    if return_state:
        kv = empty(q, (*v.shape[:-2], width, v.shape[-1]), dtype_name(q))
        z = empty(q, (*v.shape[:-2], width), dtype_name(q)) if normalized else None
    results = {"out": out, "normalizer": normalizer, "state.kv": kv, "state.z": z}
    _core.linear_forward(made, *operands(q=q, k=k, v=v, **results))
    results = [finish(q, out)]
    if return_normalizer:
        results.append(finish(q, normalizer))
    if return_state:
        results.append(LinearState(finish(q, kv), finish(q, z)))
    return results[0] if len(results) == 1 else tuple(results)


def linear_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    normalizer: Any = None,
    *,
    dfinal: LinearState | None = None,
    **options: Any,
) -> LinearGradients:
    """Gradients of sum(out * dout) (+ sum(final state * dfinal)). out and normalizer are needed where normalised.

    options: as given to :func:`linear_attention`, which also says what is raised. dfinal: a :class:`LinearState`, or a tuple (kv, z).
    """
    check_inputs("linear_attention_backward", q=q, k=k, v=v, dout=dout)
    options = {name: x for name, x in options.items() if x is not None}
    made = _options("linear_attention_backward", **options)
    if options.get("normalized", True) and (out is None or normalizer is None):
        raise ValueError(
            "[linear_attention_backward] out and normalizer are needed where normalized: linear_attention(..., "
            "return_normalizer=True) gives both"
        )

    state, arrived = _state(options.get("state"), "state"), _state(dfinal, "dfinal")
    like = {"q": q, "k": k, "v": v, "log_decay": options.get("log_decay"), "beta": options.get("beta"), "kv": state.kv, "z": state.z}
    of = {f"d{name}": None if x is None else empty(q, tuple(x.shape), dtype_name(q)) for name, x in like.items()}
    more = {"dfinal.kv": arrived.kv, "dfinal.z": arrived.z}
    inputs = operands(q=q, k=k, v=v, out=out, normalizer=normalizer, dout=dout, **more)
    _core.linear_backward(made, *inputs, *operands(**of))
    dq, dk, dv, dlog_decay, dbeta, dkv, dz = (finish(q, x) for x in of.values())
    return LinearGradients(dq, dk, dv, dlog_decay, dbeta, None if dkv is None else LinearState(dkv, dz))


def random_features(shape: Sequence[int], seed: int, dtype: Any = np.float32) -> np.ndarray:
    """features [F, D] for feature_map="softmax": orthogonal blocks. A seed gives the same numbers on every machine."""
    require_64_bits("random_features", seed=seed)
    features = np.empty(tuple(shape), dtype)
    _core.random_features(seed, features)
    return features

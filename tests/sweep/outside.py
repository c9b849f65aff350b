"""Random options, shapes, layouts and masks from outside: on NumPy arrays qkv.attention and its gradients, linear attention and caches against
the formulas, within computed bounds; the bits again with other threads. outside.py --cases N [--first SEED] [--family NAME]: case SEED of a
family is the same everywhere; without a family, those of FAMILIES in turn. With --state FILE what was stopped goes on there. Not: products
(scripts/sweep).
"""

import argparse
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import qkv

sys.path.append(str(Path(__file__).parents[2] / "python" / "tests"))
from support import attend, expect_close  # noqa: E402


def leaf(draw: np.random.Generator, batch: int, heads: int, q_len: int, kv_len: int) -> tuple[qkv.Mask, Any]:
    """A condition and what it keeps, [B or 1, H or 1, Tq, Tk]."""
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)
    n, m = (int(x) for x in draw.integers(0, kv_len + 3, 2))
    lengths = draw.integers(0, kv_len + 1, batch)
    shift = kv_len - q_len
    kind = draw.integers(13)
    if kind == 0:
        return qkv.Mask.causal("bottom_right"), j <= i + shift
    if kind == 1:
        return qkv.Mask.window(n, m, "bottom_right"), (j >= i + shift - n) & (j <= i + shift + m)
    if kind == 2:
        return qkv.Mask.key_lengths([int(x) for x in lengths]), j < lengths[:, None, None, None]
    if kind == 3:
        return qkv.Mask.key_starts([int(x) for x in lengths]), j >= lengths[:, None, None, None]
    if kind == 4:
        return qkv.Mask.first(n), j < n
    if kind == 5:
        return qkv.Mask.global_rows([0, q_len - 1]), (i == 0) | (i == q_len - 1)
    if kind == 6:
        return qkv.Mask.dilated(n + 1, "bottom_right"), (j - i - shift) % (n + 1) == 0
    if kind == 7:
        return qkv.Mask.prefix([int(x) for x in lengths]), j < lengths[:, None, None, None]
    if kind == 8:
        q_ids, k_ids = draw.integers(0, 3, (batch, q_len)), draw.integers(0, 3, (batch, kv_len))
        return qkv.Mask.document_ids(q_ids, k_ids), (q_ids[:, :, None] == k_ids[:, None])[:, None]
    if kind == 9:
        index = draw.random((1, draw.choice([1, heads]), q_len, kv_len)).argsort(-1)[..., :5]
        index[draw.random(index.shape) < 0.2] = -1
        return qkv.Mask.keys(index), (index[..., None] == j).any(-2)
    keep = draw.random((draw.choice([1, batch]), draw.choice([1, heads]), q_len, kv_len)) < draw.choice([0.02, 0.5, 0.98])
    return (qkv.Mask.keep(keep), keep) if kind < 12 else (qkv.Mask.drop(~keep), keep)


def mask_of(draw: np.random.Generator, *sizes: int) -> tuple[qkv.Mask, Any]:
    mask, keep = leaf(draw, *sizes)
    while draw.random() < 0.4:
        other, kept = leaf(draw, *sizes)
        mask, keep = (mask & other, keep & kept) if draw.random() < 0.6 else (mask | other, keep | kept)
    return mask, keep


def strided(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The same numbers: contiguous, tokens before heads, or every other row of a larger array."""
    kind = draw.integers(3)
    if kind == 1:
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if kind == 2:
        return np.repeat(x, 2, axis=2)[:, :, ::2]
    return x


def again(draw: np.random.Generator, call: Any, out: np.ndarray) -> None:
    """The call has the same bits with another number of threads."""
    threads = qkv.num_threads()
    qkv.set_num_threads(int(draw.integers(1, 9)))
    np.testing.assert_array_equal(call(), out)
    qkv.set_num_threads(threads)


def gradients(dout: Any, q: Any, k: Any, v: Any, weights: Any, options: dict[str, Any], dtype: Any, sizes: bool = False) -> list[np.ndarray]:
    """dq, dk, dv by the formula in dtype; sizes: instead, the largest sums of their terms made positive."""
    batch, kv_heads, kv_len, _ = k.shape
    dout, q, k, v, weights = (x.astype(dtype) for x in (dout, q, k, v, weights))
    group = q.shape[1] // kv_heads
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scale, cap = dtype(options.get("scale", q.shape[-1] ** -0.5)), dtype(options.get("softcap", 0))
    if sizes:
        ds = weights * (abs(dout) @ abs(v).swapaxes(-1, -2))
        ds = scale * (ds + weights * ds.sum(-1, keepdims=True))
        dout, q, k = abs(dout), abs(q), abs(k)
    else:
        slope = 1 - np.tanh(scale * (q @ k.swapaxes(-1, -2)) / cap) ** 2 if cap else 1
        dp = dout @ v.swapaxes(-1, -2)
        ds = scale * weights * (dp - (weights * dp).sum(-1, keepdims=True)) * slope

    def of_keys(x: np.ndarray) -> np.ndarray:
        return x.reshape(batch, kv_heads, group, kv_len, -1).sum(2)

    return [ds @ k, of_keys(ds.swapaxes(-1, -2) @ q), of_keys(weights.swapaxes(-1, -2) @ dout)]


def attention(draw: np.random.Generator) -> None:
    batch, kv_heads, group = (int(x) for x in (draw.integers(1, 4), draw.integers(1, 4), draw.choice([1, 1, 2, 3, 8])))
    q_len, kv_len = (int(draw.choice([1, 2, draw.integers(1, 20), draw.integers(1, 150)])) for _ in range(2))
    width, v_width = (int(draw.choice([1, 8, 16, draw.integers(1, 80)])) for _ in range(2))
    heads, dtype = kv_heads * group, draw.choice([np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
    sums, eps = np.promote_types(dtype, np.float32).type, float(ml_dtypes.finfo(dtype).eps)
    size = draw.choice([0.1, 1, 1, 2])
    q, k, v, dout = (
        strided(draw, (draw.standard_normal((batch, h, t, d)) * x).astype(dtype))
        for h, t, d, x in (
            (heads, q_len, width, size),
            (kv_heads, kv_len, width, 1),
            (kv_heads, kv_len, v_width, 1),
            (heads, q_len, v_width, 1),
        )
    )
    options: dict[str, Any] = {}
    meaning: dict[str, Any] = {}
    if draw.random() < 0.8:
        options["mask"], meaning["keep"] = mask_of(draw, batch, heads, q_len, kv_len)
    for name, value in (("scale", float(draw.choice([0.01, 0.5]))), ("softcap", float(draw.choice([2, 30])))):
        if draw.random() < 0.3:
            options[name] = meaning[name] = value
    if draw.random() < 0.3:
        shape = [n if draw.random() < 0.6 else 1 for n in (batch, heads, q_len, kv_len)]
        options["bias"] = meaning["bias"] = draw.standard_normal(shape).astype(sums)
        if draw.random() < 0.3:
            options["bias"][draw.random(shape) < 0.2] = -np.inf
            meaning["keep"] = meaning.get("keep", True) & (options["bias"] > -np.inf)
    if draw.random() < 0.2:
        options["sinks"] = meaning["sinks"] = draw.standard_normal(heads).astype(sums)
    with np.errstate(all="ignore"):
        options["bits"] = str(draw.choice(["fast", "invariant"]))
        out, lse = qkv.attention(q, k, v, return_lse=True, **options)
        wide = np.longdouble if dtype is np.float64 else np.float64
        (exact, exact_lse, weights), (naive, naive_lse, _) = (attend(q, k, v, dtype=t, **meaning) for t in (wide, sums))
        # Of the largest score's terms too: a rounding of a score is one of its weight.
        score = 1 + options.get("scale", width**-0.5) * float(
            (abs(q.astype(sums)) @ abs(np.repeat(k, group, axis=1).astype(sums)).swapaxes(-1, -2)).max()
        )
        expect_close(out, exact, naive.astype(dtype), score * (weights @ abs(np.repeat(v, group, axis=1).astype(sums))), eps)
        expect_close(lse, exact_lse, naive_lse, np.full_like(exact_lse, score))
        found = qkv.attention_backward(dout, q, k, v, out, lse, **options)
        right, rough = (gradients(dout, q, k, v, weights, options, t) for t in (wide, sums))
        sizes = gradients(dout, q, k, v, weights, options, np.float64, sizes=True)
        # Weights are computed again from lse, whose rounding, eps / 2 of it, is one of theirs; expect_close counts 4 eps.
        score += float(abs(exact_lse[np.isfinite(exact_lse)]).max(initial=0)) / 8
        for got, exact, naive, size in zip((found.dq, found.dk, found.dv), right, rough, sizes, strict=True):
            expect_close(got, exact, naive.astype(dtype), score * size, eps, times=3)
        again(draw, lambda: qkv.attention(q, k, v, **options), out)


MAPS = {
    "elu+1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "identity": lambda x: x,
    "unit": lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + x.dtype.type(1e-6)),
}


def recurrence(p: dict[str, Any], kind: str, causal: bool, normalized: bool, dtype: Any, sizes: bool = False) -> list[np.ndarray]:
    """Linear attention token by token in dtype: out, then the state. sizes: the sums of terms made positive; of the delta rule those that are
    written, twice, as no more is erased."""
    p = {name: x.astype(dtype) for name, x in p.items()}
    q, k, v, kv, z = MAPS[kind](p["q"]) * p["scale"], MAPS[kind](p["k"]), p["v"], p["kv"], p["z"]
    if sizes:
        q, k, v, kv = (abs(x) for x in (q, k, v, kv))
    decay = np.exp(p["log_decay"])
    decay = np.broadcast_to(decay if decay.ndim == 4 else decay[..., None], k.shape)
    states, group = [], q.shape[1] // k.shape[1]
    for t in range(k.shape[2]):
        kv, z, value = decay[:, :, t, :, None] * kv, decay[:, :, t] * z, v[:, :, t]
        if "beta" in p:
            erased = -value if sizes else (k[:, :, t, None] @ kv)[:, :, 0]
            value = np.broadcast_to(p["beta"], k.shape[:3])[:, :, t, None] * (value - erased)
        kv, z = kv + k[:, :, t, :, None] * value[:, :, None], z + k[:, :, t]
        states.append((np.repeat(kv, group, 1), np.repeat(z, group, 1)))
    seen = states if causal else states[-1:] * q.shape[2]
    out = np.stack([(q[:, :, t, None] @ kv)[:, :, 0] for t, (kv, _) in enumerate(seen)], 2)
    if not normalized:
        return [out, kv]
    total = np.stack([(q[:, :, t] * z).sum(-1) for t, (_, z) in enumerate(seen)], 2)[..., None]
    return [np.divide(out, total, out=np.zeros_like(out), where=total > 0), kv, z]


def linear(draw: np.random.Generator) -> None:
    """Values, and of the gradients what they owe to a result that is linear in an input: sum(x * dx) = sum(results * theirs)."""
    batch, kv_heads, group = (int(x) for x in (draw.integers(1, 4), draw.integers(1, 4), draw.choice([1, 1, 2, 3])))
    kv_len, width, v_width = (int(draw.choice([1, draw.integers(1, n), n])) for n in (150, 24, 24))
    kind, causal, dtype = str(draw.choice(list(MAPS))), bool(draw.random() < 0.7), draw.choice([np.float32, np.float64])
    q_len = kv_len if causal else int(draw.integers(1, 40))
    normalized = bool(kind in ("elu+1", "relu") and draw.random() < 0.5)  # the others' sums may be 0
    scale = float(draw.choice([1, 1, 0.5]))
    options: dict[str, Any] = {"feature_map": kind, "causal": causal, "normalized": normalized, "scale": scale}
    q, k, v = (
        strided(draw, draw.standard_normal((batch, h, t, d)).astype(dtype))
        for h, t, d in ((kv_heads * group, q_len, width), (kv_heads, kv_len, width), (kv_heads, kv_len, v_width))
    )
    some = [int(n if draw.random() < 0.6 else 1) for n in (batch, kv_heads, kv_len)]
    if causal and draw.random() < 0.6:
        channels = [width] if not normalized and draw.random() < 0.4 else []
        options["log_decay"] = (-draw.random([*some, *channels]) * draw.choice([0.1, 1, 9])).astype(dtype)
    if causal and kind in ("identity", "unit") and draw.random() < 0.4:  # keys of length 1: states stay bounded
        k, options["beta"] = MAPS["unit"](k), draw.random(some).astype(dtype)
    if causal and draw.random() < 0.3:
        options["form"] = "recurrent"
    kv, z = (draw.random((batch, kv_heads, width, *more)).astype(dtype) for more in ([v_width], []))
    with_state = draw.random() < 0.5
    if with_state:
        options["state"] = qkv.LinearState(kv, z if normalized else None)
    p = {"q": q, "k": k, "v": v, "kv": kv * with_state, "z": z * with_state, "log_decay": np.zeros((1, 1, 1)), "scale": np.array(scale)}
    p |= {name: options[name] for name in ("log_decay", "beta") if name in options}
    wide = np.float64 if dtype is np.float32 else np.longdouble
    exact, naive = (recurrence(p, kind, causal, normalized, t) for t in (wide, dtype))
    sizes = recurrence(p, kind, causal, normalized, wide, sizes=True)
    call = {"return_state": True, "return_normalizer": normalized, **options}
    out, *normalizer, state = qkv.linear_attention(q, k, v, **call)
    for got, right, rough, size in zip((out, *state), exact, naive, sizes, strict=False):
        expect_close(got, right, rough, size)
    dout, dkv = (draw.standard_normal(x.shape).astype(dtype) for x in (out, kv))
    dfinal = qkv.LinearState(dkv, np.zeros_like(z) if normalized else None)
    found = qkv.linear_attention_backward(dout, q, k, v, out, *normalizer, dfinal=dfinal, **options)
    # All results are linear in v and the state before; without a feature map out is in q, and without a state before all are in k.
    of_out, of_kv = (np.sum(d * x, dtype=wide) for d, x in ((dout, exact[0]), (dkv, exact[1])))
    pairs = [(found.dv, v, of_out + of_kv - (np.sum(found.dinitial.kv * kv, dtype=wide) if with_state else 0))]
    if kind == "identity":
        pairs.append((found.dq, q, of_out))
        if not with_state and "beta" not in options:
            pairs.append((found.dk, k, of_out + of_kv))
    size = sum(np.sum(abs(d) * x) for d, x in zip((dout, dkv), sizes, strict=False))
    for dx, x, right in pairs:
        error = abs(np.sum(dx.astype(wide) * x) - right)
        assert error <= 4 * np.finfo(dtype).eps * size, ("gradient", x.shape, error, size)
    again(draw, lambda: qkv.linear_attention(q, k, v, **call)[0], out)


def cache(draw: np.random.Generator) -> None:
    """Tokens arrive in pieces, some sequences are cut; what is attended to is what the cache says that it holds."""
    count, kv_heads, group = (int(x) for x in (draw.integers(1, 4), draw.integers(1, 4), draw.choice([1, 1, 2, 3, 8])))
    width, v_width = (int(draw.choice([8, 32, 64, draw.integers(1, 80)])) for _ in range(2))
    layout = str(draw.choice(["contiguous", "paged", "ring"]))
    storage = str(draw.choice(["float32", "float64"] if layout == "ring" else ["float32", "float64", "bfloat16", "float16", "int8", "int4"]))
    dtype = np.float64 if storage == "float64" else np.float32
    window, first, page = (int(x) for x in (draw.integers(1, 40), draw.integers(0, 4), draw.choice([1, 4, 16])))
    room = {
        "contiguous": {"capacity": 200},
        "paged": {"page_size": page, "pages": count * -(-200 // page)},
        "ring": {"window": window, "max_append": 20, "first": first},
    }[layout]
    held = qkv.KVCache(num_kv_heads=kv_heads, head_dim=width, v_head_dim=v_width, storage=storage, layout=layout, sequences=count, **room)
    given = [[np.empty((kv_heads, 0, d), dtype) for d in (width, v_width)] for _ in range(count)]
    last = 0
    for _ in range(int(draw.integers(1, 8))):
        chosen = [b for b in range(count) if draw.random() < 0.8] or [0]
        last = int(draw.choice([1, draw.integers(1, 21)]))
        k, v = (draw.standard_normal((len(chosen), kv_heads, last, d)).astype(dtype) for d in (width, v_width))
        held.append(k, v, chosen)
        for n, b in enumerate(chosen):
            given[b] = [np.concatenate(pair, 1) for pair in zip(given[b], (k[n], v[n]), strict=True)]
        if layout != "ring" and draw.random() < 0.2:
            keep = int(draw.integers(0, given[b][0].shape[1] + 1))
            held.truncate(b, keep)
            given[b] = [x[:, :keep] for x in given[b]]
    order = [int(b) for b in draw.permutation(chosen)] if layout == "ring" else [int(b) for b in draw.permutation(count)]
    q_len = int(draw.choice([1, draw.integers(1, last + 1)])) if layout == "ring" else int(draw.choice([1, draw.integers(1, 40)]))
    q = strided(draw, draw.standard_normal((len(order), kv_heads * group, q_len, width)).astype(dtype))
    options: dict[str, Any] = {"causal": "bottom_right"}
    left = window - 1
    if layout != "ring" and draw.random() < 0.4:
        left = int(draw.integers(0, 40))
        options = {"mask": qkv.Mask.window(left, 0, "bottom_right")}
    elif layout != "ring":
        left = 1000
    meaning: dict[str, Any] = {}
    for name, value in (("scale", float(draw.choice([0.01, 0.5]))), ("softcap", float(draw.choice([2, 30])))):
        if draw.random() < 0.3:
            options[name] = meaning[name] = value
    if draw.random() < 0.2:
        options["sinks"] = meaning["sinks"] = draw.standard_normal(kv_heads * group).astype(dtype)
    options |= {"bits": str(draw.choice(["fast", "invariant"])), "sequences": order}
    out, lse = qkv.attention(q, held, return_lse=True, **options)
    for n, b in enumerate(order):
        k, v = (x[None] for x in (given[b] if layout == "ring" else held.read(b)))
        assert k.shape[2] == held.length(b) == given[b][0].shape[1]
        i, j = np.arange(q_len)[:, None] + k.shape[2] - q_len, np.arange(k.shape[2])
        keep = (j <= i) & ((j >= i - left) | (j < (first if layout == "ring" else 0)))
        wide = np.float64 if dtype is np.float32 else np.longdouble
        exact, naive = (attend(q[n : n + 1], k, v, keep=keep, dtype=t, **meaning) for t in (wide, dtype))
        scores = abs(q[n : n + 1]) @ abs(np.repeat(k, group, axis=1)).swapaxes(-1, -2)
        score = 1 + options.get("scale", width**-0.5) * float(scores.max(initial=0))
        expect_close(out[n : n + 1], exact[0], naive[0], score * (exact[2] @ abs(np.repeat(v, group, axis=1))))
        expect_close(lse[n : n + 1], exact[1], naive[1], np.full_like(exact[1], score))
    again(draw, lambda: qkv.attention(q, held, **options), out)


FAMILIES = {"attention": attention, "linear": linear, "cache": cache}


def result(of: tuple[str, int]) -> str:
    """Nothing, "refused", or what is wrong."""
    family, seed = of
    try:
        FAMILIES[family](np.random.default_rng(seed))
    except (qkv.OptionError, qkv.UnsupportedError):  # lengths beside an alignment, for example
        return "refused"
    except Exception as error:  # noqa: BLE001
        return f"{family}, case {seed}: {type(error).__name__}: {error}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    end = options.first + options.cases
    state = options.state.read_text() if options.state and options.state.exists() else f"{options.first} 0 0"
    first, refused, failed = map(int, state.split())
    families = [options.family] if options.family else [*FAMILIES]
    numbered = ((families[seed % len(families)], seed) for seed in range(first, end))
    with get_context("spawn").Pool() as pool:  # a process for each CPU
        for number, found in enumerate(pool.imap(result, numbered, chunksize=64), first + 1):
            refused += found == "refused"
            if found not in ("", "refused"):
                failed += 1
                print(found, flush=True)
            if options.state and (number % 1000 == 0 or number == end):
                options.state.write_text(f"{number} {refused} {failed}")
    print(f"figure: {options.cases} cases of {', '.join(families)}: {refused} refused, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

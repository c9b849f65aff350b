"""Random options, shapes, layouts and masks from outside: qkv.attention and its gradients on NumPy arrays against the formula, within computed
bounds; the bits again with other threads. outside.py --cases N [--first SEED]: case SEED is the same everywhere. With --state FILE what was stopped
goes on there. Not: products (scripts/sweep).
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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


def case(seed: int) -> None:
    draw = np.random.default_rng(seed)
    batch, kv_heads, group = (int(x) for x in (draw.integers(1, 4), draw.integers(1, 4), draw.choice([1, 1, 2, 3, 8])))
    q_len, kv_len = (int(draw.choice([1, 2, draw.integers(1, 20), draw.integers(1, 150)])) for _ in range(2))
    width, v_width = (int(draw.choice([1, 8, 16, draw.integers(1, 80)])) for _ in range(2))
    heads, dtype = kv_heads * group, draw.choice([np.float32, np.float32, np.float64])
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
        options["bias"] = meaning["bias"] = draw.standard_normal(shape).astype(dtype)
        if draw.random() < 0.3:
            options["bias"][draw.random(shape) < 0.2] = -np.inf
            meaning["keep"] = meaning.get("keep", True) & (options["bias"] > -np.inf)
    if draw.random() < 0.2:
        options["sinks"] = meaning["sinks"] = draw.standard_normal(heads).astype(dtype)
    with np.errstate(all="ignore"):
        options["bits"] = str(draw.choice(["fast", "invariant"]))
        out, lse = qkv.attention(q, k, v, return_lse=True, **options)
        wide = np.float64 if dtype is np.float32 else np.longdouble
        (exact, exact_lse, weights), (naive, naive_lse, _) = (attend(q, k, v, dtype=t, **meaning) for t in (wide, dtype))
        # Of the largest score's terms too: a rounding of a score is one of its weight.
        score = 1 + options.get("scale", width**-0.5) * float(
            (abs(q) @ abs(np.repeat(k, group, axis=1)).swapaxes(-1, -2)).max()
        )
        expect_close(out, exact, naive, score * (weights @ abs(np.repeat(v, group, axis=1))))
        expect_close(lse, exact_lse, naive_lse, np.full_like(exact_lse, score))
        found = qkv.attention_backward(dout, q, k, v, out, lse, **options)
        right, rough = (gradients(dout, q, k, v, weights, options, t) for t in (wide, dtype))
        sizes = gradients(dout, q, k, v, weights, options, np.float64, sizes=True)
        # Weights are computed again from lse, whose rounding, eps / 2 of it, is one of theirs; expect_close counts 4 eps.
        score += float(abs(exact_lse[np.isfinite(exact_lse)]).max(initial=0)) / 8
        for got, exact, naive, size in zip((found.dq, found.dk, found.dv), right, rough, sizes, strict=True):
            expect_close(got, exact, naive, score * size, times=3)
        threads = qkv.num_threads()
        qkv.set_num_threads(int(draw.integers(1, 9)))
        np.testing.assert_array_equal(qkv.attention(q, k, v, **options), out)
        qkv.set_num_threads(threads)


def result(seed: int) -> str:
    """Nothing, "refused", or what is wrong."""
    try:
        case(seed)
    except (qkv.OptionError, qkv.UnsupportedError):  # lengths beside an alignment, for example
        return "refused"
    except Exception as error:  # noqa: BLE001
        return f"case {seed}: {type(error).__name__}: {error}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    end = options.first + options.cases
    state = options.state.read_text() if options.state and options.state.exists() else f"{options.first} 0 0"
    first, refused, failed = map(int, state.split())
    with get_context("spawn").Pool() as pool:  # a process for each CPU
        for number, found in enumerate(pool.imap(result, range(first, end), chunksize=64), first + 1):
            refused += found == "refused"
            if found not in ("", "refused"):
                failed += 1
                print(found, flush=True)
            if options.state and (number % 1000 == 0 or number == end):
                options.state.write_text(f"{number} {refused} {failed}")
    print(f"figure: {options.cases} cases, forward and backward: {refused} refused, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

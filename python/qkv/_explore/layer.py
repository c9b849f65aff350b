"""One call of attention, captured: statistics, maps, the kinds of its heads, and q, k, lse of the heads that are wanted exactly. Not:
who calls (qkv.transformers, qkv.torch), files (file.py).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import _attention as functional
from .. import _nn
from ..capture import Capture, Captured
from .formula import Formula, numbers_of

WHOLE = 512  # queries and keys up to which every weight is kept
SIDE = 128  # blocks on a side of a map of more
SMALL = 64  # of Captured.map, unless another is asked for
_CHECKED = 8  # rows of an exact head that are compared with the kernel's


@dataclass
class Kind:
    """The kind of one head (docs/explore.md)."""

    kind: str
    share: float | None  #: that speaks for it; None: mixed
    first: float  #: mass on the first keys, learned sinks included
    shares: dict[str, float] = field(default_factory=dict)  #: of every kind that could be asked for


@dataclass(frozen=True)
class Wanted:
    """Captures of one call. ids [B, Tk], live [B, Tq]: token numbers of the keys, and which queries are tokens; None: not
    known. first: how many keys are set apart, None: one, of an image those before its patches; image: how many those are (until the
    layer's length is known: at most), height and width of the patches."""

    heads: tuple[int, ...] = ()
    capture: Capture | None = None  #: instead of the usual one
    exact: tuple[int, ...] = ()  #: none: of up to 128 tokens the clearest of each kind
    ids: np.ndarray | None = field(default=None, repr=False)
    live: np.ndarray | None = field(default=None, repr=False)
    first: int | None = None
    image: tuple[int, int, int] | None = None
    whole: bool = True  #: every weight, where there are few enough


def image_in(length: int, image: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
    """`image` (at most so many tokens before its patches, height, width) with as many as `length` tokens leave; None: they are others."""
    if image is None:
        return None
    most, height, width = image
    before = length - height * width
    return (before, height, width) if 0 <= before <= most else None


@dataclass
class Exact:
    """Inputs from which a page recomputes weights: q [B, n, Tq, D], k [B, m, Tk, D], lse [B, n, Tq], float32."""

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    q: np.ndarray = field(repr=False)
    k: np.ndarray = field(repr=False)
    lse: np.ndarray = field(repr=False)
    error: float = 0.0  #: largest difference from the kernel's weights, relative to a weight, on a few rows


@dataclass
class Layer:
    """The results of one call. Arrays are [B, heads, ...]; heads: those captured."""

    index: int
    name: str
    heads: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    q_len: int
    kv_len: int
    cross: bool  #: queries and keys are of two texts
    offsets: list[int]  #: [B]: the key at which query 0 stands
    pages: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = field(repr=False)  #: [B]: the page's formula and its tensors
    captured: Captured = field(repr=False)
    map: np.ndarray | None = field(default=None, repr=False)  #: means over a row's queries, float32
    weights: np.ndarray | None = field(default=None, repr=False)  #: [B, heads, Tq, Tk] as bytes, see coded()
    weights_error: float = 0.0
    exact: Exact | None = None
    kinds: list[Kind] | None = None  #: over all sequences
    live: np.ndarray | None = field(default=None, repr=False)  #: [B, Tq]: which queries are tokens
    writes: Any = None  #: what the heads write (writes.py); None: not known


def coded(weights: np.ndarray) -> np.ndarray:
    """Bytes: round(254 sqrt(w)), 255 is NaN (docs/explorer-file.md)."""
    with np.errstate(invalid="ignore"):
        roots = np.rint(254 * np.sqrt(np.clip(weights, 0, 1)))
    return np.where(np.isnan(roots), 255, roots).astype(np.uint8)


def decoded(codes: np.ndarray) -> np.ndarray:
    """The values that bytes stand for, float32."""
    values = np.square(np.arange(256, dtype=np.float32) / 254)
    values[255] = np.nan
    return values[codes]


def block_means(sums: np.ndarray, q_len: int) -> np.ndarray:
    """Sums over blocks [..., R, C] -> means over the queries of each row, float32."""
    rows = sums.shape[-2]
    counts = np.bincount(np.arange(q_len) * rows // q_len, minlength=rows)
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)


def merged(sums: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Neighbours on an axis joined to `size` sums; fewer stay as they are."""
    now = sums.shape[axis]
    if now <= size:
        return sums
    return np.add.reduceat(sums, np.searchsorted(np.arange(now) * size // now, np.arange(size)), axis)


def capture_call(
    index: int, name: str, q: Any, k: Any, v: Any, bias: Any, sinks: Any, out: Any, options: Mapping[str, Any], wanted: Wanted, *,
    cross: bool = False,
) -> Layer:  # fmt: skip
    """Attention of one call, into out, and what it showed. Arguments as qkv.attention's: q [B, H, Tq, D], k [B, Hkv, Tk, D]."""
    batch, num_heads, q_len, _ = q.shape
    num_kv_heads, kv_len = k.shape[1], k.shape[2]
    formula = Formula(q.shape, kv_len, options, bias, sinks, cross=cross)
    capture = wanted.capture or _usual(formula, wanted)
    # The rows that exact heads are compared with come along, where every such head is captured.
    usual = wanted.capture is None and set(wanted.exact) <= set(wanted.heads or range(num_heads))
    is_short = usual and wanted.whole and formula.why is None and 0 < max(q_len, kv_len) <= SIDE
    if usual and wanted.exact or is_short:
        capture = replace(capture, rows=_checked_rows(q_len))
    heads = tuple(int(h) for h in capture.heads) or tuple(range(num_heads))
    _, lse, captured = functional.attention(
        q, k, v, bias=bias, sinks=sinks, out=out, return_lse=True, weights=capture, **options
    )
    offsets = [kv_len - q_len if formula.why else formula.offset(b) for b in range(batch)]
    layer = Layer(index, name, heads, num_heads, num_kv_heads, q_len, kv_len, cross, offsets, [], captured, live=wanted.live)
    if usual:
        layer.captured = replace(captured, rows=None)
    if captured.map is not None and capture.of == "weights" and q_len and kv_len:
        if wanted.capture is None and captured.map.shape[2:] == (q_len, kv_len) and wanted.whole:
            layer.weights = coded(captured.map)
            layer.weights_error = float(np.nanmax(abs(decoded(layer.weights) - captured.map), initial=0.0))
        if wanted.capture is None:
            sizes = min(q_len, SMALL), min(kv_len, SMALL)
            blocks = (min(q_len, SIDE), min(kv_len, SIDE)) if captured.map.shape[2:] != (q_len, kv_len) else sizes
            small = merged(merged(captured.map, 2, sizes[0]), 3, sizes[1])
            layer.map = block_means(captured.map if blocks == captured.map.shape[2:] else small, q_len)
            layer.captured = replace(layer.captured, map=small)
        else:
            layer.map = block_means(captured.map, q_len)
    if wanted.capture is None and formula.why is None and captured.entropy is not None:
        layer.kinds = _kinds(layer, captured, formula, q, k, lse, wanted)
    exact = wanted.exact or (_clearest(layer) if is_short else ())
    if exact:
        layer.exact = _exact(layer, formula, q, k, v, bias, sinks, lse, options, exact, captured.rows if usual else None)
        if layer.exact.error > 0.05 and wanted.exact:
            formula.why = f"weights computed again from q, k and lse differ by {layer.exact.error:.2g}"
            warnings.warn(f"layer {index}: {formula.why} from the kernel's; the page does not show them as exact", stacklevel=3)
        elif layer.exact.error > 0.05:  # nobody asked for it
            layer.exact = None
    # Not the formula itself: it holds masks and biases of the call.
    layer.pages = [formula.page(b, layer.exact.heads if layer.exact else ()) for b in range(batch)]
    return layer


def _usual(formula: Formula, wanted: Wanted) -> Capture:
    q_len, kv_len = formula.q_len, formula.kv_len
    side = WHOLE if max(q_len, kv_len) <= WHOLE and wanted.whole else SIDE
    offsets: Sequence[int] = ()
    if formula.why is None:
        offsets = [formula.offset(b) for b in range(formula.batch)]
        offsets = () if all(n == kv_len - q_len for n in offsets) else offsets
    size = (min(q_len, side), min(kv_len, side)) if q_len and kv_len else None
    return Capture(heads=wanted.heads, statistics=True, column_mass=True, map=size, offsets=offsets)


def _checked_rows(q_len: int) -> list[int]:
    return sorted({int(n) for n in np.linspace(0, q_len - 1, _CHECKED)}) if q_len else []


def _kinds(layer: Layer, captured: Captured, formula: Formula, q: Any, k: Any, lse: Any, wanted: Wanted) -> list[Kind]:
    calls = []
    for b in range(formula.batch):
        more: dict[str, Any] = {"entropy": captured.entropy[b], "sink": captured.sink[b]}  # type: ignore[index]
        if wanted.live is not None:
            more["rows"] = np.flatnonzero(wanted.live[b]).tolist()
        if wanted.ids is not None:
            more["ids"] = wanted.ids[b if len(wanted.ids) > 1 else 0].tolist()
        calls.append(formula.call(b, layer.heads, q, k, lse, **more))
    before, *grid = wanted.image or (1, 0, 0)
    apart = before if wanted.first is None else wanted.first
    found = _nn.kinds_of_heads(calls, min(apart, layer.kv_len), tuple(grid) if apart == before else (0, 0))
    return [Kind(kind, share, first, {"first": first, **shares}) for kind, share, first, shares in found]


def _clearest(layer: Layer) -> tuple[int, ...]:
    """Of each kind but first and diffuse the head with the largest share; where there is none, the mixed one that comes nearest to a kind."""
    dull = ("first", "diffuse")

    def share(kind: Kind) -> float:
        return max((x for name, x in kind.shares.items() if name not in dull), default=0.0) if kind.share is None else kind.share

    ordered = sorted(zip(layer.kinds or (), layer.heads), key=lambda pair: share(pair[0]))
    found = {kind.kind: head for kind, head in ordered if kind.kind not in dull}
    return tuple(head for kind, head in found.items() if kind != "mixed" or len(found) == 1)


def _exact(
    layer: Layer, formula: Formula, q: Any, k: Any, v: Any, bias: Any, sinks: Any, lse: Any, options: Mapping[str, Any],
    wanted: Sequence[int], own_rows: np.ndarray | None,
) -> Exact:  # fmt: skip
    """own_rows [B, heads, rows, Tk]: the kernel's weights of _checked_rows, where they were captured already."""
    group = layer.num_heads // layer.num_kv_heads
    for head in wanted:
        if not 0 <= head < layer.num_heads:
            raise ValueError(f"[capture] exact: layer {layer.index} has heads 0..{layer.num_heads - 1}: got {head}")
    heads = tuple(sorted(set(wanted)))
    kv_heads = tuple(sorted({head // group for head in heads}))
    arrays = [np.array(numbers_of(x), np.float32) for x in (q[:, list(heads)], k[:, list(kv_heads)], lse[:, list(heads)])]
    exact = Exact(heads, kv_heads, *arrays)
    if formula.why is not None or not layer.q_len or not layer.kv_len:
        return exact
    rows = _checked_rows(layer.q_len)
    if own_rows is None:
        options = {**options, "dropout": 0.0}
        _, captured = functional.attention(q, k, v, bias=bias, sinks=sinks, weights=Capture(heads=heads, rows=rows), **options)
        own_rows = captured.rows
    else:
        own_rows = own_rows[:, [layer.heads.index(head) for head in heads]]
    for b in range(formula.batch):
        again, kernel = formula.call(b, heads, q, k, lse).weights_of_rows(rows), own_rows[b]
        alive = np.isfinite(exact.lse[b][:, rows])  # rows without keys are what empty_row says
        with np.errstate(invalid="ignore"):
            error = abs(again - kernel) / np.maximum(kernel, 1e-4)
        exact.error = max(exact.error, float(error[alive].max(initial=0.0)))
    return exact

"""qkv.plot: files, notebooks, terminals, matplotlib; what pictures hold is read back from SVG and matplotlib's own artists."""

import builtins
import importlib.util
import io
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import qkv
from qkv.plotting import AttentionMap, Picture
from support import numbers

DRAWS = qkv.plotting._nn.draws_text() or importlib.util.find_spec("matplotlib") is not None


def causal_weights(*heads: int, length: int = 6) -> np.ndarray:
    q = numbers(1, 1, int(np.prod(heads, initial=1)), length, 8)
    _, w = qkv.attention(q, q, q, causal=True, weights="all")
    return w.reshape(*heads, length, length)


def test_shapes() -> None:
    for shape in ((), (3,), (1, 3)):
        assert isinstance(qkv.plot(causal_weights(*shape)), Picture)
    assert isinstance(qkv.plot(causal_weights(2, 3), layers=range(2)), Picture)
    assert isinstance(qkv.plot(AttentionMap(causal_weights(2, 3))), Picture)
    q, k = numbers(1, 1, 2, 3, 8), numbers(2, 1, 2, 5, 8)
    _, w = qkv.attention(q, k, k, weights="all")
    picture = qkv.plot(w[0], "abc", key_tokens=["k0", "k1", "k2", "k3", "k4"])
    assert all(f">{label}<" in picture.svg() for label in ("a", "b", "c", "k0", "k4"))
    assert "3 queries x 5 keys" in repr(picture)


@pytest.mark.parametrize("framework", ("numpy", "torch"))
def test_a_batch_is_not_layers(framework: str) -> None:
    w: Any = causal_weights(2, 3)
    w[1] = w[1].swapaxes(-1, -2)
    batch = pytest.importorskip("torch").from_numpy(w) if framework == "torch" else w
    with pytest.raises(ValueError, match=r"may count sequences or layers: got \[2, 3, 6, 6\]; sequence=0 .*layers=range\(2\)"):
        qkv.plot(batch)
    for sequence in (0, 1, -1):
        picture = qkv.plot(batch, sequence=sequence)
        assert picture.svg() == qkv.plot(w[sequence]).svg() and "layer" not in picture.svg()
    with pytest.raises(ValueError, match=r"0\.\.1: got 2"):
        qkv.plot(batch, sequence=2)
    with pytest.raises(qkv.OptionError, match=r"0 \.\. 2: got 0 and 9"):
        qkv.plot(np.ones((3, 5, 5), np.float32)).statistics(0, 9)
    with pytest.raises(ValueError, match="sequence chooses"):
        qkv.plot(w[0], sequence=0)


def test_files(tmp_path: Path) -> None:
    w = causal_weights(2)
    starts = {".svg": b"<svg", ".html": b"<!DOCTYPE html>"}
    if DRAWS:
        starts |= {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-1."}
    for ending, start in starts.items():
        path = tmp_path / ("map" + ending)
        picture = qkv.plot(w, "attend", path=path)
        assert path.read_bytes().startswith(start)
        picture.save(tmp_path / ("again" + ending.upper()))
    with pytest.raises(ValueError, match=r"\.png"):
        qkv.plot(w, path=tmp_path / "map.jpg")
    with pytest.raises(OSError, match="nowhere"):
        qkv.plot(w, path=tmp_path / "nowhere" / "map.svg")
    assert len(list(tmp_path.iterdir())) == 2 * len(starts)


needs_pixels = pytest.mark.skipif(not DRAWS, reason="neither Pango nor matplotlib draws PNG")


def width_of(png: bytes) -> int:
    return int.from_bytes(png[16:20], "big")


@needs_pixels
def test_pixels(tmp_path: Path) -> None:
    """A file of more pixels, and the same one each time."""
    picture = qkv.plot(causal_weights(2), "attend")
    assert picture.png() == picture.png(1) and picture.pdf() == picture.pdf()
    picture.save(tmp_path / "map.png", pixel_ratio=2)
    # Each width is rounded to whole pixels.
    assert abs(width_of((tmp_path / "map.png").read_bytes()) - 2 * width_of(picture.png())) <= 2
    for wrong in (0.5, 9, float("nan")):
        with pytest.raises(ValueError, match=r"1 \.\. 8"):
            picture.png(wrong)
    with pytest.raises(ValueError, match="pixel_ratio is for .png"):
        picture.save(tmp_path / "map.svg", pixel_ratio=2)


def test_svg_is_xml() -> None:
    """Whatever the tokens, the numbers and the sizes; cells of large maps are images."""
    tokens = ["<script>alert(1)</script>", "\"'&]]>", "\x1b[31m", "\0\1\x7f", "\ufffe", "</text><img>", "\u202e", "a\n\t"]
    nan = causal_weights()
    nan[2] = np.nan
    for w, labels in ((causal_weights(length=8), tokens), (causal_weights(2, length=100), None), (nan, None),
                      (np.zeros((1, 0, 3), np.float32), None), (np.zeros((1, 3, 0), np.float32), None)):  # fmt: skip
        root = ElementTree.fromstring(qkv.plot(w, labels, title=tokens[0]).svg())
        assert {one.tag.rpartition("}")[2] for one in root.iter()} <= {"svg", "title", "rect", "text", "g", "image", "style"}
    with pytest.raises(ElementTree.ParseError):
        ElementTree.fromstring("<a>&x;</a>")


@needs_pixels
def test_characters_that_no_font_has() -> None:
    """U+0378 is no character: the warning names it once for a picture."""
    picture = qkv.plot(causal_weights(length=3), ["a", "\u0378", "\u0378"])
    for draw in (picture.png, picture.pdf):
        with pytest.warns(UserWarning, match=r"U\+0378.*boxes") as warned:
            draw()
        assert len(warned) == 1


def test_notebooks() -> None:
    picture = qkv.plot(causal_weights(2), "attend", title='<"a" & b>')
    page = picture._repr_html_()
    assert page.startswith("<iframe srcdoc=") and page.count('"') == len(re.findall(r'\w+="[^"]*"', page)) * 2
    if DRAWS:
        assert picture._repr_png_().startswith(b"\x89PNG")
    shown = AttentionMap(causal_weights(2), "attend", "a title")
    assert shown._repr_html_().startswith("<iframe") and repr(shown) == "AttentionMap([2, 6, 6], 'a title')"


def test_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = qkv.plot(causal_weights(), list("attend"))
    assert "100" in str(picture) and "\x1b" not in str(picture)
    assert "\x1b[" in picture.terminal(colour=True, columns=80)
    assert max(map(len, qkv.plot(causal_weights(4, length=30)).terminal(columns=60).splitlines())) <= 60
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in picture.terminal(columns=80)


def test_arrays_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    w = causal_weights(2)
    assert qkv.plot(torch.tensor(w)).svg() == qkv.plot(w).svg() == qkv.plot(w.astype(np.float64)).svg()
    assert isinstance(qkv.plot(torch.tensor(w, requires_grad=True).bfloat16()).svg(), str)


def test_errors() -> None:
    w = causal_weights(2)
    for call, kind, words in (
        (lambda: qkv.plot(w[0, 0]), ValueError, "Tq, Tk"),
        (lambda: qkv.plot(-w), ValueError, "at least 0"),
        (lambda: qkv.plot(w, "abc"), ValueError, "3"),
        (lambda: qkv.plot(w, range="all"), ValueError, "unit"),
        (lambda: qkv.plot(w, scale="log"), ValueError, "sqrt"),
        (lambda: qkv.plot(w, heads=[2]), ValueError, r"heads must lie in 0\.\.1: got \[2\]"),
        (lambda: qkv.plot(causal_weights(2, 3), layers=[-1]), ValueError, r"layers must lie in 0\.\.1: got \[-1\]"),
        (lambda: qkv.plot(w, heads=1), TypeError, "heads must be a sequence of whole numbers"),
        (lambda: qkv.plot(np.ma.masked_greater(w, 0.5)), TypeError, "a masked one"),
        (lambda: qkv.plot(None), TypeError, "numbers: got object"),
        (lambda: qkv.plot(0.5), ValueError, r"got \[\]"),
        (lambda: qkv.plot(np.array(["a"])), TypeError, "numbers"),
    ):
        with pytest.raises(kind, match=words):
            call()


def test_a_figure_has_the_numbers_of_the_picture() -> None:
    pytest.importorskip("matplotlib")
    picture = qkv.plot(np.array([[0.997, 0.003, 0], [0.5, 0.5, 0], [0.125, 0.875, 0]]), "abc")
    drawn = [text.get_text() for text in picture.figure.axes[0].texts]
    assert drawn == ["100", "0", "50", "50", "13", "88"] == [x for x in re.findall(r">(\d+)</text>", picture.svg()) if x]


class Shell(io.StringIO):
    """As IDLE's: it says that it is a terminal, and the process has none."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stdout", [None, Shell()])
def test_a_terminal_that_is_none(stdout: Any, monkeypatch: Any) -> None:
    picture = qkv.plot(causal_weights(2))
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert picture.terminal(colour=False) == picture._core.terminal(False, False, 100)
    assert ("\x1b" in str(picture)) == (stdout is not None and not os.environ.get("NO_COLOR"))


def test_tensors_that_are_not_their_memory() -> None:
    torch = pytest.importorskip("torch")
    w = torch.tensor(causal_weights(2))
    assert qkv.plot(torch._neg_view(-w)).svg() == qkv.plot(w).svg()
    with pytest.raises(TypeError, match="numbers: got torch.complex64"):
        qkv.plot(w.to(torch.complex64))


def test_labels_and_flags_of_other_types() -> None:
    half = chr(0xD83D)  # of a pair, as JSON may hold it
    for tokens in (half + "bcdef", [half, *"bcdef"]):
        picture = qkv.plot(causal_weights(2), tokens, title=half, numbers=np.False_)
        assert picture.svg() == qkv.plot(causal_weights(2), "?bcdef", title="?", numbers=False).svg()
    with pytest.raises(TypeError):
        qkv.plot(causal_weights(2), numbers="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 0, 0), (1, 0, 3), (2, 3, 0)])
def test_a_figure_of_nothing_says_so(shape: tuple[int, ...], monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    picture = qkv.plot(np.zeros(shape, np.float32), key_tokens=["a"] * shape[2])
    said = [text.get_text() for axis in picture.figure.axes for text in axis.texts]
    assert said == ["no keys" if shape[1] else "no queries"] * shape[0]
    monkeypatch.setattr(qkv.plotting._nn, "draws_text", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert picture.png()[:4] == b"\x89PNG" and picture.pdf()[:4] == b"%PDF"


def test_figure() -> None:
    pytest.importorskip("matplotlib")
    w = causal_weights(2)
    figure = qkv.plot(w, "att$nd", title="two heads").figure
    panels = [axis for axis in figure.axes if axis.images]
    assert len(panels) == 2 and figure._suptitle.get_text() == "two heads"
    for head, axis in enumerate(panels):
        assert np.array_equal(axis.images[0].get_array(), w[head])
        assert [t.get_text() for t in axis.get_xticklabels()] == ["a", "t", "t", r"\$", "n", "d"]
        assert axis.get_title() == f"head {head}"
    figure.canvas.draw()
    one = qkv.plot(w, heads=[1], scale="linear").figure
    assert np.array_equal(next(a for a in one.axes if a.images).images[0].get_array(), w[1])
    texts = {t.get_text() for a in one.axes for t in a.texts}
    assert texts == {f"{100 * x:.0f}" for x in w[1].ravel() if x >= 0.005}


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_matplotlib(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    picture = qkv.plot(causal_weights())
    assert picture.figure is None
    if qkv.plotting._nn.draws_text():
        assert picture.png().startswith(b"\x89PNG")
        return
    for draw in (picture.png, picture.pdf):
        with pytest.raises(ImportError, match=r"pip install matplotlib, or write .svg or .html"):
            draw()
    with pytest.raises(qkv.UnsupportedError, match=r"without Pango: write .svg or .html; .*pip install matplotlib.*QKV_TEXT=pango"):
        picture._core.png(1.0)
    assert picture._repr_png_() is None and picture.svg().startswith("<svg")

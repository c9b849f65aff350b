"""Objects in a notebook (tables of HTML), and the message of a part of the package says that lacks its library."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import qkv
from support import problem


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html}</div>")  # well-formed, one tree


def test_masks_show_their_squares() -> None:
    found = parsed(qkv.Mask.causal()._repr_html_())
    rows = [[cell.get("style", "") for cell in row] for row in found.iter("tr")]
    kept = np.array([["transparent" not in style for style in row] for row in rows])
    assert np.array_equal(kept, np.tri(len(kept), dtype=bool))
    assert found.findtext("code") == "causal()" or "causal" in (found.findtext("code") or "")
    large = qkv.Mask.keep(np.ones((1, 1, 50, 50), bool))._repr_html_()
    assert large == "<code>keep[1, 1, 50, 50]</code>"


def test_captures_show_a_row_for_each_array() -> None:
    q, k, v = problem(1, 2, 3, 5, 5, 8)
    _, maps = qkv.attention(q, k, v, causal=True, weights=qkv.Capture(statistics=True, top_k=2))
    rows = [[cell.text for cell in row] for row in parsed(maps._repr_html_()).iter("tr")]
    assert rows[0] == ["captured", "shape", "smallest", "mean", "largest"]
    table = {row[0]: row[1:] for row in rows[1:]}
    assert table["entropy"][0] == "[2, 3, 5]" and float(table["entropy"][2] or "") == pytest.approx(
        maps.entropy.mean(), abs=5e-4
    )
    assert {"self", "top_weights", "top_keys"} < set(table) and "map" not in table


def test_captures_of_models_show_the_explorer() -> None:
    """The page itself; the statistics where a page cannot be made, of chosen heads."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import qkv.transformers

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=10)
    model = transformers.AutoModelForCausalLM.from_config(config)
    maps = qkv.transformers.capture_attention(model, torch.arange(6)[None])
    frame = parsed(maps._repr_html_().replace(" sandbox=", " data-sandbox=")).find("iframe")
    assert frame is not None and (frame.get("srcdoc") or "").split() == maps.html().split()  # XML joins an attribute's lines
    assert "Content-Security-Policy" in maps.html()
    one = qkv.transformers.capture_attention(model, torch.arange(6)[None], heads=[1])
    rows = [[cell.text for cell in row] for row in parsed(one._repr_html_()).iter("tr")]
    assert rows[0][:3] == ["layer", "head", "entropy_nats"] and len(rows) == 3
    assert "entropy_nats" in maps.table()


@pytest.mark.parametrize(
    ("part", "library", "install"),
    (("torch", "torch", "torch"), ("jax", "jax", "jax"), ("transformers", "transformers", "transformers torch"), ("transformers", "torch", "transformers torch")),
)  # fmt: skip
def test_a_library_that_is_not_there(part: str, library: str, install: str) -> None:
    others = (
        "import types; sys.modules.setdefault('transformers', types.ModuleType('transformers'));" if library == "torch" else ""
    )
    program = f"import sys; sys.modules[{library!r}] = None; {others}\nimport qkv\nqkv.{part}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said == f"ImportError: qkv.{part} needs {library}: pip install {install}"
    assert "During handling" not in done.stderr

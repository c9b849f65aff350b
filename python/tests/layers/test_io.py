"""qkv.io and state dicts in files: round trips, the reference packages' readings of the same bytes, errors."""

import os
from pathlib import Path

import numpy as np
import pytest
import qkv
from qkv import io, nn
from support import numbers

TYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def every_type() -> dict[str, np.ndarray]:
    arrays = {name: (10 * numbers(1, 3, 4)).astype(name) for name in TYPES}
    return arrays | {"nothing": np.empty((0, 3), np.float32), "number": np.array(2.5), "turned": numbers(2, 4, 6)[:, ::2].T}


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    given = every_type()
    io.save_safetensors(path, given, {"what": "a test"})
    found = io.load_safetensors(path)
    assert found.metadata == {"what": "a test"} and list(found) == list(given)
    for name, array in given.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name
        found[name][...] = 0  # owned, writable
    theirs = pytest.importorskip("safetensors.numpy").load_file(path)
    assert all(np.array_equal(theirs[name], array) and theirs[name].shape == array.shape for name, array in given.items())


def test_empty_and_masked_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    io.save_safetensors(tmp_path / "e.safetensors", {"e": np.zeros((0, 3), np.float32), "one": np.ones(2)})
    assert io.load_safetensors(tmp_path / "e.safetensors", framework="torch")["e"].shape == (0, 3)
    with pytest.raises(TypeError, match="m must be a plain array: got a masked one"):
        io.save_safetensors(tmp_path / "m.safetensors", {"m": np.ma.masked_equal(np.arange(3.0), 1)})


def test_bfloat16(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = numbers(1, 5, 3).astype(ml_dtypes.bfloat16)
    io.save_safetensors(tmp_path / "b.safetensors", {"x": x})
    found = io.load_safetensors(tmp_path / "b.safetensors")["x"]
    assert found.dtype == x.dtype and np.array_equal(found.view(np.uint16), x.view(np.uint16))


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    given = {
        "w": torch.randn(3, 4).bfloat16(),
        "n": torch.arange(5),
        "t": torch.randn(4, 3).T,
        "b": torch.tensor([True, False]),
    }
    io.save_safetensors(tmp_path / "t.safetensors", given)
    found = io.load_safetensors(tmp_path / "t.safetensors", framework="torch")
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in given.items())
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file

    assert all(torch.equal(tensor, given[name]) for name, tensor in load_file(tmp_path / "t.safetensors").items())
    with pytest.raises(ValueError, match="framework"):
        io.load_safetensors(tmp_path / "t.safetensors", framework="jax")


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        io.load_safetensors(tmp_path / "nowhere")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\x04\0\0\0\0\0\0\0{}??")
    with pytest.raises(qkv.FormatError, match="byte"):
        io.load_safetensors(bad)
    with pytest.raises(TypeError, match="complex64"):
        io.save_safetensors(bad, {"x": np.zeros(3, np.complex64)})
    with pytest.raises(TypeError, match="state_dict"):
        io.save_safetensors(bad, nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metadata must be strings by name: got 'a': 1"):
        io.save_safetensors(bad, {}, {"a": 1})  # type: ignore[dict-item]
    assert os.listdir(tmp_path) == ["bad.safetensors"]


def test_paths_that_the_extension_cannot_take(tmp_path: Path) -> None:
    """C would end a path at its NUL and write another file."""
    for name, said in ((f"{tmp_path}/a\0.safetensors", "NUL"), (f"{tmp_path}/{chr(0xDCFF)}.safetensors", "UTF-8")):
        layer, model = nn.Linear(2, 2), qkv.AttentionLM()
        calls = [lambda p: qkv.io.save_safetensors(p, {"a": np.ones(2)}), qkv.io.load_safetensors, layer.save, layer.load, model.save,
                 qkv.AttentionLM.from_file, lambda p: qkv.plot(np.eye(2)).save(p.replace("safetensors", "svg"))]  # fmt: skip
        for call in calls:
            with pytest.raises(ValueError, match=said):
                call(name)
    assert not list(tmp_path.iterdir())


def test_layers_in_files(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    layer, x = nn.MultiHeadAttention(12, 3, seed=1), numbers(1, 2, 5, 12)
    layer.save(path)
    other = nn.MultiHeadAttention(12, 3, seed=2)
    assert not np.array_equal(other(x), layer(x))
    other.load(path)
    assert np.array_equal(other(x), layer(x))
    again = nn.MultiHeadAttention.from_state_dict(io.load_safetensors(path), num_heads=3)
    assert np.array_equal(again(x), layer(x))
    prefixed = {"block.attn." + name: array for name, array in layer.state_dict().items()} | {"head": numbers(1, 3)}
    other = nn.MultiHeadAttention(12, 3, seed=2)
    other.load_state_dict(prefixed, prefix="block.attn.")
    assert np.array_equal(other(x), layer(x))
    assert list(layer.state_dict("a."))[0] == "a.q_proj.weight"


def test_the_tool_reads_the_same_state(tmp_path: Path) -> None:
    """`qkv layer` on saved parameters and x gives the bits of Python."""
    import subprocess

    from qkv.__main__ import TOOL

    if not TOOL.is_file():
        pytest.skip("the tool is not in the package")
    layer, x = nn.SelfAttentionV4(12, seed=1), numbers(1, 2, 5, 12)
    layer.save(tmp_path / "s.safetensors")
    np.save(tmp_path / "x.npy", x)
    command = [TOOL, "layer", "v4", "--state", "s.safetensors", "--x", "x.npy", "--out", "y.npy", "--causal"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), layer(x, causal=True))

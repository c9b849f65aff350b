"""The runner's safetensors files: read back as written, and by the format's own library."""

from pathlib import Path

import numpy as np
import pytest
from qkv._judge.runner import files

TENSORS = {
    "x": np.arange(6.0).reshape(2, 3),
    "narrow": np.arange(4, dtype=np.float32),
    "tokens": np.array([[1, 2], [3, 4]], np.int64),
    "short": np.array([7], np.int32),
    "mask": np.array([True, False, True]),
    "loss": np.float64(2.5),
    "nothing": np.zeros((0, 3)),
}


def test_the_format_is_the_format(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="x must have one of the types F64, F32, I64, I32, BOOL: got complex128"):
        files.write(tmp_path / "a.safetensors", files.encode({"x": np.zeros(2, complex)}))
    library = pytest.importorskip("safetensors.numpy")
    files.write(tmp_path / "a.safetensors", files.encode(TENSORS, {"name": "掩码"}))
    own, metadata = files.read(tmp_path / "a.safetensors")
    assert metadata == {"name": "掩码"} and [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    for found in (library.load_file(tmp_path / "a.safetensors"), own):
        assert all(found[name].dtype == np.asarray(value).dtype and np.array_equal(found[name], value) for name, value in TENSORS.items())
    library.save_file({"x": np.arange(3.0)}, tmp_path / "b.safetensors", metadata={"call": "forward"})
    tensors, metadata = files.read(tmp_path / "b.safetensors")
    assert np.array_equal(tensors["x"], np.arange(3.0)) and metadata == {"call": "forward"}


def test_the_runner_stands_alone() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(files.__file__).parent.glob("*.py"))
    assert "import qkv" not in text and "from qkv" not in text and "import torch\n" not in text

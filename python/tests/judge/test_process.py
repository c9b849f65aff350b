"""The runner as the tool starts it: a folder that is executed, files, and a channel on descriptors 3 and 4."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner import files
from support_judge import RUNNER, attend, close, written

SDPA = """
import numpy as np

def sdpa(q, k, v, mask=None):
    print("a line", q)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = scores if mask is None else np.where(mask, scores, -1e20)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, weights
"""


class Run:
    """A child process and the tool's ends of its channel, on descriptors 3 and 4."""

    def __init__(self, folder: Path, text: str, **request: Any) -> None:
        self.folder = folder / "exchange"
        self.folder.mkdir()
        file = written(folder, text)
        (self.folder / "request.json").write_text(json.dumps({"file": file, "name": None, "task": None, **request}))
        down, self.to_child = os.pipe()
        self.from_child, up = os.pipe()
        script = f"exec 3<&{down} 4>&{up} {down}<&- {up}>&-; exec {sys.executable} -I -B {RUNNER} {self.folder}"
        self.output = [folder / "stdout", folder / "stderr"]
        with open(self.output[0], "w") as out, open(self.output[1], "w") as err:
            self.child = subprocess.Popen(
                ["bash", "-c", script], pass_fds=(down, up), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        os.close(down)
        os.close(up)
        self.reader = os.fdopen(self.from_child)

    def line(self) -> str:
        return self.reader.readline().strip()

    def say(self, line: str) -> None:
        os.write(self.to_child, f"{line}\n".encode())

    def end(self) -> tuple[int, str, str]:
        os.close(self.to_child)
        try:
            self.child.wait(timeout=60)
        finally:
            self.child.kill()
            self.reader.close()
        return self.child.returncode, self.output[0].read_text(), self.output[1].read_text()

    def subject(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "subject.json").read_text(encoding="utf-8"))
        return found


def probe(run: Run, number: int, tensors: dict[str, np.ndarray], **metadata: str) -> None:
    said = {"task": "sdpa", "call": "forward", "causal": "0", **metadata}
    files.write(run.folder / f"probe-{number}.safetensors", files.encode(tensors, said))


def test_an_exchange(tmp_path: Path) -> None:
    run = Run(tmp_path, SDPA)
    assert run.line() == "ready"
    subject = run.subject()
    assert (subject["name"], subject["kind"], subject["framework"], subject["task"], subject["line"]) == ("sdpa", "function", "numpy", "sdpa", 4)
    assert subject["sizes"] == {"embed": 18, "heads": 3, "kv_heads": 3, "head_dim": 6}
    assert subject["assignments"][0]["convention"] is None
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((2, 3, 5, 6)), rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((2, 3, 7, 6))
    mask = rng.random((2, 1, 5, 7)) < 0.7
    mask[..., 0] = True
    for number in range(11):  # ten comes after nine, not after one
        probe(run, number, {"q": q, "k": k, "v": v, **({"mask": mask} if number else {})})
    run.say("run")
    assert run.line() == "done"
    code, out, err = run.end()
    assert code == 0 and err == "" and "a line" in out
    for number in range(11):
        found, notes = files.read(run.folder / f"answer-{number}.safetensors")
        wanted = attend(q, k, v, mask if number else True)
        assert not notes
        close(found["out"], wanted[0])
        close(found["weights"], wanted[1])


def test_the_channel_is_not_where_the_code_can_print(tmp_path: Path) -> None:
    text = "import os\nfor descriptor in (3, 4):\n    try:\n        os.write(descriptor, b'ready\\n')\n        raise SystemExit('open')\n    except OSError:\n        pass\n"
    run = Run(tmp_path, text + SDPA)
    assert run.line() == "ready"
    assert "verdict" not in run.subject()
    assert run.end()[0] == 0 and not list(run.folder.glob("answer-*"))  # the channel ended before "run"


@pytest.mark.parametrize("text", ["import sys\nsys.exit(0)", "raise KeyboardInterrupt", "1 / 0", "def sdpa(q, k, v):\n    raise SystemExit"])
def test_a_file_that_fails(tmp_path: Path, text: str) -> None:
    run = Run(tmp_path, text)
    assert run.line() == "ready"
    assert run.subject()["verdict"] == "failed" and run.subject()["says"]
    assert run.end()[0] == 0


def test_an_unfilled_file(tmp_path: Path) -> None:
    run = Run(tmp_path, "def sdpa(q, k, v, mask=None):\n    raise NotImplementedError('fill in: everything')\n")
    assert run.line() == "ready"
    said = {"verdict": "unfilled", "says": "not filled in yet: fill in: everything", "traceback": ""}
    assert run.subject() == {**said, "file": str(tmp_path / "mine.py"), "name": "sdpa", "task": "sdpa"}
    run.end()


def test_what_leaves_a_call_is_an_error_of_this_call(tmp_path: Path) -> None:
    text = "def sdpa(q, k, v):\n    if q.shape[0] == 1:\n        raise KeyboardInterrupt\n    if q.shape[0] == 3:\n        raise SystemExit(7)\n    return q\n"
    run = Run(tmp_path, text)
    assert run.line() == "ready"
    for number in range(3):
        one = np.ones((number + 1, 3, 5, 6))
        probe(run, number, {"q": one, "k": one, "v": one})
    run.say("run")
    assert run.line() == "done"
    run.end()
    notes = [files.read(run.folder / f"answer-{number}.safetensors")[1].get("error") for number in range(3)]
    assert notes == ["the code raised KeyboardInterrupt", None, "the code called sys.exit(7)"]


def test_output_is_bounded_and_threads_do_not_hold_the_end(tmp_path: Path) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nfor _ in range(100000):\n    print('x' * 100)\n"
    run = Run(tmp_path, text + SDPA)
    assert run.line() == "ready"
    run.say("run")
    assert run.line() == "done"
    code, out, _ = run.end()
    assert code == 0 and len(out) <= 1 << 18


def test_assignments_have_folders(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
import torch, torch.nn as nn
class SelfAttentionV1(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.Wq, self.Wk, self.Wv = (nn.Parameter(torch.randn(dim, dim)) for _ in range(3))

    def forward(self, x):
        return x @ self.Wv
"""
    run = Run(tmp_path, text)
    assert run.line() == "ready"
    assert ["[out, in]" in one["label"] for one in run.subject()["assignments"]] == [False, True]
    rng = np.random.default_rng(0)
    tensors = {"x": rng.standard_normal((2, 5, 18)), **{f"W_{x}": rng.standard_normal((18, 18)) for x in "qkv"}}
    probe(run, 0, tensors, task="v1")
    run.say("run")
    assert run.line() == "done"
    run.end()
    first = files.read(run.folder / "answer-0.safetensors")[0]["out"]
    second = files.read(run.folder / "assignment-1" / "answer-0.safetensors")[0]["out"]
    close(first, tensors["x"] @ tensors["W_v"])
    close(second, tensors["x"] @ tensors["W_v"].T)

"""A rank of qkv.torch.parallel_attention that is killed or stopped: the others end soon, each with a line of qkv's own. Not: what
ranks compute (test_torch_parallel.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from qkv.torch import _watch

if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

RANK = """
import os, sys, time, torch, qkv, qkv.torch as qt
rank, store, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
qkv.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
x = torch.ones(1, 3, 96, 8)
qt.parallel_attention(x, x, x)
time.sleep(2 if number < 0 and rank == 2 else 0)     # longer than the silence that a dead rank is allowed
for call in range(10**9):
    if rank == 1 and call == 3 and number > 0:
        open(f"{store}.hit", "w").write(str(time.time()))
        os.kill(os.getpid(), number)
    try:
        qt.parallel_attention(x, x, x)
    except qkv.Error as error:
        line = str(error).splitlines()[0]
        hit = float(open(f"{store}.hit").read())
        print(f"{time.time() - hit} {line}", flush=True)
        sys.exit(1)
    if number < 0 and call == 3:
        break
"""


def ended(folder: Path, number: int) -> list[subprocess.CompletedProcess[str]]:
    """Three ranks, of which rank 1 gets the signal; below 0: none, and rank 2 is slow."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", _watch.VARIABLE: "1.5"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(folder / "store"), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(3)
    ]
    seen = []
    try:
        for rank in (0, 2, 1):
            if rank == 1 and number > 0:
                ranks[1].kill()
            out, err = ranks[rank].communicate(timeout=240)
            seen.append(subprocess.CompletedProcess(rank, ranks[rank].returncode, out, err))
    finally:
        for rank in ranks:
            rank.kill()
    return seen


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_ends_the_others(tmp_path: Path, number: int) -> None:
    for rank in ended(tmp_path, number)[:2]:
        assert rank.returncode == 1, rank.stderr
        seconds, line = rank.stdout.split(" ", 1)
        assert float(seconds) < 10
        assert line.startswith("[transport] rank ") and line.count("\n") == 1, line


def test_a_slow_rank_is_not_gone(tmp_path: Path) -> None:
    for rank in ended(tmp_path, -1):
        assert rank.returncode == 0, rank.stdout + rank.stderr


def test_the_silence_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watch.seconds_of_silence() == 8
    for text in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv(_watch.VARIABLE, text)
        with pytest.raises(ValueError, match="seconds above 0"):
            _watch.seconds_of_silence()

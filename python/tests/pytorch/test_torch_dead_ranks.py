"""A rank of qkv.torch.parallel_attention that is killed or stopped: the others end soon, each with a line of qkv's own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from qkv.torch import _watch
from support_torch import started_once

if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)


def rank_of(rank: int, store: Path, number: int) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", _watch.VARIABLE: "1.5"}
    torch.set_num_threads(1)
    qkv.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    x = torch.ones(1, 3, 96, 8)
    qt.parallel_attention(x, x, x)
    time.sleep(2 if number < 0 and rank == 2 else 0)  # longer than the silence that a dead rank is allowed
    for call in range(10**9):
        if rank == 1 and call == 3 and number > 0:
            os.kill(os.getpid(), number)
        try:
            qt.parallel_attention(x, x, x)
        except qkv.Error as error:
            Path(f"{store}.{rank}").write_text(str(error).splitlines()[0])
            os._exit(1)
        if number < 0 and call == 3:
            os._exit(0)  # PyTorch's own end waits for itself now and then


def ended(folder: Path, number: int) -> list[tuple[int | None, str]]:
    """(exit code, what it said) of ranks 0 and 2 of three, of which rank 1 gets the signal; below 0: none, and rank 2 is slow."""
    store, starts = folder / "store", started_once()
    ranks = [starts.Process(target=rank_of, args=(rank, store, number)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    try:
        for rank in (ranks[0], ranks[2]):
            rank.join(120)
    finally:
        for rank in ranks:
            rank.kill()
    said = [Path(f"{store}.{n}") for n in (0, 2)]
    return [(ranks[n].exitcode, path.read_text() if path.exists() else "") for n, path in zip((0, 2), said)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_ends_the_others(tmp_path: Path, number: int) -> None:
    for code, line in ended(tmp_path, number):
        assert code == 1 and line.startswith("[transport] rank "), line


def test_a_slow_rank_is_not_gone(tmp_path: Path) -> None:
    assert ended(tmp_path, -1) == [(0, ""), (0, "")]


def test_the_silence_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watch.seconds_of_silence() == 8
    for text in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv(_watch.VARIABLE, text)
        with pytest.raises(ValueError, match="seconds above 0"):
            _watch.seconds_of_silence()

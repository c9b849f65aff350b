"""Heartbeats of torch.distributed's ranks, through the store that they met at: a rank that has ended or is stopped becomes an error
on the others in seconds, where gloo would wait for its own timeout (30 minutes).

A thread of each rank says that its process lives, however long its work takes: a slow rank is not gone. Only ranks that wait for another
ask, so one that has done its work may leave.
"""

import atexit
import os
import sys
import threading
import time

import torch.distributed as dist

#: The variable of the environment that sets the seconds of silence after which a rank is gone.
VARIABLE = "QKV_RANKS_TIMEOUT"


def seconds_of_silence() -> float:
    """8, or what the environment says. ValueError where that is not a number above 0."""
    text = os.environ.get(VARIABLE, "8")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"[{VARIABLE}] must be a number of seconds above 0: got {text!r}")
    return seconds


class Gone(RuntimeError):
    """A rank is gone while this one waits for it. A process that notices ends with code 1, whatever it does then."""

    raised = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        Gone.raised = True


@atexit.register
def _leave() -> None:
    """Ends a process that has lost a rank: gloo's threads wait for that rank, and Python's and PyTorch's own end for them, or they abort."""
    if Gone.raised:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class Watch:
    """Watches over the ranks of a group, by their numbers in the world."""

    def __init__(self, store: dist.Store, mine: int, others: list[int]) -> None:
        self._timeout = seconds_of_silence()
        self._store, self._mine, self._others = store, mine, others
        self._heard: dict[int, tuple[bytes, float]] = {}  # rank: its last sign, and when it came
        self._round = time.monotonic()  # when the store last answered
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qkv-signs-of-life", daemon=True)
        self._thread.start()
        atexit.register(self._end)  # a thread within a call when Python ends could end it badly

    def check(self) -> None:
        """RuntimeError, in one line, where a rank has been silent for too long, or the store has."""
        now = time.monotonic()
        for rank, (_, since) in list(self._heard.items()):
            if now - since > self._timeout:
                raise Gone(
                    f"rank {rank} has ended, is stopped, or its connection is cut: every rank must send a heartbeat within "
                    f"{self._timeout:g} s ({VARIABLE})"
                )
        if now - self._round > self._timeout:
            raise Gone(
                f"the store of torch.distributed must answer within {self._timeout:g} s ({VARIABLE}): the process that holds it, "
                "rank 0 or torchrun, has ended, is stopped, or the connection is cut"
            )

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(self._timeout / 8 if count else 0):
            count += 1
            try:
                self._store.set(f"alive/{self._mine}", str(count))
                for rank in self._others:
                    key = f"alive/{rank}"
                    sign = self._store.get(key) if self._store.check([key]) else None
                    if sign is not None and self._heard.get(rank, (b"", 0.0))[0] != sign:
                        self._heard[rank] = sign, time.monotonic()
            except (RuntimeError, ValueError):  # the store is gone: check says so when its time is over
                continue
            self._round = time.monotonic()

    def _end(self) -> None:
        self._ended.set()
        self._thread.join(1)

"""torch.distributed's ranks as a transport of qkv's: bytes from one rank to another, over any backend that sends CPU tensors (gloo,
MPI).

gloo completes an operation only where somebody waits for it, so each direction to a peer has a thread that waits, in order. A rank that
is gone is an error in seconds (_watch.py).
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._watch import Gone, Watch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _Waits:
    """Waits for operations, in order. A daemon, which an operation that never ends does not keep from ending with its process."""

    def __init__(self, name: str) -> None:
        self._works: queue.SimpleQueue[tuple[Future[None], tuple[Any, ...]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, *work: Any) -> Future[None]:
        future: Future[None] = Future()
        self._works.put((future, work))
        return future

    def _run(self) -> None:
        while True:
            future, work = self._works.get()
            try:
                future.set_result(_wait(*work))
            except RuntimeError as error:
                future.set_exception(error)


class Ranks:
    """The transport of one process group. rank, size: this rank within the group, and how many there are."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._tickets = itertools.count()
        self._open: dict[int, Future[None] | None] = {}  # None: complete
        self._waiting: dict[tuple[str, int], _Waits] = {}
        self._to_itself: list[Any] = []  # sent, not received yet
        world = [dist.get_global_rank(group, rank) for rank in range(self.size)]
        mine = world.pop(self.rank)
        store = dist.distributed_c10d._get_default_store()
        store = store.clone() if hasattr(store, "clone") else store  # a connection of its own
        self._watch = Watch(dist.PrefixStore("qkv", store), mine, world)

    def send(self, to: int, memory: memoryview) -> int:
        """Starts to send; the bytes stay the caller's until poll says True. Returns a ticket."""
        if to == self.rank:
            self._to_itself.append(bytes(memory))
            return self._ticket(None)
        return self._start("send", to, memory)

    def receive(self, source: int, memory: memoryview) -> int:
        """Starts to receive into these bytes. Returns a ticket."""
        if source == self.rank:
            memory[:] = self._to_itself.pop(0)
            return self._ticket(None)
        return self._start("receive", source, memory)

    def poll(self, ticket: int) -> bool:
        """Whether the operation is complete. Raises what torch.distributed raised."""
        future = self._open.get(ticket)
        if future is not None and not future.done():
            self._watch.check()
            return False
        self._open.pop(ticket, None)
        if future is not None:
            future.result()
        return True

    def _ticket(self, future: Future[None] | None) -> int:
        number = next(self._tickets)
        if future is not None:
            self._open[number] = future
        return number

    def _start(self, direction: str, peer: int, memory: memoryview) -> int:
        if len(memory) == 0:  # both ends know the length
            return self._ticket(None)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        world_rank = dist.get_global_rank(self.group, peer)
        start = dist.isend if direction == "send" else dist.irecv
        try:
            work = start(tensor, world_rank, self.group)
        except RuntimeError as error:  # the connection was closed before this call
            raise _gone(direction, peer, error) from None
        waits = self._waiting.get((direction, peer))
        if waits is None:
            waits = self._waiting[direction, peer] = _Waits(f"qkv-{direction}-{peer}")
        return self._ticket(waits.submit(work, direction, peer, tensor))


def _wait(work: Any, direction: str, peer: int, _held: torch.Tensor) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _gone(direction, peer, error) from None


def _gone(direction: str, peer: int, error: RuntimeError) -> Gone:
    way = "to" if direction == "send" else "from"
    return Gone(f"rank {peer} is gone, or the connection to it: {direction} {way} it failed: {error}")


_of_group: weakref.WeakKeyDictionary[ProcessGroup, Ranks] = weakref.WeakKeyDictionary()


def ranks_of(function: str, group: ProcessGroup | None) -> Ranks:
    """The transport of a group, None: the default one. RuntimeError without torch.distributed, ValueError for a rank outside."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"[{function}] torch.distributed is not initialised: call torch.distributed.init_process_group('gloo') first, in a "
            "program that torchrun started"
        )
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"[{function}] this process must be a rank of group: got {group!r}")
    if group not in _of_group:
        _of_group[group] = Ranks(group)
    return _of_group[group]

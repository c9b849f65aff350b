"""The runner as a process of its own: request.json, subject.json, a line, the probes, the answers, a line. It reads from one folder
and writes to another, so that the tool writes nowhere that a person's code does. File descriptors 3 and 4 are the tool's; they move
elsewhere before any of the person's code runs."""

from __future__ import annotations

import fcntl
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from . import files
from .answering import answer, failure
from .describing import as_json, subject_of_file
from .errors import Stop, line_of
from .subject import Subject
from .trace.where import find_line

#: Above what a person's file opens by chance.
_FIRST_DESCRIPTOR = 64
#: Bytes that reach the file behind stdout or stderr; more is dropped, so that no limit on files ends the process.
_MOST_OUTPUT = 1 << 18


def _channel(descriptor: int, mode: str) -> Any:
    """Lines from the tool, or to it."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    os.close(descriptor)
    return open(moved, mode, buffering=1, encoding="utf-8")


class Bounded(io.RawIOBase):
    """What the person's code writes to a descriptor, up to a limit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._left = descriptor, _MOST_OUTPUT

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._left > 0:
            try:
                os.write(self._descriptor, bytes(data)[: self._left])
            except OSError:
                self._left = 0
            self._left -= size
        return size


def _printing(descriptor: int) -> io.TextIOWrapper:
    """As Python's own sys.stdout: it has .buffer, .fileno() and .reconfigure()."""
    return io.TextIOWrapper(Bounded(descriptor), "utf-8", "backslashreplace", write_through=True)  # type: ignore[type-var]


def run(subject: Subject, given: Path, folder: Path) -> None:
    """Answers every probe given, for every assignment. A KeyboardInterrupt is the code's: nobody else sends one to a
    process of its own."""
    probes = sorted(given.glob("probe-*.safetensors"), key=lambda path: int(path.stem.split("-")[1]))
    loaded = [(path.name.replace("probe", "answer"), *files.read(path)) for path in probes]
    for index in range(max(1, len(subject.assignments))):
        into = folder if index == 0 else folder / f"assignment-{index}"
        into.mkdir(exist_ok=True)
        for name, tensors, metadata in loaded:
            try:
                found, notes = answer(subject, tensors, metadata, index)
            except KeyboardInterrupt as error:
                found, notes = {}, failure(subject, error)
            files.write(into / name, files.encode(found, notes))


def watch(subject: Subject, given: Path, folder: Path, reading: int) -> None:
    """Writes line.json, of the probes that the textbook's stages lie beside."""
    found = sorted(given.glob("stages-*.safetensors"), key=lambda path: int(path.stem.split("-")[1]))
    probes = [(files.read(given / path.name.replace("stages", "probe")), files.read(path)) for path in found]
    files.write(folder / "line.json", json.dumps(find_line(subject, reading, probes)).encode())


def main(arguments: list[str]) -> None:
    reader, writer = _channel(3, "r"), _channel(4, "w")
    sys.stdout = sys.__stdout__ = _printing(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _printing(2)  # type: ignore[misc]
    sys.stdin = open(os.devnull, encoding="utf-8")
    given, folder = (Path(argument).resolve() for argument in arguments)
    request = json.loads((given / "request.json").read_text(encoding="utf-8"))
    sys.argv = [request["file"]]
    subject: Subject | None = None
    try:
        subject = subject_of_file(request)
        described = as_json(subject)
    except (Stop, KeyboardInterrupt) as error:
        described = (error if isinstance(error, Stop) else Stop(line_of(error))).as_json()
    files.write(folder / "subject.json", json.dumps(described).encode())
    writer.write("ready\n")
    if subject is not None and reader.readline() == "run\n":
        run(subject, given, folder)
        writer.write("done\n")
        order = reader.readline().split()
        if order[:1] == ["watch"]:
            watch(subject, given, folder, int(order[1]))
            writer.write("watched\n")
    os._exit(0)  # threads and exit handlers of the person's code have no say

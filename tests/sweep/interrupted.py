"""Long commands of the tool under signals at random moments and limits on the size of files, with a home that cannot be written: what ends leaves
no process, no temporary file and no part of an output. interrupted.py --tool build/release/qkv --rounds N [--first SEED].
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JUDGED = """import time
import numpy as np
def sdpa(q, k, v):
    time.sleep(0.01)
    s = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
"""
ATTEND = "attend --q t.npy --k t.npy --v t.npy --out out.npy --weights weights.npy --lse lse.npy"
COMMANDS = [
    "train --steps 100000 --out out.safetensors --map out.svg",
    "train --steps 20 --out out.safetensors --map out.html",
    "ablate --out out",
    "bench fwd-f32",
    "forms --length 2048",
    "judge mine.py",
    "map --out out.svg --out out.html",
    "practice sdpa",
    "mask causal --tq 500 --tk 500",
    ATTEND,
]


def npy(path: Path, *sizes: int) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {sizes}}}".ljust(117) + "\n"
    count = 4
    for size in sizes:
        count *= size
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(count))


def whole(path: Path) -> bool:
    """An output is there as a whole or not at all."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        length = int.from_bytes(data[:8], "little")
        return len(data) == 8 + length + max(
            one["data_offsets"][1] for name, one in json.loads(data[8 : 8 + length]).items() if name[0] != "_"
        )
    ends = {".svg": b"</svg>\n", ".html": b"</html>\n"}
    return data.endswith(ends.get(path.suffix, b"")) and len(data) > 0


def marked(mark: str) -> list[str]:
    """Processes that inherited the environment of a round."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes() and (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def round_of(seed: int, tool: str) -> str:
    """What is wrong; empty: nothing."""
    draw = random.Random(seed)
    command, limit = draw.choice(COMMANDS), draw.choice([None, int(10 ** draw.uniform(0, 5))])
    if "100000" in command or "out" not in command and "practice" not in command:
        limit = None  # it writes nothing, or after hours
    number = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    with tempfile.TemporaryDirectory() as folder:
        here, mark = Path(folder), f"QKV_ROUND={os.getpid()}.{seed}"
        (here / "tmp").mkdir()
        (here / "mine.py").write_text(JUDGED)
        npy(here / "t.npy", 1, 1, 1500, 8)
        given = {path.name for path in here.iterdir()}
        environment = dict(os.environ, HOME="/proc", TMPDIR=str(here / "tmp"), QKV_ROUND=mark.partition("=")[2])
        environment.pop("XDG_STATE_HOME", None)

        def before() -> None:
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which a job in the background inherits as ignored
                signal.signal(one, signal.SIG_DFL)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        started = subprocess.Popen(
            [tool, *command.split()],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before,
        )
        try:
            if limit is None:
                time.sleep(draw.uniform(0, 1) ** 2 * 1.5)
                started.send_signal(number)
            _, said = started.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()
            return f"{command}: not ended in a minute ({number.name if limit is None else limit})"
        code, how = (
            started.returncode,
            f"{command}, {number.name if limit is None else f'files of {limit} bytes'}, code {started.returncode}",
        )
        if code not in (0, 1, 2) and (limit is not None or code != -number):
            return f"{how}: ended by another signal"
        if code == 1 and (not said.startswith(b"qkv") or said.count(b"\n") != 1):
            return f"{how}: said {said[-300:]!r}"
        if marked(mark):
            time.sleep(1)  # the last children of a command that was killed end by themselves
            if marked(mark):
                return f"{how}: left processes {marked(mark)}"
        left = [path for path in here.rglob("*") if path.name not in given and path.is_file()]
        if any(path.parent == here / "tmp" or path.name.startswith(".") for path in left) or os.listdir(here / "tmp"):
            return f"{how}: left {[str(path.relative_to(here)) for path in left]}, {os.listdir(here / 'tmp')}"
        broken = [path.name for path in left if not whole(path)]
        return f"{how}: {broken} not whole" if broken else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    tool, failed = os.path.abspath(options.tool), 0
    for seed in range(options.first, options.first + options.rounds):
        if wrong := round_of(seed, tool):
            failed += 1
            print(f"round {seed}: {wrong}", flush=True)
    print(f"figure: {options.rounds} rounds of {len(COMMANDS)} commands: {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

"""Commands of the tool under signals at random moments and limits on the size of files, with a home that can be written and one that cannot:
what ends leaves no process, no temporary file, no part of an output; all of a command's outputs are new, or none.
interrupted.py --tool build/release/qkv --rounds N [--first SEED], by a Python that has the package: explore and what is judged run under it.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import qkv.io

MPIRUN = "mpirun --allow-run-as-root --bind-to none -n 2 {tool}"
SETTINGS = {  # as tests/cli/mpirun.h has them
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,vader", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
EXPLORE = "{python} -m qkv explore model --text 'the cat sat' --quiet"
ENDING = [
    "{tool} train --steps 20 --out out.safetensors --map out.html --map out.pdf",
    "{tool} ablate --out out",
    "{tool} judge mine.py --python {python} --sarif out.sarif",
    "{tool} judge --task sdpa --probes out",
    "{tool} practice next --numpy",
    "{tool} practice --watch mine.py --python {python}",
    "{tool} map model.safetensors --out out.svg --out out.html --out out.png --out out.pdf",
    "{tool} mask causal --tq 500 --tk 500 --out out.png",
    "{tool} attend --q t.npy --k t.npy --v t.npy --out out.npy --weights out.weights.npy --lse out.lse.npy",
    "{tool} layer average --x x.npy --dout x.npy --out out.npy --weights out.weights.npy --grads out.safetensors",
    "{tool} lesson --out out.html",
    "{tool} lesson 4 --draw",
    "{tool} explain --backward",
    EXPLORE + " --out out.html",
    MPIRUN + " train --steps 20 --parallel data --out out.safetensors",
    MPIRUN + " attend --parallel ring --in all.safetensors --out out.safetensors",
]
LASTING = [  # until the signal: by themselves after minutes, or never
    "{tool} train --steps 100000000 --out out.safetensors --map out.svg",
    "{tool} generate --model model.safetensors --prompt ab --tokens 100000000",
    "{tool} bench fwd-f32",
    "{tool} forms --length 2048",
    "{tool} judge --run 'sh slow.sh {{in}} {{out}}' --task sdpa",
    "{tool} practice --watch blank.py --python {python}",
    "{tool} practice --mock 1h --numpy --python {python}",
    EXPLORE + " --serve",
    MPIRUN + " train --steps 100000000 --parallel data --out out.safetensors",
]
MODEL = """
import sys, tokenizers, transformers as tf
tf.utils.logging.disable_progress_bar()
words = "<unk> the cat sat on a mat".split()
made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(sys.argv[1])
sizes = {"vocab_size": len(words), "bos_token_id": 0, "eos_token_id": 0, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
tf.GPT2LMHeadModel(tf.GPT2Config(**sizes)).save_pretrained(sys.argv[1])
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # mpirun does not pass the last one on
OLD, RECORD, DONE = b"old", "home/.local/state/qkv/practice", b"softmax\n"


def prepare(tool: str, here: Path) -> None:
    """What commands read; the record of exercises, one of which was done before."""
    np.save(here / "t.npy", t := np.zeros((1, 1, 1500, 8), np.float32))
    np.save(here / "x.npy", t[0, :, :500])
    qkv.io.save_safetensors(here / "all.safetensors", dict.fromkeys("qkv", t))
    (here / "slow.sh").write_text("setsid sleep 1000 &\nsleep 1000\n")
    for name, more in (("mine.py", ["--solution"]), ("blank.py", [])):
        (here / name).write_bytes(subprocess.check_output([tool, "practice", "sdpa", "--numpy", *more]))
    subprocess.run([tool, "train", "--steps", "1", "--out", here / "model.safetensors"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-c", MODEL, here / "model"], check=True)
    (here / RECORD).parent.mkdir(parents=True)
    (here / RECORD).write_bytes(DONE)


def whole(path: Path, tool: str) -> bool:
    """Not a part, by what the file says of its size, or by its end; of a kind that commands write."""
    data = path.read_bytes()
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                sizes, _, dtype = np.lib.format.read_array_header_1_0(file)
                return len(data) == file.tell() + math.prod(sizes) * dtype.itemsize
        if path.suffix == ".safetensors":
            length = int.from_bytes(data[:8], "little")
            last = [one["data_offsets"][1] for name, one in json.loads(data[8 : 8 + length]).items() if name[0] != "_"]
            return len(data) == 8 + length + max(last)
        if path.suffix == ".sarif":
            return bool(json.loads(data)["runs"])
        if path.suffix == ".py":  # "# qkv practice NAME --LANGUAGE ...": as it is printed
            return data == subprocess.check_output([tool, *data.decode().split()[2:5]])
    except (ValueError, subprocess.CalledProcessError):
        return False
    ends = {".svg": b"</svg>\n", ".html": b"</html>\n", ".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF\n"}
    return path.suffix in ends and data.endswith(ends[path.suffix])


def marked(mark: str, seconds: float = 0) -> list[str]:
    """Processes that inherited the environment of a round and are there after so many seconds still."""
    end = time.monotonic() + seconds
    while True:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (process / "environ").read_bytes() and (line := (process / "cmdline").read_bytes()):
                    found.append(f"{process.name} {line.decode(errors='replace').replace(chr(0), ' ')}")
            except OSError:
                continue
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def round_of(seed: int, tool: str, prepared: Path, command: str, seconds: float) -> tuple[str, str]:
    """How it ended, and what is wrong; empty: nothing. The signal comes within so many seconds; 0: neither it nor a limit."""
    draw = random.Random(f"{seed} {command}")
    writable, replaces, by_group = (draw.random() < 0.5 for _ in range(3))  # Ctrl-C reaches the whole group
    ranks, explore = "mpirun" in command, "explore" in command  # a limit would be on Open MPI's own files
    limited = seconds and draw.random() < 0.5 and (command in ENDING or "--mock" in command) and not ranks
    limit, number = int(10 ** draw.uniform(0, 6)) if limited else None, draw.choice(SIGNALS[: 3 if ranks else 4])
    stopped = seconds and (limit is None or command in LASTING)
    words = shlex.split(command.format(tool=shlex.quote(tool), python=shlex.quote(sys.executable)))
    with tempfile.TemporaryDirectory() as folder:
        here, mark = Path(folder), f"QKV_ROUND={os.getpid()}.{seed}."
        shutil.copytree(prepared, here, dirs_exist_ok=True)
        (here / "tmp").mkdir()
        outputs = {here / word: OLD if replaces else None for word in words if word.startswith("out.")}
        if replaces:
            for path in outputs:
                path.write_bytes(OLD)
        given = {path: path.read_bytes() for path in here.rglob("*") if path.is_file() and path not in outputs}
        environment = {name: value for name, value in os.environ.items() if name != "XDG_STATE_HOME"} | SETTINGS
        environment |= {"HOME": str(here / "home") if writable else "/proc", "TMPDIR": str(here / "tmp"), "QKV_ROUND": mark.partition("=")[2]}

        def before() -> None:
            for one in SIGNALS:  # which a job in the background inherits as ignored
                signal.signal(one, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        started = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before, start_new_session=True
        )
        how = f"{command}, {'old' if replaces else 'no'} outputs there{'' if limit is None else f', files of {limit} bytes'}"
        try:
            if stopped:
                time.sleep(draw.uniform(0, seconds))
                how += f", {number.name}{' to its group' if by_group else ''}"
                if started.poll() is None:
                    os.killpg(started.pid, number) if by_group else started.send_signal(number)
            _, said = started.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            return "failed", f"{how}: not ended in a minute, or its output is held open by {marked(mark)}"
        finally:
            left = marked(mark, 0 if started.returncode is None else 5)  # the last children of what was killed end by themselves
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.split()[0]), signal.SIGKILL)
            started.communicate()
        code, how = started.returncode, f"{how}, code {started.returncode}"
        # Code 2: nothing could be judged. mpirun, and qkv explore that Ctrl-C stops, end with a code of their own.
        allowed = {0} | ({1} if limit is not None else set()) | ({2} if limit is not None and "--python" in command else set())
        if stopped:
            allowed |= {-number} | ({1} if ranks else set()) | ({130} if explore and number == signal.SIGINT else set())
        if code not in allowed:
            return "failed", f"{how}: another code was expected; said {said[-300:]!r}"
        if (code == 1 or code == 2 and said) and not ranks and (not said.startswith(b"qkv") or said.count(b"\n") != 1):
            return "failed", f"{how}: said {said[-300:]!r}"
        if left:
            return "failed", f"{how}: left processes {left}"
        ours = [path.name for path in [*(here / "tmp").iterdir(), *here.rglob("*.tmp")] if "torchinductor" not in path.name]  # PyTorch's own
        if ours:
            return "failed", f"{how}: left {ours}"
        changed = [path.name for path, data in given.items() if path != here / RECORD and (not path.is_file() or path.read_bytes() != data)]
        if changed:
            return "failed", f"{how}: changed {changed}"
        new = [path for path, data in outputs.items() if (path.read_bytes() if path.exists() else None) != data]
        if len(new) < len(outputs) and (new or code == 0):
            return "failed", f"{how}: of its outputs new are only {[path.name for path in new]}"
        new += [path for path in here.rglob("*") if path.is_file() and path not in given and path not in outputs]
        broken = [path.name for path in new if not path.exists() or not whole(path, tool)]
        if broken:
            return "failed", f"{how}: {broken} not whole"
        record, right = (here / RECORD).read_bytes(), "mine.py" in command
        if record not in (DONE, DONE + b"sdpa\n" * (right and writable)) or record == DONE and right and writable and code == 0:
            return "failed", f"{how}: the record of exercises is {record!r}"
    return "done" if code == 0 else "stopped by a signal" if stopped else "refused by a limit", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    tool, ends = os.path.abspath(options.tool), collections.Counter(failed=0)
    with tempfile.TemporaryDirectory() as prepared:
        prepare(tool, Path(prepared))
        seconds = {command: 12 if "explore" in command else 2 for command in LASTING}
        for seed in range(-len(ENDING), options.rounds):  # first each whole, which takes its time
            command = ENDING[seed] if seed < 0 else random.Random(options.first + seed).choice(ENDING + LASTING)
            begin = time.monotonic()
            end, wrong = round_of(options.first + seed, tool, Path(prepared), command, seconds.get(command, 0))
            seconds.setdefault(command, 1.2 * (time.monotonic() - begin))
            ends[end] += 1
            if wrong:
                print(f"round {options.first + seed}: {wrong}", flush=True)
    print(f"figure: {options.rounds} rounds of {len(ENDING + LASTING)} commands: {', '.join(f'{n} {end}' for end, n in ends.items())}")
    sys.exit(ends["failed"] > 0)


if __name__ == "__main__":
    main()

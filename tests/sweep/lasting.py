"""Many calls of one process, as a server or a notebook makes them: after ten of each kind, what it holds is bounded. lasting.py --calls N."""

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import qkv
import qkv.standins
import torch
from qkv.__main__ import TOOL
from qkv.__main__ import main as tool

if qkv.standins.install("flash_attn", quiet=True):
    import flash_attn

WARM = 10  # calls of each kind before the first state
# What may grow from there to the middle, buffers and tables that are made once, and from the middle to the end; what is not named may not grow.
# In the second half of 10^5 calls each kind has 1,800, or half as many, the rarest 180: found is a kind that in each call keeps one allocation of C
# (32 bytes at least; of the rarest 90), one block of Python or one page (of the rarest 6 KiB). Calls that leak in the beginning alone: what keeps
# more than the first numbers in all.
BOUNDS = {"bytes of malloc": (160 << 10, 16 << 10), "blocks of Python": (2000, 150), "KiB resident": (4 << 10, 1 << 10)}


class Heap(ctypes.Structure):
    """malloc.h's mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap


def state(folder: str) -> dict[str, int]:
    qkv.set_num_threads(1)
    gc.collect(), libc.malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, tasks = libc.mallinfo2(), list(Path("/proc/self/task").iterdir())
    return {
        "bytes of malloc": now.uordblks + now.hblkhd,
        "blocks of Python": sys.getallocatedblocks(),
        "KiB resident": int(status["VmRSS"].split()[0]),
        "threads": len(tasks),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "files": sum(len(files) + len(folders) for _, folders, files in os.walk(folder)),
        "children": sum(len((task / "children").read_text().split()) for task in tasks),
    }


def kinds(folder: str) -> list[tuple[int, Callable[[int], Any]]]:
    """Calls, errors too, each with the number of rounds of which one has it; sizes vary with the call's number n."""
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine take many times as long
    numbers = np.random.default_rng(0).standard_normal((2, 4, 64, 16)).astype(np.float32)
    rows, leaf = numbers[0], torch.from_numpy(numbers).requires_grad_()
    file, model, source = (os.path.join(folder, name) for name in ("x.safetensors", "model.safetensors", "sdpa.py"))
    exercise = [TOOL, "practice", "sdpa", "--numpy", "--solution"]
    Path(source).write_bytes(subprocess.check_output(exercise))
    np.save(os.path.join(folder, "x.npy"), rows)
    lm = qkv.AttentionLM(width=8)
    lm.save(model)
    ours, plain = qkv.torch.MultiheadAttention(16, 2, batch_first=True), qkv.nn.Linear(16, 8)
    options = {"num_kv_heads": 4, "head_dim": 16, "sequences": 2}
    paged = {"layout": "paged", "page_size": 8, "pages": 24, "max_sequences": 3}
    forms = [{"capacity": 64}, {"layout": "ring", "window": 16, "max_append": 4}, paged]
    storages = ("float32", "bfloat16", "float16", "int8", "int4")
    caches = [qkv.KVCache(storage=storage, **options, **form) for form in forms for storage in storages]
    layers = [
        qkv.nn.AveragePooling(), qkv.nn.GroupedQueryAttention(16, 4, 2, rotary=True),
        *(getattr(qkv.nn, name)(16) for name in ("SelfAttention", "SelfAttentionV1", "SelfAttentionV2", "SelfAttentionV3", "SelfAttentionV4")),
        qkv.nn.MultiHeadAttention(16, 2), qkv.nn.SingleHeadAttention(16),
    ]  # fmt: skip

    def backward(n: int) -> None:
        q = numbers[:, :, : 1 + n % 64]
        mask = qkv.Mask.causal() & qkv.Mask.sliding(1 + n % 7)
        out, lse = qkv.attention(q, q, q, mask=mask, return_lse=True)
        qkv.attention_backward(out, q, q, q, out, lse, mask=mask)

    def modified(n: int) -> None:
        mod = qkv.ScoreMod(lambda score, b, h, i, j: score + (i - j) * 0.01 * (n % 3))
        qkv.attention(numbers[:1, :1, :5], numbers[:1, :1, :5], numbers[:1, :1, :5], score_mod=mod)

    def stored(n: int) -> None:
        qkv.io.save_safetensors(file, {"x": numbers[:, :, : n % 64]})
        qkv.io.load_safetensors(file)

    def cached(n: int) -> None:
        cache = caches[n % len(caches)]
        if cache.length(0) > 60:
            for sequence in range(2):
                cache.free(sequence), cache.add_sequence()
        cache.append(numbers[:, :, :1], numbers[:, :, 1:2])
        qkv.attention(numbers[:, :, :1], cache)
        if cache.layout == "paged":
            cache.free(cache.fork(0))

    def made(n: int) -> None:
        qkv.KVCache(storage=storages[n % 5], **options, **forms[n % 3]).append(numbers[:, :, :3], numbers[:, :, :3])

    def layer(n: int) -> None:
        own, saved, x = layers[n % len(layers)], qkv.nn.Saved(), rows[:, : 1 + n % 64]
        own.backward(own(x, saved=saved), saved)

    def differentiated(n: int) -> None:
        q = leaf[:, :, : 1 + n % 64]
        qkv.torch.scaled_dot_product_attention(q, q, q, is_causal=n % 2 == 0).sum().backward()
        leaf.grad = None

    def module(n: int) -> None:
        x = leaf[0, :, : 1 + n % 64]
        ours(x, x, x)[0].sum().backward()
        ours.zero_grad()
        leaf.grad = None

    def watched(n: int) -> None:
        with qkv.torch.capture() as captures, torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(leaf, leaf, leaf)
        assert captures.runs

    def stand_in(n: int) -> None:
        q = leaf[:, :, : 1 + n % 64].transpose(1, 2)
        flash_attn.flash_attn_func(q, q, q, causal=True, window_size=(n % 9, 0)).sum().backward()
        leaf.grad = None

    def generated(n: int) -> None:
        qkv.AttentionLM.from_file(model).generate("ab", 1 + n % 20)

    def trained(n: int) -> None:
        lm.fit(steps=2, batch=2, progress=False)
        lm.losses.clear()

    def in_a_thread(n: int) -> None:
        thread = threading.Thread(target=qkv.attention, args=(numbers, numbers, numbers))
        thread.start(), thread.join()

    def judged(n: int) -> None:
        assert qkv.judge(source)

    def started(n: int) -> None:
        assert tool(["layer", "average", "--x", os.path.join(folder, "x.npy"), "--out", os.path.join(folder, "y.npy")]) == 0

    def refused(error: type[Exception], call: Callable[[int], Any]) -> Callable[[int], None]:
        def asked(n: int) -> None:
            try:
                call(n)
            except error:
                return
            raise AssertionError("accepted")

        return asked

    torn = os.path.join(folder, "torn.safetensors")
    Path(torn).write_bytes(b"\x20" + bytes(20))
    full = qkv.KVCache(**options, capacity=2)
    full.append(numbers[:, :, :2], numbers[:, :, :2])

    def raising(*_: Any) -> float:
        raise KeyError

    often = [
        backward, modified, cached, made, layer, differentiated, module, stand_in, generated, trained, in_a_thread,
        refused(qkv.ShapeError, lambda n: qkv.attention(numbers, numbers[..., : n % 15], numbers)),
        refused(qkv.OptionError, lambda n: qkv.attention(numbers, numbers, numbers, dropout=1.5 + n, seed=0)),
        refused(qkv.FormatError, lambda n: qkv.io.load_safetensors(torn)),
        refused(qkv.IoError, lambda n: qkv.io.load_safetensors(f"{torn}.{n}")),
        refused(qkv.CacheFullError, lambda n: full.append(numbers[:, :, : 1 + n % 9], numbers[:, :, : 1 + n % 9])),
        refused(TypeError, lambda n: qkv.attention(numbers, "k", numbers)),
        refused(KeyError, lambda n: qkv.attention(numbers[:1], numbers[:1], numbers[:1], score_mod=qkv.ScoreMod(raising))),
        refused(ValueError, lambda n: qkv.torch.scaled_dot_product_attention(leaf, leaf[..., : n % 15], leaf)),
        lambda n: qkv.attention(numbers, numbers, numbers, weights=qkv.Capture(rows=[n % 64], top_k=3, statistics=True, map=(4, 4))),
        lambda n: qkv.set_num_threads(1 + n % 3),
        lambda n: qkv.attention_weights(numbers, numbers[:, :, : 1 + n % 64]),
        lambda n: qkv.linear_attention(numbers, numbers, numbers),
        lambda n: qkv.attention_varlen(rows.swapaxes(0, 1), rows.swapaxes(0, 1), rows.swapaxes(0, 1), [0, 1 + n % 62, 64]),
        lambda n: qkv.nn.FixedWeights(1 + n % 64)(rows[:, : 1 + n % 64]),
        lambda n: plain(rows[:, : 1 + n % 64]),
    ]  # fmt: skip
    return [(1, call) for call in often] + [(2, stored), (2, watched), (10, judged), (10, started)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    count = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # of C++, of what is started, and Python's
        repeated, done, round_ = kinds(folder), 0, 0
        for _, call in repeated:
            for n in range(WARM):
                call(7 * n)  # from the smallest sizes to the largest
        states = [state(folder)]
        for end in (count // 2, count):
            while done < end:
                due = [(every, call) for every, call in repeated if round_ % every == 0]
                for every, call in due:
                    call(round_ // every)
                done, round_ = done + len(due), round_ + 1
            states.append(state(folder))
    grown = {name: [after[name] - before[name] for before, after in zip(states, states[1:])] for name in states[0]}
    print(f"figure: {done} calls: " + ", ".join(f"{name} {states[0][name]} {first:+d} {second:+d}" for name, (first, second) in grown.items()))
    sys.exit(any(more > bound for name, both in grown.items() for more, bound in zip(both, BOUNDS.get(name, (0, 0)))))


if __name__ == "__main__":
    main()

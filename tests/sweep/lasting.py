"""Many calls of one process: after the first tenth, memory, descriptors, threads and files of the temporary folder stay. lasting.py --calls N."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import qkv


def state(folder: str) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "KiB": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "files": len(os.listdir(folder)),
    }


def calls(folder: str) -> list[Any]:
    """One call each of what a server or a notebook repeats, errors too; sizes vary with the call's number n."""
    numbers = np.random.default_rng(0).standard_normal((2, 4, 64, 16)).astype(np.float32)
    file = os.path.join(folder, "x.safetensors")
    layer = qkv.nn.MultiHeadAttention(16, 2)
    cache = qkv.KVCache(num_kv_heads=4, head_dim=16, sequences=2, capacity=64)

    def backward(n: int) -> None:
        q = numbers[:, :, : 1 + n % 64]
        mask = qkv.Mask.causal() & qkv.Mask.sliding(1 + n % 7)
        out, lse = qkv.attention(q, q, q, mask=mask, return_lse=True)
        qkv.attention_backward(out, q, q, q, out, lse, mask=mask)

    def refused(n: int) -> None:
        try:
            qkv.attention(numbers, numbers[..., : n % 15], numbers)
        except qkv.ShapeError:
            return
        raise AssertionError("accepted")

    def modified(n: int) -> None:
        mod = qkv.ScoreMod(lambda score, b, h, i, j: score + (i - j) * 0.01 * (n % 3))
        qkv.attention(numbers[:1, :1, :5], numbers[:1, :1, :5], numbers[:1, :1, :5], score_mod=mod)

    def stored(n: int) -> None:
        qkv.io.save_safetensors(file, {"x": numbers[:, :, : n % 64]})
        qkv.io.load_safetensors(file)

    def cached(n: int) -> None:
        if cache.length(0) > 60:
            cache.truncate(0, 0), cache.truncate(1, 0)
        cache.append(numbers[:, :, :1], numbers[:, :, 1:2])
        qkv.attention(numbers[:, :, :1], cache)

    def captured(n: int) -> None:
        qkv.attention(numbers, numbers, numbers, weights=qkv.Capture(rows=[n % 64], top_k=3, statistics=True))

    def threads(n: int) -> None:
        qkv.set_num_threads(1 + n % 3)

    return [
        backward,
        refused,
        modified,
        stored,
        cached,
        captured,
        threads,
        lambda n: qkv.attention_weights(numbers, numbers[:, :, : 1 + n % 64]),
        lambda n: qkv.linear_attention(numbers, numbers, numbers),
        lambda n: layer(numbers[0, :, : 1 + n % 64]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    count = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        repeated = calls(folder)
        before = {}
        for n in range(count):
            if n == count // 10:
                before = state(folder)
            repeated[n % len(repeated)](n // len(repeated))
        after = state(folder)
    grown = {name: after[name] - before[name] for name in after}
    print(f"figure: {count} calls: " + ", ".join(f"{name} {before[name]} + {grown[name]}" for name in after))
    # Pages that the allocator has not yet given back: a byte of each call would be more.
    sys.exit(grown.pop("KiB") * 1024 > max(count, 1 << 20) or any(grown.values()))


if __name__ == "__main__":
    main()

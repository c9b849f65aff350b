"""qkv's threads beside PyTorch's OpenMP in one process: regions of about 50 us, alone and in turn, hot and after 50 ms idle.

    python bench/python_pools.py [repetitions]

Prints the minimum and median wall time in microseconds. In turn, neither should be slower than alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import qkv
import torch


def main(repetitions: int) -> None:
    torch.set_grad_enabled(False)
    print(f"threads: qkv {qkv.num_threads()}, torch {torch.get_num_threads()}; {repetitions} repetitions")
    q, k, v = (torch.randn(1, 8, 100, 32) for _ in range(3))
    out = torch.empty_like(q)
    x = torch.linspace(0, 1, 300_000)
    y = torch.empty_like(x)
    regions: dict[str, Callable[[], object]] = {
        "qkv": lambda: qkv.attention(q, k, v, out=out),
        "torch": lambda: torch.exp(x, out=y),
    }

    def measure(names: list[str], rest: float) -> None:
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(repetitions if rest == 0 else repetitions // 8):
            for name in names:
                if rest:
                    time.sleep(rest)
                begin = time.perf_counter()
                regions[name]()
                times[name].append(1e6 * (time.perf_counter() - begin))
        for name, taken in times.items():
            how = "alone" if len(names) == 1 else "in turn"
            print(
                f"{name:6s} {how:8s} {'hot' if rest == 0 else 'after 50 ms':12s} min {min(taken):8.0f}  median "
                f"{statistics.median(taken):8.0f}"
            )

    for rest in (0.0, 0.05):
        for names in (["qkv"], ["torch"], ["qkv", "torch"]):
            measure(names, rest)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 800)

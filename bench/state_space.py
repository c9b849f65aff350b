#!/usr/bin/env python3
"""Mamba's scan, Mamba-2's and the short convolution, through qkv.standins, beside the packages' own PyTorch references and the code of
transformers: forward, and a step of training. One thread, float32, CPU seconds of the process.

    python bench/state_space.py [--rounds 5] > docs/benchmarks/NAME.md

Needs qkv, torch, transformers; references come from PyPI (tests/peers/run.py). A round runs every way in turn, each for at least 50 ms; the
table has each way's least time and the median of the rounds' ratios. Ways that take over a second run in the first round only.
"""

import argparse
import datetime
import importlib
import inspect
import os
import pathlib
import statistics
import sys
import tempfile
import time

import qkv
import qkv.standins
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/peers"))
from run import EINOPS, PEERS, add_references, downloaded  # noqa: E402

from peer import report  # noqa: E402

SDISTS = {
    "causal_conv1d": PEERS["causal_conv1d"]["sdist"],
    "mamba_ssm": "mamba-ssm==2.3.2.post1 --hash=sha256:104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028",
}
SCAN, CONVOLUTION = "mamba_ssm.ops.selective_scan_interface", "causal_conv1d.causal_conv1d_interface"
COMBINED = "mamba_ssm.ops.triton.ssd_combined"


def add_all_references(folder):
    """The packages' functions that end in _ref, into the stand-ins' modules."""
    for package, sdist in SDISTS.items():
        own = os.path.join(folder, package)
        os.mkdir(own)
        unpacked, named = downloaded([sdist, EINOPS], own), dict(PEERS[package]["references"])
        if package == "mamba_ssm":
            named[COMBINED] = [f"mamba_ssm/ops/triton/ssd_{part}.py" for part in ("chunk_state", "state_passing", "chunk_scan", "combined")]
        for module, files in named.items():
            add_references(module, files, unpacked)


def scan(tokens, channels, states=16):
    """(qkv, the package's reference, transformers), and their arguments; channels innermost."""
    mamba, theirs = importlib.import_module(SCAN), importlib.import_module("transformers.models.mamba.modeling_mamba")
    u, delta, z = (torch.randn(1, tokens, channels).transpose(1, 2) for _ in range(3))
    B, C = (torch.randn(1, tokens, states).transpose(1, 2) for _ in range(2))
    D, bias = torch.randn(channels), torch.randn(channels)
    ways = (mamba.selective_scan_fn, mamba.selective_scan_ref, inspect.unwrap(theirs.mamba_selective_scan))
    return ways, [u, delta * 0.1, -8 * torch.rand(channels, states), B, C, D, z, bias, True]


def convolution(batch, tokens, channels):
    conv, theirs = importlib.import_module(CONVOLUTION), importlib.import_module("transformers.models.mamba2.modeling_mamba2")
    x, weight, bias = torch.randn(batch, tokens, channels).transpose(1, 2), torch.randn(channels, 4), torch.randn(channels)
    three = (conv.causal_conv1d_fn, conv.causal_conv1d_ref, inspect.unwrap(theirs.causal_conv1d_fn))
    return [lambda *a, way=way: way(*a, activation="silu") for way in three], [x, weight, bias]


def chunk_scan(tokens, heads, width=64, states=128):
    mamba, theirs = importlib.import_module(COMBINED), importlib.import_module("transformers.models.mamba2.modeling_mamba2")
    x, dt, A = torch.randn(1, tokens, heads, width), torch.randn(1, tokens, heads), -torch.rand(heads) - 0.1
    B, C = (torch.randn(1, tokens, 1, states) for _ in range(2))
    three = (mamba.mamba_chunk_scan_combined, mamba.ssd_chunk_scan_combined_ref, inspect.unwrap(theirs.mamba2_chunk_scan))
    return [lambda *a, way=way: way(*a[:5], 256, D=a[5], dt_softplus=True) for way in three], [x, dt, A, B, C, torch.randn(heads)]


CASES = {
    "selective scan with gate, 512 tokens, 1,536 channels, 16 states": lambda: scan(512, 1536),
    "the same, 128 tokens, 768 channels": lambda: scan(128, 768),
    "convolution of 4 taps with SiLU, 2 x 1,024 tokens, 4,096 channels": lambda: convolution(2, 1024, 4096),
    "the same, 512 tokens, 1,536 channels": lambda: convolution(1, 512, 1536),
    "the same, 4 x 64 tokens, 768 channels": lambda: convolution(4, 64, 768),
    "Mamba-2's scan, 2,048 tokens, 24 heads of 64 x 128": lambda: chunk_scan(2048, 24),
    "the same, 512 tokens": lambda: chunk_scan(512, 24),
}


def once(way, arguments, backward):
    given = [x.detach().requires_grad_() if backward and isinstance(x, torch.Tensor) else x for x in arguments]
    with torch.set_grad_enabled(backward):
        out = way(*given)
    if backward:
        out.backward(torch.ones_like(out))
    return out


def seconds(call):
    """CPU seconds of one of as many calls as fill 50 ms."""
    calls, start = 0, time.process_time()
    while calls == 0 or time.process_time() - start < 0.05:
        call()
        calls += 1
    return (time.process_time() - start) / calls


def row(name, ways, arguments, backward, rounds):
    calls = [lambda way=way: once(way, arguments, backward) for way in ways]
    exact, *others = (way(*arguments).detach() for way in ways)
    assert all(torch.allclose(other, exact, rtol=1e-3, atol=1e-3 * exact.abs().max()) for other in others), name
    times = [[seconds(call) for call in calls]]
    for _ in range(rounds):
        times.append([seconds(call) if times[0][n] < 1 else times[0][n] for n, call in enumerate(calls)])
    least = [min(column) for column in zip(*times)]
    ratios = [statistics.median(one[n] / one[0] for one in times) for n in (1, 2)]
    cells = [f"{1e3 * x:,.3g}" if x < 1 else f"{1e3 * x:,.0f}" for x in least]
    print(f"| {name}, {'with backward' if backward else 'forward'} | {' | '.join(cells)} | {ratios[0]:,.1f} | {ratios[1]:,.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    qkv.set_num_threads(1)
    torch.manual_seed(0)
    qkv.standins.install(quiet=True)
    commit = report._output("git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "--short", "HEAD")
    cpu, date = report._cpu("AMD EPYC" if "AMD" in pathlib.Path("/proc/cpuinfo").read_text() else "CPU"), datetime.date.today()
    print(f"# State spaces on {cpu}, 1 thread, {date}\n")
    print(f"Made by bench/state_space.py at commit {commit}, {rounds} rounds; torch {torch.__version__}, transformers {transformers.__version__},")
    print(f"{', '.join(sdist.split()[0] for sdist in SDISTS.values())}. ms of CPU time, and the other's time divided by qkv's.\n")
    print("| case, f32 | qkv | the package's reference | transformers | reference / qkv | transformers / qkv |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        add_all_references(folder)
        for name, make in CASES.items():
            for backward in (False, True):
                row(name, *make(), backward, rounds)


if __name__ == "__main__":
    main()

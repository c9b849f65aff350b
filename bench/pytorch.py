#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention on the cases that `qkv bench` times, to hold the two side by side on one machine.

Not: a benchmark of every peer. One thread unless --threads says otherwise; medians of 12 runs; f32; flops are useful ones
(4 B H Tq Tk D forward, 2.5 times that backward, causal halved). Backward is (forward + backward) - forward.
"""

import argparse
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

CASES = [  # batch, heads, length, head_dim, causal
    (1, 4, 1024, 64, False),
    (1, 4, 1024, 64, True),
    (1, 2, 2048, 128, False),
    (1, 64, 128, 64, False),
    (1, 64, 128, 64, True),
]


def median_seconds(call, runs=12):
    call()
    call()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    for batch, heads, length, head_dim, causal in CASES:
        q, k, v = (torch.randn(batch, heads, length, head_dim, requires_grad=True) for _ in range(3))
        dout = torch.randn(batch, heads, length, head_dim)

        def forward():
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

        with torch.no_grad():
            forward_s = median_seconds(forward)
        both_s = median_seconds(lambda: forward().backward(dout))
        flops = 4 * batch * heads * length**2 * head_dim * (0.5 if causal else 1)
        print(
            f"h{heads} s{length} d{head_dim} {'causal' if causal else 'full':6}  forward {flops / forward_s / 1e9:6.1f} GFLOP/s"
            f"  backward {2.5 * flops / (both_s - forward_s) / 1e9:6.1f} GFLOP/s"
        )


if __name__ == "__main__":
    main()

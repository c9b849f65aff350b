"""What several ranks should take: a model of flops, bytes and rates, and where each method stops scaling.

    bench/parallel_model.py                                    the table: a million tokens over 8 to 1,024 hosts
    bench/parallel_model.py --gflops 170 --gbit 25 --tokens 262144
    mpirun -n 2 qkv bench --parallel all-gather --json > two.json; bench/parallel_model.py --measured two.json

The model, for causal attention of T tokens, H query heads on G key/value heads of width D, forward and backward, P ranks that compute F flop/s and
send W bytes/s each way, elements of e bytes:

    work        1/2 * 3.5 * 4 H T^2 D / (P F)                      zig-zag: all ranks alike; backward is 2.5 times forward
    all-gather  zig-zag, rank r has pieces r and 2P-1-r of 2P, and needs those up to its last. The last rank sends most: both of its
                pieces of k, v to everyone, twice, and it gives back dk, dv (4 bytes a number) of the first piece of everyone:
                2 * 2 G (T/P) (P-1) D e + 2 G (T/P) (P-1) D 4/2 bytes, one head after the other behind the work:
                time = max(work, messages) + messages of one head
    ring        zig-zag, chunks by ascending keys: all ranks work on the same chunk. While it is among the first half of the keys, a
                rank has up to two pieces to compute, afterwards one: 3P-1 of what are 2P where all ranks are busy. Each chunk is
                passed on by all ranks that need it but the last, twice; dk, dv (4 bytes a number) come back the same way:
                time = max(work (3P-1)/2P, messages) + P-1 transfers of the first chunk
    ulysses     (P-1)/P of its rows of q, k, v, out; then of q, k, v, out, dout, lse, dq, dk, dv: waits for all of it; P divides G:
                time = work + messages

Latency, the file system and memory are left out. It is arithmetic, not a measurement; --measured holds it against one.
"""

import argparse
import json

CHUNK = 4096  # keys (qkv/dist/context_parallel.h)


def bytes_of(method, tokens, heads, kv_heads, width, ranks, element):
    """Bytes that the rank sends that sends most, forward and backward."""
    rows = tokens / ranks
    if method == "all-gather":
        one_way = 2 * kv_heads * rows * (ranks - 1) * width
        return 2 * one_way * element + one_way * 4 / 2
    if method == "ring":
        sent, returned = [0] * ranks, [0] * ranks  # pieces
        for piece in range(2 * ranks):
            owner = min(piece, 2 * ranks - 1 - piece)
            needing = [(owner + n) % ranks for n in range(ranks) if piece <= 2 * ranks - 1 - (owner + n) % ranks]
            for rank in needing[:-1]:
                sent[rank] += 1
            for rank in needing[1:]:
                returned[rank] += 1
        numbers = 2 * kv_heads * rows / 2 * width
        return max(2 * one * numbers * element + other * numbers * 4 for one, other in zip(sent, returned))
    each = rows * (ranks - 1) / ranks * width * element
    forward = (2 * heads + 2 * kv_heads) * each
    backward = (4 * heads + 4 * kv_heads) * each + heads * rows * (ranks - 1) / ranks * 4
    return forward + backward


def flops_of(tokens, heads, width):
    """Useful flops of the whole, causal, forward and backward (Dao 2023)."""
    return 3.5 * 4 * heads * tokens * tokens * width / 2


def seconds(method, tokens, heads, kv_heads, width, ranks, element, flops_per_s, bytes_per_s):
    """(time, work, messages) in seconds; None where the method cannot have so many ranks."""
    if method == "ulysses" and kv_heads % ranks != 0:
        return None
    work = flops_of(tokens, heads, width) / ranks / flops_per_s
    messages = bytes_of(method, tokens, heads, kv_heads, width, ranks, element) / bytes_per_s
    if method == "all-gather":
        return max(work, messages) + messages / kv_heads, work, messages
    if method == "ring":
        start = (ranks - 1) * 2 * CHUNK * width * element / bytes_per_s
        return max(work * (3 * ranks - 1) / (2 * ranks), messages) + start, work, messages
    return work + messages, work, messages


def table(options):
    """Prints times and shares of the ideal for powers of two of ranks."""
    print(f"{options.tokens:,} tokens, {options.heads} heads on {options.kv_heads}, D {options.dim}, {options.element} bytes; "
          f"{options.gflops:g} GFLOP/s and {options.gbit:g} Gbit/s a rank; causal, forward and backward; modelled, not measured")
    print(f"{'ranks':>6}  {'method':<10} {'seconds':>9} {'of ideal':>8} {'GB sent':>8}  limited by")
    for ranks in (8, 16, 32, 64, 128, 256, 512, 1024):
        for method in ("all-gather", "ring", "ulysses"):
            shape = (options.tokens, options.heads, options.kv_heads, options.dim, ranks, options.element)
            found = seconds(method, *shape, options.gflops * 1e9, options.gbit / 8 * 1e9)
            if found is None:
                print(f"{ranks:>6}  {method:<10} {'-':>9} {'-':>8} {'-':>8}  {options.kv_heads} key/value heads")
                continue
            time, work, messages = found
            why = "work" if work >= messages else "messages: each rank gets every key, whatever their number"
            print(f"{ranks:>6}  {method:<10} {time:>9.1f} {work / time:>8.0%} {bytes_of(method, *shape) / 1e9:>8.1f}  {why}")


def compare(path):
    """Holds the model against a document of `qkv bench --parallel --json`; the rates are the document's own."""
    with open(path, encoding="utf-8") as file:
        run = json.load(file)
    ranks, tokens = run["ranks"], run["tokens_per_rank"] * run["ranks"]
    shape = (tokens, run["heads"], run["kv_heads"], run["head_dim"], ranks, 4)
    flops_per_s = flops_of(tokens, run["heads"], run["head_dim"]) / (run["one_rank_ms"] / 1e3)
    bytes_per_s = run["bytes_sent"] / (run["messages_ms"] / 1e3) if run["messages_ms"] else float("inf")
    time, work, messages = seconds(run["parallel"], *shape, flops_per_s, bytes_per_s)
    sent = bytes_of(run["parallel"], *shape)
    print(f"{run['parallel']}, {ranks} ranks: {flops_per_s / 1e9:.1f} GFLOP/s, {bytes_per_s * 8 / 1e9:.2f} Gbit/s")
    print(f"  bytes: model {sent / 1e6:.1f} MB, counted {run['bytes_sent'] / 1e6:.1f} MB ({sent / run['bytes_sent'] - 1:+.0%})")
    print(f"  time: model {time * 1e3:.1f} ms (work {work * 1e3:.1f}, messages {messages * 1e3:.1f}), measured {run['ms']:.1f} ms "
          f"({time * 1e3 / run['ms'] - 1:+.0%})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", metavar="FILE", help="a document of qkv bench --parallel --json")
    parser.add_argument("--tokens", type=int, default=1 << 20)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--element", type=int, default=2, help="bytes of a number that travels (bf16: 2)")
    parser.add_argument("--gflops", type=float, default=2000, help="of a rank: a host of 32 cores")
    parser.add_argument("--gbit", type=float, default=25, help="of a rank's network, each way")
    options = parser.parse_args()
    if options.measured:
        compare(options.measured)
    else:
        table(options)


if __name__ == "__main__":
    main()

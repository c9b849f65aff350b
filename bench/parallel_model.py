"""What several ranks should take: a model of flops, bytes and rates, and where each method stops scaling.

    bench/parallel_model.py                                    the table: a million tokens over 8 to 1,024 hosts
    bench/parallel_model.py --gflops 170 --gbit 25 --tokens 262144 --turns 4
    mpirun -n 2 qkv bench --parallel all-gather --json > two.json; bench/parallel_model.py --measured two.json

The model, for causal attention of T tokens, H query heads on G key/value heads of width D, forward and backward, P ranks that compute F flop/s and
send W bytes/s each way, elements of e bytes:

    work        1/2 * 3.5 * 4 H T^2 D / (P F)                      zig-zag: all ranks alike; backward is 2.5 times forward
    all-gather  zig-zag: rank r has pieces r and 2P-1-r of 2P, there and back `turns` times, and needs those up to its last. It sends
                its pieces of k, v to all that need them, twice, and gives back dk, dv (4 bytes a number) of the pieces that it
                needs. One head after the other, behind the work:
                time = max(work, messages) + messages of one head
    by chunks   (all-gather with --chunk) of ascending keys: all ranks work on the same chunk, for which one has more queries than
                another: the heaviest rank of each chunk counts. With one turn that is (3P-1)/2P of the work where all are busy:
                time = max(work waiting, messages) + transfer of the first chunk
    ring        also by chunks; a chunk is passed on by all ranks that need it but the last, twice; dk, dv come back the same way:
                time = max(work waiting, messages) + P-1 transfers of the first chunk
    ulysses     (P-1)/P of its rows of q, k, v, out; then of q, k, v, out, dout, lse, dq, dk, dv: waits for all of it; P divides G:
                time = work + messages

Latency, the file system and memory are left out. It is arithmetic, not a measurement; --measured holds it against one.
"""

import argparse
import json
from typing import NamedTuple

CHUNK = 4096  # keys (qkv/dist/context_parallel.h)


class Shape(NamedTuple):
    """Sizes of a problem, and how it is cut: zig-zag in `turns`; `chunk` keys at once, 0: all of a head."""

    tokens: int
    heads: int
    kv_heads: int
    width: int
    ranks: int
    element: int  # bytes
    turns: int = 1
    chunk: int = 0


def owners(shape):
    """The rank of each piece: there and back `turns` times."""
    there = list(range(shape.ranks))
    return (there + there[::-1]) * shape.turns


def last_pieces(shape):
    """By rank. Causal: a rank needs the pieces up to its last."""
    pieces = 2 * shape.ranks * shape.turns
    return [pieces - 1 - rank for rank in range(shape.ranks)]


def bytes_of(method, shape):
    """Bytes that the rank sends that sends most, forward and backward."""
    ranks, rows = shape.ranks, shape.tokens / shape.ranks
    if method != "ulysses":
        sent, returned, last = [0] * ranks, [0] * ranks, last_pieces(shape)  # pieces
        for piece, owner in enumerate(owners(shape)):
            needing = [rank for rank in ((owner + n) % ranks for n in range(ranks)) if piece <= last[rank]]
            if method == "ring":
                for rank in needing[:-1]:
                    sent[rank] += 1
            else:
                sent[owner] += len(needing) - 1
            for rank in needing[1:]:
                returned[rank] += 1
        numbers = 2 * shape.kv_heads * rows / (2 * shape.turns) * shape.width
        return max(2 * one * numbers * shape.element + other * numbers * 4 for one, other in zip(sent, returned))
    each = rows * (ranks - 1) / ranks * shape.width * shape.element
    forward = (2 * shape.heads + 2 * shape.kv_heads) * each
    backward = (4 * shape.heads + 4 * shape.kv_heads) * each + shape.heads * rows * (ranks - 1) / ranks * 4
    return forward + backward


def waiting(shape):
    """Work of the heaviest rank of each chunk, over the work of all if they never waited. Pieces stand for chunks."""
    of = owners(shape)
    queries, heaviest, mean = [0.0] * shape.ranks, 0.0, 0.0  # pieces of queries from this piece of keys on
    for owner in reversed(of):
        queries[owner] += 0.5  # on the diagonal
        heaviest += max(queries)
        mean += sum(queries) / shape.ranks
        queries[owner] += 0.5
    return heaviest / mean


def flops_of(shape):
    """Useful flops of the whole, causal, forward and backward (Dao 2023)."""
    return 3.5 * 4 * shape.heads * shape.tokens * shape.tokens * shape.width / 2


def seconds(method, shape, flops_per_s, bytes_per_s):
    """(time, work, messages) in seconds; None where the method cannot have so many ranks."""
    if method == "ulysses" and shape.kv_heads % shape.ranks != 0:
        return None
    work = flops_of(shape) / shape.ranks / flops_per_s
    messages = bytes_of(method, shape) / bytes_per_s
    if method == "ulysses":
        return work + messages, work, messages
    if method == "all-gather" and shape.chunk == 0:
        return max(work, messages) + messages / shape.kv_heads, work, messages
    first = 2 * (shape.chunk or CHUNK) * shape.width * shape.element / bytes_per_s
    start = first * (shape.ranks - 1 if method == "ring" else 1)
    return max(work * waiting(shape), messages) + start, work, messages


def table(options):
    """Prints times and shares of the ideal for powers of two of ranks."""
    print(f"{options.tokens:,} tokens, {options.heads} heads on {options.kv_heads}, D {options.dim}, {options.element} bytes; "
          f"{options.gflops:g} GFLOP/s and {options.gbit:g} Gbit/s a rank; causal, zig-zag in {options.turns} turns, forward and "
          "backward; modelled, not measured")
    print(f"{'ranks':>6}  {'method':<10} {'seconds':>9} {'of ideal':>8} {'GB sent':>8}  limited by")
    for ranks in (8, 16, 32, 64, 128, 256, 512, 1024):
        for method in ("all-gather", "ring", "ulysses"):
            shape = Shape(options.tokens, options.heads, options.kv_heads, options.dim, ranks, options.element, options.turns,
                          options.chunk)
            found = seconds(method, shape, options.gflops * 1e9, options.gbit / 8 * 1e9)
            if found is None:
                print(f"{ranks:>6}  {method:<10} {'-':>9} {'-':>8} {'-':>8}  {options.kv_heads} key/value heads")
                continue
            time, work, messages = found
            why = "work" if work >= messages else "messages: each rank gets every key, whatever their number"
            print(f"{ranks:>6}  {method:<10} {time:>9.1f} {work / time:>8.0%} {bytes_of(method, shape) / 1e9:>8.1f}  {why}")


def compare(path):
    """Holds the model against a document of `qkv bench --parallel --json`; the rates are the document's own."""
    with open(path, encoding="utf-8") as file:
        run = json.load(file)
    if run.get("layout", "zig-zag") != "zig-zag":
        raise SystemExit(f"the model is of zig-zag rows: got {run['layout']}")
    ranks, tokens = run["ranks"], run["tokens_per_rank"] * run["ranks"]
    shape = Shape(tokens, run["heads"], run["kv_heads"], run["head_dim"], ranks, 4, run.get("turns", 1), run.get("chunk", 0))
    flops_per_s = flops_of(shape) / (run["one_rank_ms"] / 1e3)
    bytes_per_s = run["bytes_sent"] / (run["messages_ms"] / 1e3) if run["messages_ms"] else float("inf")
    time, work, messages = seconds(run["parallel"], shape, flops_per_s, bytes_per_s)
    sent = bytes_of(run["parallel"], shape)
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
    parser.add_argument("--chunk", type=int, default=0, help="keys that travel at once by all-gather (default: all of a head)")
    parser.add_argument("--turns", type=int, default=1, help="how often zig-zag deals pieces there and back")
    options = parser.parse_args()
    if options.measured:
        compare(options.measured)
    else:
        table(options)


if __name__ == "__main__":
    main()

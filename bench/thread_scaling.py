#!/usr/bin/env python3
"""Speed-up over threads, from what bench/peers.py measured with one thread and with more: a table, and a plot where matplotlib is.

Speed-up of a case: its time with the fewest threads divided by its time with n, for qkv and for the peer that is fastest with the
fewest. Groups are drawn by the median over their cases. Only cases that every file holds and that take at least a millisecond
count.

    bench/peers.py --threads 1 --raw 1.json; bench/peers.py --threads 2 --raw 2.json
    bench/thread_scaling.py 1.json 2.json --out docs/benchmarks/scaling.png
"""

import argparse
import json
import pathlib
import statistics
import sys

from peer.plot import LOOKS, NAMES

LEAST_MS = 1.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RAW.json", help="at least two, of different threads")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE.png", help="also draw the plot")
    return parser.parse_args()


def read(paths):
    """[run], by ascending threads; exits where they cannot be compared."""
    runs = sorted((json.loads(path.read_text()) for path in paths), key=lambda run: run["threads"])
    threads = [run["threads"] for run in runs]
    if len(set(threads)) != len(threads) or len(runs) < 2:
        sys.exit(f"thread_scaling: files of at least two different numbers of threads are needed: got {threads}")
    if len({run["cpu"] for run in runs}) != 1:
        sys.exit(f"thread_scaling: the runs must be of one CPU: got {sorted({run['cpu'] for run in runs})}")
    return runs


def milliseconds(record, who):
    entry = record["qkv"] if who == "qkv" else record["peers"].get(who)
    return None if entry is None else entry.get("ms")


def speedups(runs):
    """[(case, kind, {who: [speed-up for each run]})]"""
    by_name = [{record["name"]: record for record in run["cases"]} for run in runs]
    rows = []
    for name, first in by_name[0].items():
        records = [cases.get(name) for cases in by_name]
        if None in records or not first["qkv"] or first["qkv"]["ms"] < LEAST_MS:
            continue
        found = {}
        for who in ("qkv", first.get("best_peer")):
            times = [who and milliseconds(record, who) for record in records]
            if all(times):
                found[who] = [times[0] / time for time in times]
        if "qkv" in found:
            rows.append((name, first["kind"], found))
    return rows


def draw(runs, rows, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    threads = [run["threads"] for run in runs]
    kinds = sorted({kind for _, kind, _ in rows})
    columns = min(5, len(kinds))
    rows_of_panels = -(-len(kinds) // columns)
    figure, axes = pyplot.subplots(
        rows_of_panels, columns, figsize=(2.3 * columns + 0.6, 2.6 * rows_of_panels + 0.4), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(kinds) :]:
        axis.set_visible(False)
    for axis, kind in zip(axes.flat, kinds):
        axis.plot(threads, [n / threads[0] for n in threads], color="#BBBBBB", linestyle=":", label="ideal")
        for who, (colour, marker) in LOOKS.items():
            lines = [found[who] for _, its, found in rows if its == kind and who in found]
            if lines:
                middle = [statistics.median(column) for column in zip(*lines)]
                axis.plot(threads, middle, color=colour, marker=marker, label=f"{NAMES.get(who, who)} ({len(lines)})")
        axis.set_title(kind, loc="left", fontsize=9)
        axis.set_xticks(threads)
        axis.grid(color="#DDDDDD", linewidth=0.6)
        axis.legend(frameon=False, fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"speed-up over {threads[0]} thread{'s' if threads[0] > 1 else ''}")
    for axis in axes[-1, :]:
        axis.set_xlabel("threads")
    figure.suptitle(f"{runs[0]['cpu']}: median speed-up (number of cases)", x=0.01, ha="left", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main():
    options = arguments()
    runs = read(options.runs)
    rows = speedups(runs)
    if not rows:
        sys.exit(f"thread_scaling: the files share no case of at least {LEAST_MS:g} ms")
    threads = [run["threads"] for run in runs][1:]
    print("| case | " + " | ".join(f"qkv, {n} threads | fastest peer" for n in threads) + " |")
    print("|---" * (1 + 2 * len(threads)) + "|")
    for name, _, found in rows:
        peer = next((who for who in found if who != "qkv"), None)
        cells = []
        for n in range(1, len(runs)):
            cells += [f"{found['qkv'][n]:.2f}", f"{found[peer][n]:.2f} {NAMES.get(peer, peer)}" if peer else "-"]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if options.out:
        draw(runs, rows, options.out)


if __name__ == "__main__":
    main()

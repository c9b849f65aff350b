#!/usr/bin/env python3
"""qkv and its peers on the same cases, on this machine: a table, a page, raw JSON.

PyTorch, ONNX Runtime, OpenVINO and JAX, where they are installed (pip install torch onnx onnxruntime openvino jax),
each in its own process, all pinned to the same CPUs, run in turn: one round times a case with each of them, the next round in
reverse order. A peer counts with the best of its variants (kernels, operators, ways to write the case).

qkv is called through its tool, `qkv bench --exact CASE --json`: that process measures the machine's peak beside the case, and
the fractions of all peers are of that peak. Every result is first compared with attention in f64.

    bench/peers.py --quick                      # some of the cases, one round, a few minutes
    bench/peers.py --out docs/benchmarks        # the default cases: two rounds, 10 to 20 minutes; the page
    bench/peers.py --threads 2 --cases fwd-f32-d64 decode
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from peer import report
from peer.cases import all_cases

PEERS = ("pytorch", "onnxruntime", "openvino", "jax")
ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = 10  # at least, over all rounds
TIMED_MS = 150  # and at least this long in each round


def pin(cpus):
    return lambda: os.sched_setaffinity(0, cpus)


class Peer:
    """A worker process and its answers."""

    def __init__(self, name, threads, cpus):
        command = [sys.executable, __file__, "--worker", name, "--threads", str(threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3", "ONEDNN_VERBOSE": "0"}
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            preexec_fn=pin(cpus),
        )
        self.about = self.ask({"do": "about"})

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"failed": "the process ended"}

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def installed(name):
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode == 0


def start_peers(names, threads, cpus):
    """(peers that run, {name: why not})"""
    running, missing = [], {}
    for name in names:
        if not installed({"pytorch": "torch"}.get(name, name)):
            missing[name] = "not installed"
            continue
        peer = Peer(name, threads, cpus)
        if "failed" in peer.about:
            missing[name] = peer.about["failed"]
        else:
            running.append(peer)
    return running, missing


def run_qkv(tool, case, threads, isa, cpus):
    """The case's entry of `qkv bench`, with the machine's peaks; None when the tool has no such case."""
    command = [tool, "bench", "--exact", case.name, "--json", "--threads", str(threads)] + (["--isa", isa] if isa else [])
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin(cpus))
    if done.returncode == 2 and "no case" in done.stderr:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    document = json.loads(done.stdout)
    return document["cases"][0] | {"isa": document["isa"], "cpu": document["cpu"]}


def compare(tool, peers, folder):
    """{who: largest difference from f64} on the same numbers, full and causal; qkv reads and writes .npy files."""
    import numpy

    from peer import textbook
    from peer.cases import Case

    errors = {}
    for causal in (False, True):
        case = Case("", "forward", batch=2, heads=4, q_len=97, causal=causal)
        q, k, v, _ = textbook.numbers(case)
        for name, array in zip("qkv", (q, k, v)):
            numpy.save(folder / f"{name}.npy", array)
        exact = textbook.weights_of(q, k, textbook.keep_of(case)[:, None] if causal else None) @ v.astype(numpy.float64)
        numpy.save(folder / f"exact-{causal}.npy", exact)
        files = [word for name in ("q", "k", "v", "out") for word in (f"--{name}", str(folder / f"{name}.npy"))]
        subprocess.run([tool, "attend", *files, *(["--causal"] if causal else [])], check=True, stdout=subprocess.DEVNULL)
        found = {"qkv": textbook.difference(numpy.load(folder / "out.npy"), exact)}
        for peer in peers:
            answer = peer.ask({"do": "agree", "folder": str(folder), "causal": causal})
            found[peer.name] = answer.get("error", float("inf"))
        for name, error in found.items():
            errors[name] = max(errors.get(name, 0), error)
    wrong = {name: error for name, error in errors.items() if not error <= textbook.TOLERANCE["f32"]}
    if wrong:
        raise SystemExit(f"outputs differ from attention in f64: {wrong}")
    return errors


def timing(times):
    quarter = len(times) // 4
    ordered = sorted(times)
    median = statistics.median(times)
    spread = (ordered[-1 - quarter] - ordered[quarter]) / median if median > 0 else 0
    return {"ms": median, "best_ms": ordered[0], "spread": spread, "runs": len(times)}


def merged_qkv(entries):
    """The entries of several processes as one: the median of their medians, the largest of their peaks."""
    middle = sorted(entries, key=lambda entry: entry["ms"])[(len(entries) - 1) // 2]
    medians = [entry["ms"] for entry in entries]
    merged = middle | {"ms": statistics.median(medians), "runs": sum(entry["runs"] for entry in entries)}
    merged["spread"] = max([entry["spread"] for entry in entries] + [(max(medians) - min(medians)) / merged["ms"]])
    merged["peak"] = {
        key: max((entry["peak"][key] for entry in entries if entry["peak"][key]), default=None) for key in middle["peak"]
    }
    for rate in ("gflops", "gbs"):
        merged[rate] = middle[rate] and middle[rate] * middle["ms"] / merged["ms"]
    merged["peak_moved"] = max(entry["peak_moved"] for entry in entries)
    return merged


def measure(case, tool, peers, options, cpus):
    """{"qkv": entry or None, "peers": {name: {"variants", "best"} or {"failed"}}}"""
    from peer.textbook import TOLERANCE
    from peer.worker import case_json

    answers = {}
    for peer in peers:
        answer = peer.ask({"do": "prepare", "case": case_json(case)})
        errors = answer.get("variants", {})
        wrong = [
            f"{name}: {error:.2g} from f64" for name, error in errors.items() if error and not error <= TOLERANCE[case.dtype]
        ]
        if wrong:
            answer = {"failed": "; ".join(wrong)}
        elif not errors and "failed" not in answer:
            answer = {"failed": "has no such operation"}
        answers[peer.name] = answer | {"ms": {}}
    runs = -(-RUNS // options.rounds)
    turns = [None, *peers]  # None: qkv
    entries = []
    for round_number in range(options.rounds):
        for peer in turns if round_number % 2 == 0 else reversed(turns):
            if peer is None:
                entries.append(run_qkv(tool, case, options.threads, options.isa, cpus))
            elif "failed" not in answers[peer.name]:
                timed = peer.ask({"do": "time", "runs": runs, "milliseconds": TIMED_MS})
                if "failed" in timed:
                    answers[peer.name]["failed"] = timed["failed"]
                for name, times in timed.get("ms", {}).items():
                    answers[peer.name]["ms"].setdefault(name, []).extend(times)
    result = {"qkv": merged_qkv(entries) if entries[0] else None, "peers": {}}
    for name, answer in answers.items():
        if "failed" in answer or not answer["ms"]:
            result["peers"][name] = {"failed": answer.get("failed", "nothing was timed")}
            continue
        variants = {variant: timing(times) | {"error": answer["variants"][variant]} for variant, times in answer["ms"].items()}
        best = min(variants, key=lambda variant: variants[variant]["ms"])
        result["peers"][name] = {"best": best, "variants": variants} | variants[best]
    return result


def chosen_cases(options):
    cases = all_cases()
    if options.cases:
        return [case for case in cases if any(case.name.startswith(word) for word in options.cases)]
    if options.quick:
        return [case for case in cases if case.quick and not case.full]
    return [case for case in cases if options.full or not case.full]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qkv", default=str(ROOT / "build/release/qkv"), help="the tool (default: build/release/qkv)")
    parser.add_argument("--threads", type=int, default=1, help="threads of qkv and of each peer (default 1)")
    parser.add_argument("--isa", help="instruction set of qkv (default: the fastest here)")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="cases of `qkv bench` whose names begin with NAME")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--quick", action="store_true", help="some of the cases, one round")
    parser.add_argument("--full", action="store_true", help="also the slow cases: head width 128 above 4,096 tokens")
    parser.add_argument("--rounds", type=int, help="number of rounds (default 2, with --quick 1)")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the page of this run (default: none)")
    parser.add_argument("--raw", type=pathlib.Path, help="file for everything measured, as JSON (default: build/peers/NAME.json)")
    parser.add_argument("--name", help="of the files (default: date, CPU and threads)")
    parser.add_argument("--note", default="", help="a sentence for the page")
    parser.add_argument("--worker", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 2)
    return options


def main():
    options = arguments()
    if options.worker:
        from peer.worker import serve

        return serve(options.worker, options.threads)
    available = sorted(os.sched_getaffinity(0))
    cpus = available[-options.threads :]
    peers, missing = start_peers(options.peers, options.threads, cpus)
    run = report.machine(options, cpus) | {
        "peers": {peer.name: peer.about for peer in peers},
        "missing": missing,
        "cases": [],
    }
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        run["agreement"] = compare(options.qkv, peers, pathlib.Path(folder))
    print("largest difference from f64:", ", ".join(f"{name} {error:.1e}" for name, error in run["agreement"].items()))
    started = datetime.datetime.now()
    for case in chosen_cases(options):
        result = measure(case, options.qkv, peers, options, cpus)
        run["cases"].append(report.judged(case, result))
        print(report.line(run["cases"][-1]), flush=True)
    run["seconds"] = (datetime.datetime.now() - started).total_seconds()
    for peer in peers:
        peer.close()
    print()
    print(report.table(run))
    stem = report.stem_of(run, options.name)
    written = [report.write_raw(run, options.raw or ROOT / "build/peers" / f"{stem}.json")]
    if options.out:
        written.append(report.write(run, options.out, stem))
    for path in written:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

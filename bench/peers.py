#!/usr/bin/env python3
"""qkv and its peers on the same cases, on this machine: a table, a page, raw JSON.

PyTorch, ONNX Runtime, OpenVINO, JAX, ggml, MLX, ExecuTorch and vLLM's kernels, each in an environment and a process of its own,
all pinned to the same CPUs, run in turn: one round times a case with each of them, the next round in reverse order. A peer
counts with the best of its variants (kernels, operators, ways to write the case).

qkv is called through its tool, `qkv bench --exact CASE --json`: that process measures the machine's peak beside the case, and
the fractions of all peers are of that peak. Every result is first compared with attention in f64.

    bench/peers.py --install                    # all environments, or those named; what fails is named on the page
    bench/peers.py --quick                      # some of the cases, one round
    bench/peers.py --out docs/benchmarks        # the default cases, two rounds; the page
    bench/peers.py --out docs/benchmarks --minutes 10    # the same in parts: the same command goes on until no case is left
    bench/peers.py --threads 2 --cases fwd-f32-d64 decode
    bench/peers.py --isa avx2 --rounds 1        # qkv's AVX2 kernels, beside peers that are limited to AVX2
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from peer import environments, report
from peer.cases import all_cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = tuple(environments.PEERS)
RUNS = 10  # at least, over all rounds
TIMED_MS = 150  # and at least this long in each round
FAR = 3  # a peer that takes so many times as long as another is timed by a few runs


def pin(cpus):
    return lambda: os.sched_setaffinity(0, cpus)


class Peer:
    """A worker process and its answers."""

    def __init__(self, name, python, options, cpus):
        threads = str(options.threads)
        variables, limit = environments.variables(name, python, options.limited)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "TF_CPP_MIN_LOG_LEVEL": "3", "ONEDNN_VERBOSE": "0"}
        environment = {key: value for key, value in environment.items() if key not in environments.SLOWER}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        command = [python, __file__, "--worker", name, "--threads", threads]
        self.name = name
        self.start = lambda: subprocess.Popen(command, **pipes, env=environment | variables, preexec_fn=pin(cpus))
        self.process = self.start()
        self.about = self.ask({"do": "about"})
        if limit and "failed" not in self.about:
            self.about["settings"] += f"; {limit}"

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        code, self.process = self.process.wait(), self.start()  # a new one for the next case
        return {"failed": f"the process ended ({signal.Signals(-code).name if code < 0 else f'exit status {code}'})"}

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start_peers(options, cpus):
    """(peers that run, {name: why not})"""
    running, missing = [], {}
    for name in options.peers:
        python, reason = environments.interpreter(name, options.environments)
        if python is None:
            missing[name] = reason
            continue
        peer = Peer(name, python, options, cpus)
        if "failed" in peer.about:
            missing[name] = peer.about["failed"]
        else:
            running.append(peer)
    return running, missing


def run_qkv(tool, case, threads, isa, cpus):
    """The case's entry of `qkv bench`, with the machine's peaks."""
    command = [tool, "bench", "--exact", case.name, "--json", "--threads", str(threads)] + (["--isa", isa] if isa else [])
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin(cpus))
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    document = json.loads(done.stdout)
    return document["cases"][0] | {"isa": document["isa"], "cpu": document["cpu"]}


def error_of_qkv(tool):
    """Its largest difference from f64, full and causal; it reads and writes .npy files."""
    import numpy

    from peer import textbook
    from peer.cases import Case

    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for causal in (False, True):
            case = Case("", "forward", batch=2, heads=4, q_len=97, causal=causal)
            q, k, v, _ = textbook.numbers(case)
            files = {name: f"{folder}/{name}.npy" for name in ("q", "k", "v", "out")}
            for name, array in zip("qkv", (q, k, v)):
                numpy.save(files[name], array)
            words = [word for name, file in files.items() for word in (f"--{name}", file)]
            subprocess.run([tool, "attend", *words, *(["--causal"] if causal else [])], check=True, stdout=subprocess.DEVNULL)
            weights = textbook.weights_of(q, k, textbook.keep_of(case)[:, None] if causal else None)
            errors.append(textbook.difference(numpy.load(files["out"]), weights @ v.astype(numpy.float64)))
    if not max(errors) <= textbook.TOLERANCE["f32"]:
        raise SystemExit(f"qkv: {max(errors)} from attention in f64")
    return max(errors)


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
    """{"qkv": entry, "peers": {name: {"variants", "best", "wrong"} or {"failed"}}}"""
    from peer.worker import case_json

    answers = {}
    for peer in peers:
        answer = peer.ask({"do": "prepare", "case": case_json(case)})
        if not answer.get("variants") and "failed" not in answer:
            wrong = "; ".join(f"{name}: {error:.2g} from f64" for name, error in answer["wrong"].items())
            answer["failed"] = wrong or "has no such operation"
        answers[peer.name] = answer | {"ms": {}}
    best = min((answer["once"] for answer in answers.values() if "failed" not in answer), default=0)
    turns = [None, *peers]  # None: qkv
    entries = []
    for round_number in range(options.rounds):
        for peer in turns if round_number % 2 == 0 else reversed(turns):
            if peer is None:
                entries.append(run_qkv(tool, case, options.threads, options.isa, cpus))
            elif "failed" not in answers[peer.name]:
                near = answers[peer.name]["once"] <= FAR * best
                runs, milliseconds = (-(-RUNS // options.rounds), TIMED_MS) if near else (1, 0)
                timed = peer.ask({"do": "time", "runs": runs, "milliseconds": milliseconds})
                if "failed" in timed:
                    answers[peer.name]["failed"] = timed["failed"]
                for name, times in timed.get("ms", {}).items():
                    answers[peer.name]["ms"].setdefault(name, []).extend(times)
    result = {"qkv": merged_qkv(entries), "peers": {}}
    for name, answer in answers.items():
        if "failed" in answer or not answer["ms"]:
            result["peers"][name] = {"failed": answer.get("failed", "nothing was timed")}
            continue
        variants = {variant: timing(times) | {"error": answer["variants"][variant]} for variant, times in answer["ms"].items()}
        best = min(variants, key=lambda variant: variants[variant]["ms"])
        result["peers"][name] = {"best": best, "variants": variants, "wrong": answer["wrong"]} | variants[best]
    return result


def chosen_cases(options):
    cases = all_cases()
    if options.cases:
        return [case for case in cases if any(case.name.startswith(word) for word in options.cases)]
    if options.quick:
        return [case for case in cases if case.quick and not case.full]
    return [case for case in cases if options.full or not case.full]


def check(tool):
    listed = subprocess.run([tool, "bench", "--list"], capture_output=True, text=True, check=True).stdout
    lacking = {case.name for case in all_cases()} - {line.split()[0] for line in listed.splitlines() if line.strip()}
    print("not in qkv bench: " + ", ".join(sorted(lacking)) if lacking else f"{len(all_cases())} cases, all in qkv bench")
    return 1 if lacking else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qkv", default=str(ROOT / "build/release/qkv"), help="the tool (default: build/release/qkv)")
    parser.add_argument("--threads", type=int, default=1, help="threads of qkv and of each peer (default 1)")
    parser.add_argument("--isa", choices=["avx2"], help="qkv's AVX2 kernels, beside peers limited to AVX2 (default: the fastest)")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="cases of `qkv bench` whose names begin with NAME")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--install", nargs="*", choices=PEERS, metavar="NAME", help="makes environments: all, or NAME's")
    parser.add_argument("--environments", type=pathlib.Path, default=environments.FOLDER, help="their folder")
    parser.add_argument("--ggml", metavar="REPOSITORY", help="a clone of ggml's repository, for --install (default: its own)")
    parser.add_argument("--quick", action="store_true", help="some of the cases, one round")
    parser.add_argument("--full", action="store_true", help="also the slow cases: head width 128 above 4,096 tokens")
    parser.add_argument("--rounds", type=int, help="number of rounds (default 2, with --quick 1)")
    parser.add_argument("--minutes", type=float, help="no new case after so many; the same command goes on from --raw's file")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the page of this run (default: none)")
    parser.add_argument("--raw", type=pathlib.Path, help="file for all that was measured, as JSON (build/peers/NAME.json)")
    parser.add_argument("--name", help="of the files (default: date, CPU and threads)")
    parser.add_argument("--note", default="", help="a sentence for the page")
    parser.add_argument("--check", action="store_true", help="fails when `qkv bench` lacks a case")
    parser.add_argument("--worker", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.threads <= len(os.sched_getaffinity(0)):
        parser.error(f"--threads must be from 1 to the {len(os.sched_getaffinity(0))} CPUs of this process: got {options.threads}")
    options.environments = options.environments.resolve()
    options.rounds = options.rounds or (1 if options.quick else 2)
    return options


def main():
    options = arguments()
    if options.worker:
        from peer.worker import serve

        return serve(options.worker, options.threads)
    if options.check:
        return check(options.qkv)
    if options.install is not None:
        return min(1, environments.install(options.install or PEERS, options.environments, {"ggml": options.ggml}))
    started = time.monotonic()
    available = sorted(os.sched_getaffinity(0))
    cpus = available[-options.threads :]
    run = report.machine(options, cpus) | {"cases": [], "seconds": 0}
    options.limited = report.is_limited(run)
    stem = report.stem_of(run, options.name)
    raw = options.raw or ROOT / "build/peers" / f"{stem}.json"
    if options.minutes:
        run = report.continued(run, raw)
    peers, run["missing"] = start_peers(options, cpus)
    run["peers"] = {peer.name: peer.about for peer in peers}
    run["error"] = error_of_qkv(options.qkv)
    for name, reason in run["missing"].items():
        print(f"missing: {name}: {reason}")
    done = {record["name"] for record in run["cases"]}
    left = [case for case in chosen_cases(options) if case.name not in done]
    before = run["seconds"]
    while left and not (options.minutes and time.monotonic() - started > 60 * options.minutes):
        case = left.pop(0)
        run["cases"].append(report.judged(case, measure(case, options.qkv, peers, options, cpus), run))
        print(report.line(run["cases"][-1]), flush=True)
        run["seconds"], run["left"] = before + time.monotonic() - started, len(left)
        report.write_raw(run, raw)
    for peer in peers:
        peer.close()
    print("", *report.summary(run), f"wrote {raw}", sep="\n")
    if left:
        print(f"{len(left)} cases are left: the same command goes on with them")
    if options.out:
        print(f"wrote {report.write(run, options.out, stem)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

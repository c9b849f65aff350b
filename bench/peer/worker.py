"""One peer in its own process: reads requests, one JSON object per line, from standard input, answers on standard output.

{"do": "about"} -> {"version", "settings"};
{"do": "prepare", "case"} -> {"variants": {name: error}, "wrong": {name: error}, "once": ms of the best};
{"do": "time", "runs", "milliseconds"} -> {"ms": {name: [...]}}
"""

import dataclasses
import importlib
import json
import os
import sys
import time

from . import textbook
from .cases import Case
from .environments import PEERS

SLOW_MS = 2000  # a variant that takes so long is timed once
LONGEST_MS = 4000  # of a round of a variant, but for a few runs
HOPELESS = 1.5  # a variant this many times slower than the peer's best is not timed again


def milliseconds(call):
    """call.before, if there is one, is not in the time."""
    getattr(call, "before", lambda: None)()
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def quickly(call):
    """The best of three runs, or one that takes long."""
    first = milliseconds(call)
    return first if first > 300 else min(first, milliseconds(call), milliseconds(call))


class Worker:
    def __init__(self, peer, threads):
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        self.module = importlib.import_module(f"{__package__}.{PEERS[peer].worker}")
        self.settings = self.module.settings(threads)
        self.calls, self.once = {}, {}

    def about(self, _request):
        return {"version": self.module.version(), "settings": self.settings}

    def prepare(self, request):
        self.calls = {}
        case = Case(**request["case"])
        errors, wrong = {}, {}
        for name, (run, error) in self.module.variants(case).items():
            if error is not None and not error <= textbook.TOLERANCE[case.dtype]:
                wrong[name] = error
                continue
            self.calls[name] = run
            errors[name] = error
        self.once = {name: quickly(run) for name, run in self.calls.items()}
        best = min(self.once.values(), default=0)
        self.calls = {name: run for name, run in self.calls.items() if self.once[name] <= HOPELESS * best}
        return {"variants": errors, "wrong": wrong, "once": best}

    def time(self, request):
        measured = {}
        for name, run in self.calls.items():
            if self.once[name] > SLOW_MS:
                measured[name] = [self.once[name]]
                continue
            times, total = [], 0.0
            milliseconds(run)
            while (
                len(times) < 3
                or total < LONGEST_MS
                and (len(times) < request["runs"] or (total < request["milliseconds"] and len(times) < 10000))
            ):
                times.append(milliseconds(run))
                total += times[-1]
            measured[name] = times
        return {"ms": measured}


def serve(peer, threads):
    """Answers until standard input ends. Output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    worker = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or Worker(peer, threads)
            answer = getattr(worker, request["do"])(request)
        except Exception as error:  # a peer that cannot run a case reports it and continues
            lines = str(error).strip().splitlines()
            answer = {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def case_json(case):
    return dataclasses.asdict(case)

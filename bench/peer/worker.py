"""One peer in its own process: reads requests, one JSON object per line, from standard input, answers on standard output.

{"do": "about"} -> {"version", "settings"};  {"do": "agree", "folder", "causal"} -> {"out": file};
{"do": "prepare", "case"} -> {"variants": {name: error}};  {"do": "time", "runs"} -> {"ms": {name: [...]}}
"""

import dataclasses
import importlib
import json
import os
import statistics
import sys
import time

from . import textbook
from .cases import Case

MODULES = {
    "pytorch": "with_pytorch",
    "onnxruntime": "with_onnx_runtime",
    "openvino": "with_openvino",
    "jax": "with_jax",
}
HOPELESS = 1.5  # a variant this many times slower than the peer's best is not timed again


def milliseconds(call):
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


class Worker:
    def __init__(self, peer, threads):
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        self.module = importlib.import_module(f"{__package__}.{MODULES[peer]}")
        self.settings = self.module.settings(threads)
        self.calls = {}

    def about(self, _request):
        return {"version": self.module.version(), "settings": self.settings}

    def agree(self, request):
        import numpy

        q, k, v = (numpy.load(os.path.join(request["folder"], f"{name}.npy")) for name in "qkv")
        exact = numpy.load(os.path.join(request["folder"], f"exact-{request['causal']}.npy"))
        return {"error": textbook.difference(self.module.attend(q, k, v, request["causal"]), exact)}

    def prepare(self, request):
        self.calls = {}
        case = Case(**request["case"])
        errors = {}
        for name, (run, error, *less) in self.module.variants(case).items():
            run()
            self.calls[name] = (run, *less)
            errors[name] = error
        if len(self.calls) > 1:
            once = {name: min(milliseconds(calls[0]) for _ in range(2)) for name, calls in self.calls.items()}
            best = min(once.values())
            self.calls = {name: calls for name, calls in self.calls.items() if once[name] <= HOPELESS * best}
        return {"variants": errors}

    def time(self, request):
        measured = {}
        for name, (run, *less) in self.calls.items():
            times, total = [], 0.0
            run()
            while len(times) < request["runs"] or (total < request["milliseconds"] and len(times) < 10000):
                times.append(milliseconds(run))
                total += times[-1]
            if less:
                forward = statistics.median(milliseconds(less[0]) for _ in range(request["runs"]))
                times = [max(t - forward, 0) for t in times]
            measured[name] = times
        return {"ms": measured}


def serve(peer, threads):
    """Answers until standard input ends. Output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    worker = Worker(peer, threads)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request["do"])(request)
        except Exception as error:  # a peer that cannot run a case reports it and continues
            answer = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def case_json(case):
    return dataclasses.asdict(case)

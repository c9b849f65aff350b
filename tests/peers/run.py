"""Runs the own tests of packages that build only with CUDA on qkv's stand-ins for them, on a CPU.

    python tests/peers/run.py PEER [CHECKOUT] [--sample 200] [--values 0] [--longest 1024] [--seconds 300] [--only TEXT]

A test file is read from the peer's checkout and changed in devices and sizes alone (PEERS); their references (names that end in _ref)
come from the checkout too. Without one: from its source distribution on PyPI, where that holds tests, otherwise from its repository at a
commit; exit code 77 without a network.
A fixed random sample of the cases runs; 0: all.
"""

import argparse
import ast
import collections
import importlib
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import modules
import pytest
import qkv.standins

SKIPPED = 77  #: the exit code that CTest reads as a skip
EINOPS = "einops==0.8.2 --hash=sha256:54058201ac7087911181bfec4af6091bb59380360f069276601256a76af08193"
#: Every peer: its test files; what is changed in them beside "cuda" (pattern, replacement); modules whose references they import, each
#: with the files that those lie in; files and cases that are not about CPUs (pattern of the name, why); cases that exceed its tolerance
#: with a reason (pattern of the name and the values); its source distribution, or its repository and a commit of it.
PEERS: dict[str, dict[str, Any]] = {
    "causal_conv1d": {
        "tests": ["tests/test_causal_conv1d.py"],
        "changes": [(r"range\(10000\)", "range(3)"), (r"4096 \+ 32", "112"), (r"\[2048, 2048 \+ 16, 4096\]", "[64, 80, 96]")],
        "references": {
            "causal_conv1d.causal_conv1d_interface": ["causal_conv1d/causal_conv1d_interface.py"],
            "causal_conv1d.causal_conv1d_varlen": ["causal_conv1d/causal_conv1d_varlen.py"],
        },
        "left_out": {"deterministic|not_reproducible": "asks whether CUDA's atomic additions repeat"},
        "sdist": "causal-conv1d==1.7.0 --hash=sha256:3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b",
    },
    "mamba_ssm": {
        "tests": [
            "tests/ops/test_selective_scan.py", "tests/ops/triton/test_selective_state_update.py",
            "tests/ops/triton/test_layernorm_gated.py", "tests/ops/triton/test_ssd.py",
        ],
        "changes": [(r"'d', \[2048, 4096\]", "'d', [256, 512]"), ("seqlen = 1024", "seqlen = 64")],
        "references": {
            "mamba_ssm.ops.selective_scan_interface": ["mamba_ssm/ops/selective_scan_interface.py"],
            "mamba_ssm.ops.triton.selective_state_update": ["mamba_ssm/ops/triton/selective_state_update.py"],
            "mamba_ssm.ops.triton.layernorm_gated": ["mamba_ssm/ops/triton/layernorm_gated.py"],
        },
        "left_out": {"test_ssd.py": "the pieces of Triton's kernels, which have no names here"},
        "may_fail": {r"mamba_inner_fn.*complex64": "outputs of 1e5 to 1e7: both sides are further from float64 than the tolerance"},
        "commit": ("https://github.com/state-spaces/mamba", "e9594ce1c732d97440f0332fdc43170a2294dbfa"),
    },
    **modules.ROWS,
}  # fmt: skip


def add_references(module: str, files: list[str], checkout: str) -> None:
    """Puts the peer's own references, which call one another and the stand-ins, into the stand-in's module."""
    import torch
    from einops import rearrange, repeat

    into = importlib.import_module(module)
    scope = {"torch": torch, "F": torch.nn.functional, "Tensor": torch.Tensor, "rearrange": rearrange, "repeat": repeat}
    scope |= vars(importlib.import_module("causal_conv1d")) | vars(into)
    for path in (os.path.join(checkout, file) for file in files):
        for node in ast.parse(open(path).read()).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_ref"):
                exec(compile(ast.Module([node], []), path, "exec"), scope)
                setattr(into, node.name, scope[node.name])


def downloaded(lines: list[str], folder: str) -> str:
    """pip's requirements: wheels become importable, a source distribution is unpacked. The folder of that."""
    listed = os.path.join(folder, "requirements.txt")
    with open(listed, "w") as out:
        out.write("\n".join(lines))
    options = ["--no-deps", "--no-build-isolation", "--no-binary", "causal-conv1d,flash-attn,xformers", "--retries", "1"]
    options += ["-r", listed, "-d", folder]
    without = {f"{name}_SKIP_CUDA_BUILD": "TRUE" for name in ("CAUSAL_CONV1D", "FLASH_ATTENTION")}
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options], capture_output=True, text=True, env=os.environ | without)
    if "from versions: none" in done.stderr:
        print("skipped: PyPI cannot be reached")
        sys.exit(SKIPPED)
    if done.returncode:
        sys.exit(done.stderr)
    unpacked = ""
    for file in [os.path.join(folder, x) for x in os.listdir(folder)]:
        if file.endswith(".whl"):
            sys.path.append(file)
        elif file.endswith(".tar.gz"):
            shutil.unpack_archive(file, folder)
            unpacked = file[: -len(".tar.gz")]
    return unpacked


def checked_out(repository: str, commit: str, folder: str) -> str:
    """The files of one commit, which git holds against its name. Their folder."""
    if shutil.which("git") is None:
        print("skipped: there is no git")
        sys.exit(SKIPPED)
    for command in (["init", "-q"], ["fetch", "-q", "--depth", "1", repository, commit], ["checkout", "-q", "FETCH_HEAD"]):
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
        if "unable to access" in done.stderr:
            print(f"skipped: {repository} cannot be reached")
            sys.exit(SKIPPED)
        if done.returncode:
            sys.exit(done.stderr)
    return folder


class Sample:
    """pytest's plugin: chooses cases, and counts."""

    def __init__(self, options: argparse.Namespace, peer: dict[str, Any]) -> None:
        self.options, self.total, self.fitting = options, 0, 0
        self.left_out, self.may_fail, self.change_sizes = peer.get("left_out", {}), peer.get("may_fail", {}), peer.get("sizes", lambda sizes: None)
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.failures: dict[str, list[str]] = collections.defaultdict(list)
        self.start = time.process_time()

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Of every axis of a test only --values, at random: half a million cases take minutes to list."""
        marks = metafunc.definition.own_markers
        for n, mark in enumerate(marks):
            if mark.name == "parametrize" and self.options.values:
                given = dict(zip(("argnames", "argvalues"), mark.args)) | mark.kwargs
                count = len(values := list(given["argvalues"]))
                kept = random.Random(self.options.seed).sample(range(count), min(count, self.options.values))
                if isinstance(given.get("ids"), (list, tuple)):
                    given["ids"] = [given["ids"][i] for i in kept]
                marks[n] = pytest.mark.parametrize(**given | {"argvalues": [values[i] for i in kept]}).mark

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        by_test: dict[str, list[Any]] = collections.defaultdict(list)
        for item in items:
            sizes = getattr(getattr(item, "callspec", None), "params", {})
            self.change_sizes(sizes)
            lengths = [n for name, n in sizes.items() if re.search("(?i)^(seq_?len|T$|kv_?len|q_?len|M$)", name) and isinstance(n, int)]
            for why in [why for pattern, why in self.may_fail.items() if re.search(pattern, f"{item.name} {sizes}")]:
                item.add_marker(pytest.mark.xfail(reason=why))
            fits = max(lengths, default=0) <= self.options.longest and self.options.only in item.nodeid
            if fits and not any(re.search(pattern, item.name) for pattern in self.left_out):
                by_test[item.originalname or item.name].append(item)
        self.total, self.fitting = len(items), sum(map(len, by_test.values()))
        queues = [random.Random(self.options.seed).sample(of_one, len(of_one)) for of_one in by_test.values()]
        kept: list[Any] = []
        while any(queues) and (len(kept) < self.options.sample or not self.options.sample):
            kept += [queue.pop() for queue in queues if queue]
        items[:] = kept

    def pytest_runtest_setup(self, item: Any) -> None:
        if time.process_time() - self.start > self.options.seconds:
            pytest.exit(f"{self.options.seconds} s of CPU time are over", returncode=0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            test = report.nodeid.split("::")[1].split("[")[0]
            self.counts[test]["over" if report.outcome == "skipped" and hasattr(report, "wasxfail") else report.outcome] += 1
            if report.outcome == "failed":
                line = next((x for x in str(report.longrepr).splitlines()[::-1] if x.startswith("E ")), "?")
                self.failures[test].append(f"{report.nodeid}\n      {line[:200]}")

    def print(self) -> int:
        """How many failed; none that passed is a failure."""
        total: collections.Counter[str] = collections.Counter()
        for test, counts in self.counts.items():
            total.update(counts)
            print(f"{test}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        for test, cases in self.failures.items():
            print(f"  {len(cases)} x {test}: {cases[0]}")
        for pattern, why in self.left_out.items():
            print(f"left out: {pattern}: {why}")
        for pattern, why in self.may_fail.items():
            print(f"over its tolerance: {pattern}: {why}: {total['over']}")
        print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped of {self.fitting}; {self.total} in all")
        return total["failed"] + (total["passed"] == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("checkout", nargs="?")
    for name, value in {"sample": 200, "values": 0, "longest": 1024, "seconds": 300.0, "seed": 0, "only": ""}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args()
    peer = PEERS[options.peer]
    needed = [] if options.checkout or "commit" in peer else [peer["sdist"]]
    needed += [] if importlib.util.find_spec("einops") else [EINOPS]
    with tempfile.TemporaryDirectory() as packages, tempfile.TemporaryDirectory() as files, tempfile.TemporaryDirectory() as folder:
        checkout = options.checkout or (checked_out(*peer["commit"], files) if "commit" in peer else "")
        unpacked = downloaded(needed, packages) if needed else ""
        failed = run(peer, checkout or unpacked, options, folder)
    sys.exit(failed > 0)


def run(peer: dict[str, Any], checkout: str, options: argparse.Namespace, folder: str) -> int:
    """How many cases fail; changed test files lie in `folder`."""
    qkv.standins.install(quiet=True)
    for module, files in peer.get("references", {}).items():
        add_references(module, files, checkout)
    peer.get("prepare", lambda folder: None)(checkout)
    sample = Sample(options, peer)
    for name, file in peer.get("helpers", {}).items():
        shutil.copy(os.path.join(os.path.dirname(__file__), file), os.path.join(folder, name))
    for file in peer["tests"]:
        if any(re.search(pattern, file) for pattern in sample.left_out):
            continue
        if not os.path.exists(os.path.join(checkout, file)):
            print(f"not in {os.path.basename(checkout)}: {file}")
            continue
        text = re.sub(r"""(["'])cuda\1""", '"cpu"', open(os.path.join(checkout, file)).read())
        for pattern, replacement in ((r"torch\.cuda\.(manual_seed_all|synchronize)\(.*\)", "None"), *peer["changes"]):
            text = re.sub(pattern, replacement, text)
        with open(os.path.join(folder, os.path.basename(file)), "w") as out:
            out.write(text)
    pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", "-W", "ignore", folder], plugins=[sample])
    return sample.print()


if __name__ == "__main__":
    main()

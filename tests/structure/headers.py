"""Public headers compile alone, and by Clang too, with the house's warnings as errors; a wrong call's first error says what is wrong.

Arguments: COMPILER [FLAG...]
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import tree

WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror".split()


def clang():
    """Clang, where it is installed."""
    return next(filter(None, map(shutil.which, ("clang++", "clang++-16"))), None)


def compile_alone(command, *headers):
    """The compiler's complaint about a file that includes these headers and nothing else, or ''."""
    run = subprocess.run(command, input="".join(f'#include "{name}"\n' for name in headers), capture_output=True, text=True)
    return "" if run.returncode == 0 else f"{headers[0]}: not compiled alone:\n{run.stderr}"


def older_language(command):
    """The first error of C++17 must say what is wanted."""
    run = subprocess.run(command, input="#include <qkv/qkv.h>\n", capture_output=True, text=True)
    first = next((line for line in run.stderr.splitlines() if ": error: " in line), "nothing")
    return [] if "qkv needs C++20" in first else [f"C++17: the first error is {first}"]


# Usual mistakes in a call, and a part of the first error.
WRONG_CALLS = {
    "attention_forward(x, x, x, {.out = out});": "[B, H, T, D]; qkv/easy.h takes std::vector",
    "attention_forward(q, d, q, {.out = out});": "q, k and v must have the same element type",
    "attention_forward(q, q, q, {.out = fixed});": "outputs must be tensors or views that are not const",
    "attention_forward(q, q, q, {.out = out}, {.causal = true});": "write {.mask = qkv::Mask::causal()}",
    "attention_backward(x, x, x, x, x, x, {.dq = out});": "of four axes and one element type",
    "attention_backward(q, d, q, q, out, q, {.dq = out});": "of four axes and one element type",
    "attention_backward(q, q, q, q, lse, q, {.dq = fixed});": "gradients not const",
    "attention_backward(q, q, q, q, lse, q, {.dq = out}, {.causal = true});": "write {.mask = qkv::Mask::causal()}",
}
WRONG_CALL = """#include <qkv/qkv.h>
int main() {{
  qkv::Tensor<float> q({{1, 1, 1, 1}}), out({{1, 1, 1, 1}}), lse({{1, 1, 1}});
  const qkv::Tensor<float> fixed({{1, 1, 1, 1}});
  qkv::Tensor<double> d({{1, 1, 1, 1}});
  std::vector<float> x(1);
  qkv::{}
}}
"""


def wrong_call(command, call):
    """The first error of a wrong call must be a sentence that names the mistake."""
    run = subprocess.run(command, input=WRONG_CALL.format(call), capture_output=True, text=True)
    first = next((line for line in run.stderr.splitlines() if ": error: " in line), "nothing")
    return "" if WRONG_CALLS[call] in first else f"{call}: the first error is {first}"


def main(*compiler):
    root = tree.ROOT / "include"
    headers = sorted(path.relative_to(root).as_posix() for path in tree.cpp_files(("include",)))
    options = ["-std=c++20", *WARNINGS, f"-I{root}", "-fsyntax-only", "-x", "c++", "-"]
    command = [*compiler, *options]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for text in pool.map(lambda each: compile_alone(command, each), headers) if text]
        problems += [text for text in pool.map(lambda each: wrong_call(command, each), WRONG_CALLS) if text]
    problems += older_language([*compiler, "-std=c++17", f"-I{root}", "-fsyntax-only", "-x", "c++", "-"])
    if clang():
        problems += filter(None, [compile_alone([clang(), *options], *headers)])
    if not headers:
        problems.append("no headers found: the test reads the wrong folders")
    return problems, f"{len(headers)} headers compiled alone"

"""Runs the tool and the tests of invariant bits with another C library's functions. Arguments: COMPILER TOOL TESTS FOLDER

A library is loaded in which every function of libm.py gives 1 + 2^-22 times its result: C libraries differ in the last bit, and what
is rounded to float would hide it.
What the tool computes must not change by a bit, and hashes must stay those of the files; what the tool holds against the
textbook, which calls these functions, must change.
"""

import math
import os
import pathlib
import random
import shutil
import struct
import subprocess

from libm import OF_ONE, OF_TWO

HEAD = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#define MOVED(T, name, parameters, arguments) \\
  T name parameters { \\
    T(*real) parameters; \\
    *(void**)&real = dlsym(RTLD_NEXT, #name); \\
    return real arguments * (T)(1 + 0x1p-22); \\
  }
"""


def source():
    lines = [HEAD]
    for end, number in (("", "double"), ("f", "float"), ("l", "long double")):
        lines += [f"MOVED({number}, {name}{end}, ({number} x), (x))" for name in OF_ONE]
        lines += [f"MOVED({number}, {name}{end}, ({number} x, {number} y), (x, y))" for name in OF_TWO]
        lines.append(f"void sincos{end}({number} x, {number}* s, {number}* c) {{ *s = sin{end}(x), *c = cos{end}(x); }}")
    return "\n".join(lines) + "\n"


def write_npy(path, kind, sizes):
    count = math.prod(sizes)
    header = repr({"descr": f"<f{struct.calcsize(kind)}", "fortran_order": False, "shape": tuple(sizes)}).ljust(117) + "\n"
    draw = random.Random(path.stem)
    numbers = struct.pack(f"<{count}{kind}", *(draw.uniform(-2, 2) for _ in range(count)))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + numbers)


def calls(folder):
    """Command lines, and the file that each writes or None."""
    for kind in "fd":
        tensors = {"q": (2, 4, 70, 24), "k": (2, 2, 90, 24), "v": (2, 2, 90, 20), "dout": (2, 4, 70, 20)}
        tensors["bias"] = (1, 4, 70, 90)
        for name, sizes in tensors.items():
            write_npy(folder / f"{name}_{kind}.npy", kind, sizes)
        inputs = [part for name in ("q", "k", "v", "dout") for part in (f"--{name}", str(folder / f"{name}_{kind}.npy"))]
        bias = ["--bias", str(folder / f"bias_{kind}.npy")]
        for bits in ("invariant", "fast"):
            for options in (
                ["--causal=bottom-right", *bias],
                ["--softcap", "5", "--window=20,0,bottom-right", "--dropout", "0.2"],
            ):
                yield ["attend", *inputs, "--hash", "--bits", bits, *options], None
    model = folder / "model.safetensors"
    for bits in ("invariant", "fast"):
        common = ["train", "--bits", bits, "--steps", "12", "--threads", "1", "--out", str(model)]
        yield [*common], model
        yield [*common, "--blocks", "--dropout", "0.1", "--positions", "rotary", "--schedule", "cosine", "--clip", "1"], model
    yield ["generate", "--model", str(model), "--prompt", "ab", "--json"], None


def main(compiler, tool, tests, folder):
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "moved.c").write_text(source(), encoding="utf-8")
    library = folder / "moved.so"
    flags = "-x c -O1 -fPIC -shared -fno-builtin".split()
    subprocess.run([compiler, *flags, "-o", str(library), str(folder / "moved.c"), "-ldl"], check=True)
    other = {**os.environ, "LD_PRELOAD": str(library.resolve())}

    def result(arguments, written, environment):
        text = subprocess.run([tool, *arguments], check=True, capture_output=True, env=environment).stdout
        return written.read_bytes() if written else text

    problems, count = [], 0
    for arguments, written in calls(folder):
        count += 1
        if result(arguments, written, None) != result(arguments, written, other):
            problems.append(f"another C library changes: qkv {' '.join(arguments)}")
    textbook = ["ablate", "--json"]
    if result(textbook, None, None) == result(textbook, None, other):
        problems.append("qkv ablate, which compares with the textbook, is the same: the library was not loaded")
    hashes = subprocess.run([tests, "--gtest_filter=*Others*"], capture_output=True, text=True, env=other)
    if hashes.returncode != 0 or "[  PASSED  ] 4 tests" not in hashes.stdout:
        problems.append(f"another C library changes hashes: {hashes.stdout[-3000:]}{hashes.stderr}")
    return problems, f"{count} computations"

#!/usr/bin/env python3
"""Writes the golden files: what PyTorch computes for qkv's layers, attention itself and the toy language model.

    python3 scripts/golden/make.py [--out tests/golden/data] [--only layers|sdpa|lm]

Needs numpy and torch (CPU). Two runs on one machine and one version of PyTorch give the same bytes.
"""

import argparse
import importlib
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))


def main():
    import torch

    import philox

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER.parents[1] / "tests" / "golden" / "data")
    parser.add_argument("--only", choices=("layers", "sdpa", "lm"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order
    philox.check_known_answers()
    for part in (arguments.only,) if arguments.only else ("layers", "sdpa", "lm"):
        for case in importlib.import_module(part).cases():
            path = case.save(arguments.out)
            print(f"{path.name:45} {path.stat().st_size:8} bytes")


if __name__ == "__main__":
    main()

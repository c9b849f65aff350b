#!/usr/bin/env python3
"""Writes the golden files: what PyTorch computes for qkv's layers, attention itself, linear attention, the toy language model.

    python3 scripts/golden/make.py [--out tests/golden/data] [--only layers|sdpa|modifiers|linear|lm|huggingface]

A file for each part, and the arrays of the toy model's run. Needs numpy and torch (CPU), and for huggingface the package
transformers in the version that huggingface.py names. Two runs on one machine with one version of PyTorch give the same bytes.
"""

import argparse
import importlib
import pathlib
import sys

PARTS = ("layers", "sdpa", "modifiers", "linear", "lm", "huggingface")
FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))


def main():
    import torch

    import philox
    import store

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER.parents[1] / "tests" / "golden" / "data")
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order
    philox.check_known_answers()
    for part in (arguments.only,) if arguments.only else PARTS:
        module = importlib.import_module(part)
        store.save(arguments.out / f"{part}.safetensors", list(module.cases()))
        if part == "lm":
            module.save_run(arguments.out)


if __name__ == "__main__":
    main()

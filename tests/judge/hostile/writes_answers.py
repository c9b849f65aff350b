"""Writes garbage over the files of the exchange."""

import os
import sys


def sdpa(q, k, v, mask=None):
    arguments = [os.fsdecode(argument) for argument in open("/proc/self/cmdline", "rb").read().split(b"\0")]
    folders = [os.getcwd(), *(argument for argument in arguments if "qkv" in argument), *sys.argv[1:]]
    for folder in folders:
        if os.path.isdir(folder):
            for n in range(64):
                with open(os.path.join(folder, f"answer-{n}.safetensors"), "wb") as file:
                    file.write(b"\xff" * 64)
    os._exit(0)


EXPECTED = {"sdpa": ("failed", "wrong", "unknown")}

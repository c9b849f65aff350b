"""`python -m qkv.standins SCRIPT [OPTIONS]`: runs a script, or with -m a module, with every stand-in installed."""

import multiprocessing
import os
import runpy
import sys
from multiprocessing import spawn
from typing import Any

from . import install

_USAGE = """usage: python -m qkv.standins SCRIPT [OPTIONS of the script]
       python -m qkv.standins -m MODULE [OPTIONS of the module]

Runs a program whose `import flash_attn`, causal_conv1d, mamba_ssm, fla or xformers.ops then is qkv on the CPU.

example: python -m qkv.standins train.py --epochs 3
"""


class _Installed:
    """Installs the stand-ins where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return install, ()


def _install_in_children() -> None:
    """Processes by spawn and forkserver import the script anew, behind what is sent to prepare them."""
    prepared = spawn.get_preparation_data
    spawn.get_preparation_data = lambda *given: {**prepared(*given), "standins": _Installed()}
    multiprocessing.set_forkserver_preload([])  # the server itself, which gets nothing, would import the script too


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    as_module = arguments[0] == "-m"
    sys.argv = arguments[1 if as_module else 0 :]
    if not sys.argv:
        sys.exit("python -m qkv.standins: -m needs the name of a module")
    if not as_module and not os.path.isfile(sys.argv[0]):
        sys.exit(f"python -m qkv.standins: there is no file {sys.argv[0]}")
    install()
    _install_in_children()
    if as_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

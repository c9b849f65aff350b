"""Names of packages that build only with CUDA, computed by qkv on the CPU: code that imports them runs unchanged.

    import qkv.standins
    qkv.standins.install()                       # all, or install("flash_attn", "fla")
    from flash_attn import flash_attn_func       # forward and backward, float32 too

    python -m qkv.standins train.py --epochs 3   # for scripts that nobody wants to edit

Functions only: modules and layers of these packages are not imitated. A package that is installed is never replaced. What cannot be
computed raises NotImplementedError at the call, naming the argument; docs/standins.md lists which of their own tests pass.
"""

from .._needs import need

need("qkv.standins", "torch")

from ._finder import install, names, uninstall

__all__ = ["install", "names", "uninstall"]

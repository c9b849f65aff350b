"""Modules and distributions under the names of packages that are not installed: a finder in sys.meta_path, as Python's own.

Each stand-in is one module of this folder, which has MODULES: for every module of the package, what is in it. Modules are made when
they are imported; importlib.metadata answers for them too, because programs ask it which version there is.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

#: Package -> (distribution, the version whose interface this is).
PACKAGES = {
    "flash_attn": ("flash-attn", "2.8.3"),
    "causal_conv1d": ("causal-conv1d", "1.7.0"),
    "mamba_ssm": ("mamba-ssm", "2.3.2"),
    "fla": ("flash-linear-attention", "0.5.2"),
    "xformers": ("xformers", "0.0.35"),
}
_installed: list[str] = []


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata knows of a stand-in."""

    def __init__(self, package: str) -> None:
        self.package = package

    def read_text(self, filename: str) -> str | None:
        name, version = PACKAGES[self.package]
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: qkv's stand-in for the CPU\n",
            "top_level.txt": f"{self.package}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"[qkv.standins] {self.package} is a stand-in: it has no file {path}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        package = name.partition(".")[0]
        if package not in _installed:
            return None
        every = _modules(package)
        if name not in every:
            if sys._getframe(2).f_code.co_name == "find_spec":  # importlib.util's, which asks whether there is one
                return None
            raise ModuleNotFoundError(
                f"[qkv.standins] {name} is not computed here: there are {', '.join(every)}; it needs the real {PACKAGES[package][0]}", name=name
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=any(other.startswith(f"{name}.") for other in every))

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        name, version = PACKAGES[package]
        module.__doc__ = f"{module.__name__} of qkv.standins: the interface of {name} {version} on qkv's kernels, for the CPU."
        vars(module).update(_modules(package)[module.__name__])
        if module.__name__ == package:
            vars(module)["__version__"] = version
        for child in _modules(package):
            if child.rpartition(".")[0] == module.__name__:
                importlib.import_module(child)  # real packages import their modules themselves

    def find_distributions(self, context: Any = importlib.metadata.DistributionFinder.Context()) -> Iterator[Any]:
        wanted = None if context.name is None else context.name.replace("-", "_").lower()
        for package in _installed:
            if wanted in (None, PACKAGES[package][0].replace("-", "_"), package):
                yield _Distribution(package)


_finder = _Finder()


def _modules(package: str) -> dict[str, dict[str, Any]]:
    """Module -> what is in it, by name."""
    return importlib.import_module(f"{__package__}.{package}").MODULES


def _is_real(package: str) -> bool:
    """Whether the package itself is installed, or already imported from elsewhere."""
    held = sys.modules.get(package)
    if held is not None:
        return getattr(held.__spec__, "loader", None) is not _finder
    return importlib.util.find_spec(package) is not None


def names() -> list[str]:
    """The packages that :func:`install` knows."""
    return list(PACKAGES)


def install(*packages: str, quiet: bool = False) -> list[str]:
    """Makes packages importable that are not installed; all that are known without a name. Returns those that qkv computes now.

    quiet: without the line on stderr that says so. A package that is installed stays as it is. transformers then accepts
    attn_implementation="flash_attention_2" on a CPU.
    """
    for package in packages:
        if package not in PACKAGES:
            raise ValueError(f"[qkv.standins] there are stand-ins for {', '.join(PACKAGES)}: got {package!r}")
    new = [x for x in packages or PACKAGES if x not in _installed and not _is_real(x)]
    _installed.extend(new)
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    if "flash_attn" in new:
        from ._transformers import accept

        accept(PACKAGES["flash_attn"][1])
    if new and not quiet:
        print(f"qkv.standins: {', '.join(new)} on this CPU is qkv, not the package of that name", file=sys.stderr)
    return list(_installed)


def uninstall() -> None:
    """Takes every stand-in out, of sys.modules too. What a program has imported already stays what it is."""
    from ._transformers import refuse

    refuse()
    for name in [x for x in sys.modules if x.partition(".")[0] in _installed]:
        del sys.modules[name]
    _installed.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)

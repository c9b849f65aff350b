"""Arrays of NumPy, PyTorch and JAX: which of them a person's code uses, and what its source says about precision."""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

#: Spellings that round to less than float64 somewhere inside.
_NARROW = re.compile(r"""\.(?:float32|float16|bfloat16|half|float|single|FloatTensor)\b|["']float(?:32|16)["']""")


def torch_of() -> Any:
    """PyTorch if something has imported it, None otherwise."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    return torch_of() is not None and isinstance(value, torch_of().Tensor)


def is_array(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return isinstance(value, np.ndarray) or is_tensor(value) or (jax is not None and isinstance(value, jax.Array))


def is_module(value: Any) -> bool:
    return torch_of() is not None and isinstance(value, torch_of().nn.Module)


def of_type(module: Any, dtype: str) -> Any:
    """The module with its real numbers in dtype and its complex ones in two of them; Module.to would drop their imaginary parts."""
    torch = torch_of()
    real, pair = getattr(torch, dtype), torch.complex64 if dtype == "float32" else torch.complex128
    return module._apply(lambda x: x.to(pair if x.is_complex() else real if x.is_floating_point() else x.dtype))


def is_module_class(value: Any) -> bool:
    return torch_of() is not None and isinstance(value, type) and issubclass(value, torch_of().nn.Module)


def to_numpy(value: Any) -> np.ndarray:
    """A copy; 16-bit types as float32."""
    if is_tensor(value):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = (value.float() if value.dtype is torch_of().bfloat16 else value).numpy()
    array = np.array(value)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def modules_in(thing: Any) -> list[Any]:
    """The object itself, or the nn.Modules that a plain object holds."""
    return [thing] if is_module(thing) else [one for one in getattr(thing, "__dict__", {}).values() if is_module(one)]


def arrays_in(thing: Any) -> dict[str, np.ndarray]:
    """Every array that an object holds, itself, in dicts and lists, or in other objects; by its path."""
    found: dict[str, np.ndarray] = {}
    stack, seen = [("", thing)], set()
    while stack:
        path, one = stack.pop()
        if id(one) in seen or isinstance(one, (type, FunctionType, ModuleType)):
            continue
        seen.add(id(one))
        if is_array(one):
            found[path] = to_numpy(one)
        else:
            inner = one if isinstance(one, dict) else dict(enumerate(one)) if isinstance(one, (list, tuple)) else getattr(one, "__dict__", {})
            stack += [(f"{path}.{name}", value) for name, value in inner.items()]
    return found


def from_numpy(array: np.ndarray, framework: str, dtype: str = "float64") -> Any:
    """A copy in the person's framework; floating arrays in `dtype`, others as they are."""
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(dtype)
    if framework == "torch":
        return torch_of().from_numpy(np.array(array))
    return sys.modules["jax"].numpy.asarray(array) if framework == "jax" else np.array(array)


@contextlib.contextmanager
def default_dtype(framework: str, dtype: str) -> Iterator[None]:
    """What torch.zeros and others make inside the person's code."""
    torch = torch_of()
    if framework != "torch":
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def constants(names: Iterable[tuple[dict[str, Any], str, float]], value: Any) -> Iterator[None]:
    """Names of modules that have this value inside, or its power."""
    before = [(scope, name, scope[name]) for scope, name, _ in names]
    for scope, name, power in names:
        scope[name] = value if power == 1 else value**power
    try:
        yield
    finally:
        for scope, name, old in before:
            scope[name] = old


def code_of(thing: Any, visited: set[int] | None = None) -> Iterator[CodeType]:
    """The code of a function or class, and of all that it names in its own module."""
    visited, thing = set() if visited is None else visited, inspect.unwrap(thing) if callable(thing) else thing
    if id(thing) in visited:
        return
    visited.add(id(thing))
    if isinstance(thing, type):
        for member in vars(thing).values():
            member = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(member, FunctionType):
                yield from code_of(member, visited)
        return
    if not isinstance(thing, FunctionType):
        return
    stack = [thing.__code__]
    while stack:
        code = stack.pop()
        yield code
        stack += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            other = thing.__globals__.get(name)
            if isinstance(other, (FunctionType, type)) and getattr(other, "__module__", None) == thing.__module__:
                yield from code_of(other, visited)


def named(thing: Any) -> set[str]:
    """Every global and attribute that the code of a function or class names, in its own module."""
    return {name for code in code_of(thing) for name in code.co_names}


def globals_of(function: Any) -> list[str]:
    """The arrays of its module that a function's code names."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    return [name for name in sorted(named(function) & scope.keys()) if is_array(scope[name]) and scope[name].ndim > 1]


def makes_triangle(thing: Any) -> bool:
    """Whether a function or class makes a causal mask, or asks PyTorch for one."""
    return bool({"tril", "triu", "tri", "triu_indices"} & named(thing)) or bool(re.search(r"is_causal\s*=\s*True", source_of(thing)))


def reads(function: Any, argument: str) -> bool:
    """Whether a function's code reads one of its arguments; true where that cannot be told."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or argument not in code.co_varnames or "locals" in code.co_names:
        return True
    loads = [one.argval for one in dis.get_instructions(code) if one.opname.startswith("LOAD_FAST")]
    read = {name for value in loads for name in (value if isinstance(value, tuple) else (value,))} | set(code.co_cellvars)
    return argument in read or not read & set(code.co_varnames[: code.co_argcount])  # a skeleton reads none


def source_of(thing: Any) -> str:
    """Its text; "" where there is none."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def gives_tables(function: Any) -> bool:
    """Whether a function returns cosines and sines, not what they turned."""
    try:
        tree = ast.parse(textwrap.dedent(source_of(function)))
    except SyntaxError:
        return False
    given = [one.value.elts for one in ast.walk(tree) if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple)]
    texts = [[ast.unparse(one) for one in pair] for pair in given if len(pair) == 2]
    return any("cos" in a and "sin" not in a and "sin" in b and "cos" not in b for a, b in texts)


def dicts_of(function: Any) -> set[str]:
    """The names that a function's code indexes with a string."""
    return {*re.findall(r"""\b(\w+)\[[fr]?["']""", source_of(function))}


def told(thing: Any) -> str:
    """What a function or class says of itself: its docstring and its comments."""
    return " ".join([getattr(thing, "__doc__", None) or "", *re.findall(r"#.*", source_of(thing))])


def parts_of(thing: Any) -> list[Any]:
    """The functions and classes of its module that the code of a function or class names."""
    scope = vars(sys.modules.get(thing.__module__, thing))
    return [scope[name] for name in sorted(named(thing) & scope.keys()) if isinstance(scope[name], (FunctionType, type))]


def told_with_parts(thing: Any) -> str:
    """What a function or class says of itself, and what its parts say."""
    return " ".join(map(told, [thing, *parts_of(thing)]))


def framework_of(thing: Any) -> str:
    """Which of "torch", "jax" and "numpy", by class, by what the code names, by what the file imports."""
    if is_module(thing) or is_module_class(thing):
        return "torch"
    function = inspect.unwrap(thing) if isinstance(thing, (FunctionType, type)) else type(thing)
    module = sys.modules.get(getattr(function, "__module__", ""), None)
    scope = getattr(function, "__globals__", None) or vars(module) if module or hasattr(function, "__globals__") else {}

    def home(value: Any) -> str:
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "") or ""
        return str(name).split(".")[0]

    used = {home(scope[name]) for name in named(function) if name in scope} | {home(function)}
    known = [library for library in ("torch", "jax", "numpy") if library in sys.modules]
    imported = {home(value) for value in scope.values() if isinstance(value, ModuleType)}
    return next(library for library in known if library in (used & {*known} or imported | {"numpy"}))


def rounds(thing: Any) -> bool:
    """Whether the source converts to float32 or less somewhere: float64 inputs do not make its output exact then."""
    source = source_of(thing if isinstance(thing, (FunctionType, type)) else type(thing))
    return bool(_NARROW.search(re.sub(r"#.*", "", source)))

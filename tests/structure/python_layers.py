"""No circle of imports among the modules of the Python package: reads the import statements, those inside functions too.

Code under `if TYPE_CHECKING` is for checkers of types alone and does not count.
"""

import ast
import re

import tree

PACKAGE = tree.ROOT / "python" / "qkv"


def module_name(path):
    parts = ["qkv", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(node):
    """Every node below, but for what only checkers of types read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from statements(child)


def imported(name, is_package, text, modules):
    """The modules of the package that one of them imports."""
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".") if is_package else name.split(".")[:-1]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            # `from . import x`: x is a module where there is one of that name, otherwise what the package itself holds.
            for alias in node.names:
                found = f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                if found in modules:
                    yield found


def circle(edges):
    """One circle as a list of modules, or None."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        path.append(module)
        for other in edges[module]:
            found = visit(other)
            if found:
                return found
        path.pop()
        done.add(module)
        return None

    for module in edges:
        found = visit(module)
        if found:
            return found
    return None


def main():
    paths = [path for path in tree.files(("python/qkv",)) if path.suffix == ".py"]
    modules = {module_name(path): path for path in paths}
    build = (tree.ROOT / "python" / "CMakeLists.txt").read_text(encoding="utf-8")
    extensions = {f"qkv.{name}" for name in re.findall(r"qkv_add_python_module\((_\w+)", build)}
    edges, count = {name: [] for name in extensions}, 0
    for name, path in modules.items():
        known = modules.keys() | extensions
        found = set(imported(name, path.name == "__init__.py", path.read_text(encoding="utf-8"), known))
        edges[name] = sorted(found - {name})
        count += len(edges[name])
    problems = [] if count else ["no imports found: the test reads the wrong folders"]
    found = circle(edges)
    if found:
        problems.append("a circle: " + " -> ".join(found))
    return problems, f"{len(modules)} modules, {count} imports"

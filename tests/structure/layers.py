"""Who may include whom (docs/dev): reads the #include lines and holds them against the table below."""

import tree

# A module is a folder. `public` is include/qkv/*.h; nn, io, lm, view, dist stand for src/<name> and include/qkv/<name> together.
ALLOWED = {
    "public": {"public"},
    "simd": {"simd"},
    "kernels": {"kernels", "simd"},
    "core": {"core", "public"},
    "dispatch": {"dispatch", "kernels", "core", "public"},
    "attention": {"attention", "dispatch", "kernels", "core", "public"},
    "reference": {"reference", "public"},
    "judge": {"judge", "core", "public"},
    "nn": {"nn", "dispatch", "kernels", "core", "public"},
    "dist": {"dist", "attention", "dispatch", "kernels", "core", "public"},
    "io": {"io", "core", "public"},
    "view": {"view", "core", "public"},
    "lm": {"lm", "nn", "core", "public"},
    "lesson": {"lesson", "lm", "nn", "core", "public"},
    "examples": {"examples", "public", "nn", "io", "view", "lm", "dist"},
}
# Rooms of src/attention, lowest first, and the others that each may include; "" is the folder itself. A room names only rooms above
# it in the table, so that no include runs back up and no rooms form a circle.
ATTENTION = {
    "mask": set(), "scores": set(),
    "keys": {"mask"},
    "call": {"mask", "scores", "keys"},
    "plan": {"mask", "call"},
    "capture": {"call"},
    "forward": {"call", "plan", "capture"},
    "backward": {"call", "plan", "capture", "forward"},
    "second_order": {"call", "backward"},
    "linear": {"call"},
    "": {"mask", "call", "plan", "forward", "backward"},
}
# Single headers that a module may take from another beyond the table.
# Kernels speak the 16-bit storage types: plain structures, of which they read the bits and call no member. maths.h has no weak symbol.
ALSO = {"simd": {"qkv/types.h", "core/maths.h"}, "kernels": {"qkv/types.h", "core/maths.h"}}
# dispatch and attention see the parameter structures of the kernels, the tables declared there and how scratch is cut, never
# their loops.
KERNEL_FACE = ("carver.h", "params.h")

# Third-party headers, and the modules that may use them. cli, tests and bench use what they like.
THIRD_PARTY = {
    "nlohmann/": {"io", "judge", "view"}, "zlib.h": {"view"}, "cairo": {"view"}, "pango/": {"view"}, "CLI/": set(), "fmt/": set(),
    "gtest/": set(), "rapidcheck": set(), "benchmark/": set(), "omp.h": set(), "cblas.h": set(), "mpi.h": set(),
}
FREE = {"cli", "tests", "bench", "fuzz"}
# A container in a kernel would be a weak symbol compiled for the wrong instruction set.
NOT_IN_KERNELS = {"vector", "string", "map", "unordered_map", "set", "memory", "functional", "iostream", "optional",
                  "span", "array"}
INTRINSICS = {"immintrin.h", "arm_neon.h", "arm_sve.h", "x86intrin.h"}


def module_of(name):
    """The module that a file of the tree, named from the root, belongs to."""
    parts = name.split("/")
    if parts[0] == "include":
        return parts[2] if len(parts) > 3 else "public"
    return parts[1] if parts[0] == "src" else parts[0]


def target_of(path, text):
    """The file of the tree that an include in quotes means, from the root, or None."""
    for base in (tree.ROOT / "include", tree.ROOT / "src", tree.ROOT / "tests", tree.ROOT / "cli", tree.ROOT / "lesson", path.parent):
        if (base / text).is_file():
            return tree.name_of((base / text).resolve())
    return None


def complaint(path, quote, text):
    """The error of one include, or None."""
    name = tree.name_of(path)
    module = module_of(name)
    third_party = next((prefix for prefix in THIRD_PARTY if text.startswith(prefix)), None)
    if third_party:
        return None if module in FREE or module in THIRD_PARTY[third_party] else f"third-party header in {module}"
    if quote == "<":
        if text.startswith("qkv/"):
            return None if module in FREE | {"examples"} else "own header in angle brackets"
        if name.startswith("include/") and (text.endswith(".h") or "/" in text):
            return "a public header includes the standard library and qkv only"
        if text in INTRINSICS and module not in ("simd", "kernels"):
            return "intrinsics outside simd and kernels"
        if module in ("simd", "kernels") and text in NOT_IN_KERNELS and path.name not in KERNEL_FACE:
            return "std containers do not belong in kernels"
        return None
    target = target_of(path, text)
    if target is None:
        return "no such file"
    if module in FREE or text in ALSO.get(module, ()):
        return None
    if name.startswith("include/") and not target.startswith("include/"):
        return "include/ never includes src/"
    other = module_of(target)
    if other not in ALLOWED.get(module, ()):
        return f"{module} may include {sorted(ALLOWED.get(module, ()))}, not {other}"
    if module == other == "attention":
        room, of = (each.split("/")[2] if each.count("/") > 2 else "" for each in (name, target))
        if room != of and of not in ATTENTION.get(room, ()):
            return f"attention/{room} may include {sorted(ATTENTION.get(room, ()))}, not {of}"
    if other == "kernels" and module != "kernels" and target.split("/")[-1] not in KERNEL_FACE:
        return f"{module} may see only {' and '.join(KERNEL_FACE)} of kernels"
    return None


def main():
    problems, count = [], 0
    rooms = list(ATTENTION)
    for n, room in enumerate(rooms):
        problems += [f"attention/{room} names {other}, which is not below it" for other in ATTENTION[room] - set(rooms[:n])]
    for path in tree.cpp_files(("include", "src", "cli", "lesson", "examples")):
        for number, quote, text in tree.includes(path):
            count += 1
            wrong = complaint(path, quote, text)
            if wrong:
                problems.append(f"{tree.name_of(path)}:{number}: #include {text}: {wrong}")
    if count == 0:
        problems.append("no includes found: the test reads the wrong folders")
    return problems, f"{count} includes read"

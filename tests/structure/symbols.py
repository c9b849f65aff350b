"""Reads the symbols of one instruction set's kernel objects. Arguments: NM ISA OBJECT...

A weak symbol compiled for AVX-512 may replace the baseline's copy at link time, and an old CPU crashes. So the objects of an
instruction set define no weak symbol, need none of C++ from outside, and export one table each, named qkv_kernels_<isa> or
qkv_<family>_kernels_<isa>, and nothing else.
"""

import re
import subprocess

WEAK = set("WwVvu")
EXPORTED = set("TDRBGSC")


def symbols(nm, path):
    """(type, mangled name) of each symbol."""
    text = subprocess.run([nm, "--format=posix", path], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2:
            yield fields[1], fields[0]


def main(nm, isa, *objects):
    problems, exported = [], set()
    wanted = re.compile(rf"qkv_(?:[a-z_]+_)?kernels_{isa}(?![a-z0-9])")
    for path in objects:
        for kind, name in symbols(nm, path):
            if kind in WEAK:
                problems.append(f"{path}: weak symbol {name}")
            elif kind in EXPORTED:
                exported.add(name)
            elif kind == "U" and name.startswith("_Z") and not wanted.search(name):
                problems.append(f"{path}: needs the C++ symbol {name} from outside")
    problems += [f"{isa}: exports {name}, not named qkv_[family_]kernels_{isa}"
                 for name in sorted(exported) if not wanted.search(name)]
    if len(exported) != len(objects):
        problems.append(f"{isa}: exports {len(exported)} symbols, wanted one table an object: {sorted(exported)}")
    return problems, f"{isa}: {len(objects)} objects, exported: {sorted(exported)}"

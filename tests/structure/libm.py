"""Reads the symbols of the libraries that decide bits. Arguments: NM LIBRARY...

C libraries differ in the last bit of their functions, and CPUs in long double: results that are the same on all of them call
neither (core/maths.h). What IEEE 754 defines to the last bit may come from there: square roots, fmod, floor.
"""

import pathlib
import re

from symbols import symbols

TURNS = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
OF_ONE = (*TURNS, "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "cbrt", "erf", "erfc", "lgamma", "tgamma")
OF_TWO = ("pow", "hypot", "atan2")
INEXACT = re.compile(rf"({'|'.join(OF_ONE + OF_TWO)}|sincos)[fl]?|__\w+tf\d?")
NOT_SEARCHED = ("reference", "judge")  # oracles; 80 bits on x86-64 have no symbols


def main(nm, *libraries):
    problems = {
        f"{pathlib.Path(library).name} calls {name}"
        for library in libraries
        for kind, name in symbols(nm, library)
        if kind == "U" and INEXACT.fullmatch(name.split("@")[0])
    }
    root = pathlib.Path(__file__).parents[2] / "src"
    problems |= {
        f"{path}: long double"
        for path in root.rglob("*.[ch]*")
        if path.relative_to(root).parts[0] not in NOT_SEARCHED and "long double" in path.read_text(encoding="utf-8")
    }
    return sorted(problems), f"{len(libraries)} libraries"

"""One check of the house: check.py NAME [ARGUMENT...]. main(*arguments) of NAME.py gives the problems and a summary."""

import importlib
import sys

problems, summary = importlib.import_module(sys.argv[1]).main(*sys.argv[2:])
for problem in problems:
    print(problem)
print(f"{summary}; {len(problems)} problems")
sys.exit(bool(problems))

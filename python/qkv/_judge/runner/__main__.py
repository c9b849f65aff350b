"""`python3 -B FOLDER GIVEN DIR`: the runner as a child process of the tool. The folder is a package of whatever name it has."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    sys.path[0] = str(folder.parent)
    process = importlib.import_module(f"{folder.name}.process")
    del sys.path[0]  # the person's file is to find its own neighbours, none of the runner's
    process.main(sys.argv[1:])

"""No kernel touches an MMX register. Arguments: OBJDUMP OBJECT...

They share registers with the x87 stack: one left in use, and long double arithmetic anywhere in the program gives NaN. No
source asks for them, but GCC 12 takes one now and then to move 8 bytes.
"""

import re
import subprocess

MMX = re.compile(r"%mm[0-7]\b")


def main(objdump, *objects):
    problems, count = [], 0
    for path in objects:
        command = [objdump, "--disassemble", "--no-show-raw-insn", path]
        for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
            count += "%xmm" in line
            if MMX.search(line):
                problems.append(f"{path}: {line.strip()}")
    if count == 0:
        problems.append(f"no instruction on vectors read: is {objdump} one for x86?")
    return problems, f"{len(objects)} objects, {count} instructions on vectors read"

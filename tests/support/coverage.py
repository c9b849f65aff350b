"""From llvm-cov's report and its lines (export -format=lcov): the page of what no C++ test reaches, each file with the reason that unreached.tsv
gives.

Usage: coverage.py REPORT LINES PAGE. Ends with 1 where a file of which less than 90 % of the lines run has no reason but that of a library, or one
of which none run has none of its own: a pattern may hide dead code. Which files have too few depends on the CPU's instruction sets: reasons that
this one does not need are printed.
"""

import sys
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

ENOUGH = 90.0
HEAD = """# Coverage

Made by `./scripts/verify-release --stage clang` from llvm-cov's report; the reasons are in [unreached.tsv](../../tests/support/unreached.tsv). Of
library and tool the C++ tests run {lines} of the lines, {branches} of the branches, {functions} of the functions. Of {files} files {whole} are run
to the last line. The others, with the lines that are not:

| file | lines run | branches | not run | why |
|---|---|---|---|---|
"""


def missed(text):
    """Of each source the lines that were never run, as text: "7, 20-31"."""
    for source in text.split("end_of_record\n"):
        lines = source.splitlines()
        numbers = sorted({int(line[3:].split(",")[0]) for line in lines if line.startswith("DA:") and line.split(",")[1] == "0"})
        if numbers:
            runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
            name = next(line for line in lines if line.startswith("SF:"))[3:]
            yield name, ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)


def main() -> None:
    report, source, page = map(Path, sys.argv[1:])
    reasons = dict(line.split("\t") for line in Path(__file__).with_name("unreached.tsv").read_text().splitlines())
    # File, regions, missed, %, functions, missed, %, lines, missed, %, branches, missed, %.
    rows = [row for row in map(str.split, report.read_text().splitlines()) if len(row) == 13 and row[9].endswith("%")]
    total = rows.pop()
    assert total[0] == "TOTAL", total
    lines = dict(missed(source.read_text()))
    table, unused, without = "", set(reasons), []
    for row in rows:
        left = next((numbers for name, numbers in lines.items() if name.endswith(f"/{row[0]}")), "")
        pattern = next((one for one in reasons if fnmatch(row[0], one)), "")
        share = float(row[9][:-1])
        if share < ENOUGH:
            if pattern.count("/") < 2 or (share == 0 and pattern != row[0]):
                without.append(f"{row[0]}: {row[9]} of its lines run, and no reason of its own")
        if left:
            unused.discard(pattern)
            table += f"| {row[0]} | {row[9]} | {row[12]} | {left} | {reasons[pattern]} |\n"
    head = {"lines": total[9], "branches": total[12], "functions": total[6], "files": len(rows)}
    page.write_text(HEAD.format(whole=len(rows) - table.count("\n"), **head) + table)
    for pattern in sorted(unused):
        print(f"unreached.tsv: {pattern}: enough of it runs here")
    sys.exit("\n".join(without) or 0)


if __name__ == "__main__":
    main()

"""From llvm-cov's report: the page of what no C++ test reaches, each file with the reason that unreached.tsv gives.

Usage: coverage.py REPORT PAGE. Ends with 1 where a file of which less than 90 % of the lines run has no reason. Which files have too few depends on
the CPU's instruction sets: reasons that this one does not need are printed.
"""

import sys
from fnmatch import fnmatch
from pathlib import Path

ENOUGH = 90.0
HEAD = """# Coverage

Made by `./scripts/verify-release --stage clang` from llvm-cov's report; the reasons are in [unreached.tsv](../../tests/support/unreached.tsv). Of
library and tool the C++ tests run {lines} of the lines, {branches} of the branches, {functions} of the functions. Of {files} files {whole} have
{enough:.0f} % of their lines or more; the others, and why:

| file | lines | branches | why the rest is not run |
|---|---|---|---|
"""


def main() -> None:
    report, page = map(Path, sys.argv[1:])
    reasons = dict(line.split("\t") for line in Path(__file__).with_name("unreached.tsv").read_text().splitlines())
    # File, regions, missed, %, functions, missed, %, lines, missed, %, branches, missed, %.
    rows = [row for row in map(str.split, report.read_text().splitlines()) if len(row) == 13 and row[9].endswith("%")]
    total = rows.pop()
    assert total[0] == "TOTAL", total
    low = [row for row in rows if float(row[9][:-1]) < ENOUGH]
    text = HEAD.format(lines=total[9], branches=total[12], functions=total[6], files=len(rows), whole=len(rows) - len(low), enough=ENOUGH)
    unused, without = set(reasons), []
    for row in low:
        pattern = next((one for one in reasons if fnmatch(row[0], one)), None)
        if pattern is None:
            without.append(f"{row[0]}: {row[9]} of its lines run, and no reason")
            continue
        unused.discard(pattern)
        text += f"| {row[0]} | {row[9]} | {row[12]} | {reasons[pattern]} |\n"
    page.write_text(text)
    for pattern in sorted(unused):
        print(f"unreached.tsv: {pattern}: enough of it runs here")
    sys.exit("\n".join(without) or 0)


if __name__ == "__main__":
    main()

"""Points of a course: `python points.py TASKS --out FOLDER`. Judges each file that TASKS names, prints a table, and writes points.json
and a .sarif for each file to FOLDER. Exit code 0: all points; 1: not all."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("tasks", type=Path)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--sandbox", action="store_true", help="judge with --sandbox: needs bubblewrap")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
rows = []
for number, line in enumerate(options.tasks.read_text().splitlines(), 1):
    if not line.strip() or line.startswith("#"):
        continue
    try:
        file, task, points = line.split()
        points = float(points)
    except ValueError:
        sys.exit(f"{options.tasks}:{number}: must be FILE TASK POINTS: got {line}")
    finding = {"verdict": "missing", "mistakes": []}
    if Path(file).is_file():
        sarif = options.out / f"{file}.sarif"
        sarif.parent.mkdir(parents=True, exist_ok=True)
        judge = [sys.executable, "-m", "qkv", "judge", file, "--task", task, "--python", sys.executable, *["--sandbox"] * options.sandbox]
        done = subprocess.run([*judge, "--json", "--sarif", sarif], capture_output=True, text=True)
        finding = json.loads(done.stdout) if done.stdout else sys.exit(done.stderr)
        log = json.loads(sarif.read_text(encoding="utf-8"))
        log["runs"][0]["automationDetails"] = {"id": f"qkv judge/{file}/"}  # GitHub takes one run of a category
        sarif.write_text(json.dumps(log), encoding="utf-8")
    got = points if finding["verdict"] in ("right", "convention") else 0
    says = ", ".join(one["id"] for one in finding["mistakes"])
    rows.append({"file": file, "task": task, "points": got, "of": points, "verdict": finding["verdict"], "says": says})
(options.out / "points.json").write_text(json.dumps(rows, indent=2))
total = [sum(row[name] for row in rows) for name in ("points", "of")]
table = ["| file | task | points | verdict | |", "|---|---|---|---|---|"]
table += [f"| {row['file']} | {row['task']} | {row['points']:g}/{row['of']:g} | {row['verdict']} | {row['says']} |" for row in rows]
text = "\n".join([*table, "", f"{total[0]:g} of {total[1]:g} points"])
print(text)
if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
    Path(summary).write_text(text)
sys.exit(total[0] < total[1])

"""Scripts that work for hours, in a repository of their own: stubs stand for their work, so that only what is around it runs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tree

WHO = ("-c", "user.name=qkv", "-c", "user.email=qkv@qkv.invalid")


def repository(folder, script, before, stubs):
    """A commit of the scripts; one of them has stubs before a line, and every package is there."""
    for name in ("scripts/lib.sh", script, "packaging/trial.sh", "include/qkv/version.h", "python/tests/requirements.txt"):
        text = (tree.ROOT / name).read_text(encoding="utf-8")
        if name == script:
            assert text.count(f"\n{before}") == 1, before
            text = text.replace(f"\n{before}", f"\n{stubs}\n{before}")
        if name == "scripts/lib.sh":
            text += "ensure_packages() { :; }\n"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    (folder / ".gitignore").write_text("/build/\n/dist/\n", encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "scripts"]):
        subprocess.run(["git", "-C", folder, *WHO, *command], check=True)


def run(folder, *command):
    """The script's exit code and all that it says, called from the folder's parent."""
    done = subprocess.run(
        ["bash", f"{folder.name}/{command[0]}", *command[1:]], cwd=folder.parent, capture_output=True, text=True,
        env={**os.environ, "TMPDIR": str(folder.parent)})  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def release(folder):
    """--check ends well, leaves nothing of itself and prints the sums; what is not committed is not released; a second option is refused, and so
    is a proof of what is not there. An environment whose making was interrupted is made anew; a machine that keeps its network builds too."""
    stubs = """[ -z "${TRY:-}" ] || { eval "$TRY"; exit; }
step() { echo "0123  a wheel" >"$out/SHA256SUMS"; : >"$work/verdicts"; }
pythons() { echo python3; }"""
    repository(folder, "scripts/release", "mapfile -t requirements", stubs)
    for option, says in (("--wheel", "usage: "), ("--prove", "dist/ holds no .whl"), ("--prove-pythons", "dist/ holds no .whl")):
        code, text = run(folder, "scripts/release", option, *["--check"] * (option == "--wheel"))
        if code != 1 or says not in text:
            yield f"release {option}: {code}, {text}"
    (folder / "build/check/first").mkdir(parents=True)
    code, text = run(folder, "scripts/release", "--check")
    if code or "0123  a wheel" not in text or not (folder / "dist/SHA256SUMS").is_file() or (folder / "build/check").exists():
        yield f"release --check: {code}, {text}"
    for what, trial in (
        ("a stopped venv", 'python3 -m venv --without-pip build/v; environment python3 "$PWD/build/v" pip; build/v/bin/python -m pip --version'),
        ("a kept network", 'unshare() { return 1; }; compile() { [ "${1##*/}" = python ]; exit; }; work=build; out=dist; from_sdist'),
    ):
        os.environ["TRY"] = trial
        code, text = run(folder, "scripts/release")
        del os.environ["TRY"]
        if code:
            yield f"release after {what}: {code}, {text}"
    with open(folder / "include/qkv/version.h", "a", encoding="utf-8") as file:
        file.write("// another\n")
    code, text = run(folder, "scripts/release")
    if code == 0 or "is not the last commit" not in text:
        yield f"release of a changed tree: {code}, {text}"


def verify_release(folder):
    """A stage that passed is passed over while it and its files are the same, never where one of them is not committed, or changed while it ran:
    --list ends with 1 then; a name that is none and hours that are no number are errors."""
    stub = 'stage_arm() { figure 1; [ -z "${EDIT:-}" ] || echo "$EDIT" >src/new.txt; }'
    repository(folder, "scripts/verify-release", "chosen=() failed=()", stub)
    script = folder / "scripts/verify-release"
    script.write_text(re.sub(r'(readonly stages=").*?(\narm )', r"\1\2", script.read_text(encoding="utf-8"), flags=re.S), encoding="utf-8")
    (folder / "docs/dev").mkdir(parents=True)
    (folder / "src").mkdir()
    subprocess.run(["git", "-C", folder, *WHO, "commit", "-qam", "one stage"], check=True)
    os.environ["EDIT"] = "while it runs"
    run(folder, "scripts/verify-release")
    del os.environ["EDIT"]
    (folder / "src/new.txt").unlink()
    for what, runs in (("changed while it ran", True), ("again", False), ("changed elsewhere", False), ("another stage", True), ("now", False),
                       ("changed", True), ("changed again", True)):  # fmt: skip
        if what == "another stage":
            script.write_text(script.read_text(encoding="utf-8").replace("{ figure 1;", "{ figure 2;"), encoding="utf-8")
        new = {"changed elsewhere": "bench.txt", "changed": "src/new.txt"}.get(what)
        if new:
            (folder / new).write_text("not known to git\n", encoding="utf-8")
        listed, _ = run(folder, "scripts/verify-release", "--list")
        if listed != runs:
            yield f"verify-release --list, {what}: {listed}"
        code, text = run(folder, "scripts/verify-release")
        if code or runs != ("arm: passed" in text):
            yield f"verify-release, {what}: {code}, {text}"
    for option, value in (("--stage", "nonsense"), ("--hours", "nonsense"), ("--hours", "0.0")):
        code, text = run(folder, "scripts/verify-release", option, value)
        if code == 0 or value not in text:
            yield f"verify-release {option} {value}: {code}, {text}"


def foreign():
    """A package that is installed for one architecture of two is there."""
    script = r'''. scripts/lib.sh
is_debian() { :; }
dpkg-query() { for state in installed not-installed; do printf "$(sed "s/.*{db:Status-Status}/$state/" <<<"$2")"; done; }
is_there zlib1g-dev x'''
    if subprocess.run(["bash", "-c", script], cwd=tree.ROOT).returncode:
        yield "lib.sh misses a package of two architectures"


def emulated():
    """Every name of scripts/test-arm is of some test: a renamed one would end a run of an hour when its build is done."""
    text = (tree.ROOT / "scripts/test-arm").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in tree.ROOT.glob("tests/**/*.cc"))
    known = [f"{suite}.{name}<float>" for suite, name in re.findall(r"^\w*TEST\w*\((\w+),\s*(\w+)", tests, re.MULTILINE)]
    spelled = re.search(r"python3 -c '(.*?)'", text, re.DOTALL)[1]
    short = "".join(re.findall(r"^short\+?='(.*)'", text, re.MULTILINE))
    names = subprocess.run([sys.executable, "-c", spelled], input=short, capture_output=True, text=True, check=True).stdout.split()
    assert len(names) > 20, names
    for name in names:
        if not name.startswith("simd") and not any(re.search(name, one) for one in known):
            yield f"scripts/test-arm: no test is called {name}"


def refused():
    """Arguments that a script does not know are errors, said before anything is done."""
    stubs = ". scripts/lib.sh\nensure_packages() { exit; }\ngit() { exit; }"
    for name, *arguments in (("build", "--debug"), ("abi-check", "v0.1.0", "v0.2.0")):
        text = (tree.ROOT / "scripts" / name).read_text(encoding="utf-8").replace('. "$(dirname "$0")/lib.sh"', stubs)
        done = subprocess.run(["bash", "-c", text, name, *arguments], cwd=tree.ROOT, capture_output=True, text=True)
        if done.returncode != 1 or "usage: " not in done.stderr:
            yield f"scripts/{name} {arguments}: {done.returncode}, {done.stderr}"


def stopped():
    """CPython whose installation was stopped is built again, and one that is there is not; a trial that fails shows its logs, and none is of what
    this machine sets."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "cpython"
        for path in (made / "bin/python3.10", Path(folder) / "curl"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
            path.chmod(0o755)
        path = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        for expected in (0, 9):
            code = subprocess.run([tree.ROOT / "packaging/cpython", "10", made], env=path).returncode
            if code != expected:
                yield f"packaging/cpython, {'stopped' if expected else 'there'}: {code}"
            (made / "source").mkdir(exist_ok=True)
        (Path(folder) / "apt.log").write_text("why it failed\n", encoding="utf-8")
        script = f". packaging/trial.sh; folder={folder}; trap logs_of_a_failure EXIT; exit 3"
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tree.ROOT, capture_output=True, text=True)
        if done.returncode != 3 or "why it failed" not in done.stderr:
            yield f"a trial that failed: {done.returncode}, {done.stderr}"
        (Path(folder) / "curl").rename(Path(folder) / "unshare")
        (Path(folder) / "unshare").write_text("#!/bin/sh\nenv\n", encoding="utf-8")
        done = subprocess.run(["bash", "-euc", ". packaging/trial.sh; root=x; inside qkv"], cwd=tree.ROOT, capture_output=True, text=True,
                              env={**path, "QKV_LANG": "zh", "PIP_TARGET": "/x"})  # fmt: skip
        if done.returncode or "PATH=" not in done.stdout or re.search("^(QKV_LANG|PIP_TARGET)=", done.stdout, re.M):
            yield f"a trial in a bare system: {done.returncode}, {done.stdout}"


def main():
    if not shutil.which("git"):
        return [], "untried without git"
    problems = [*foreign(), *emulated(), *refused(), *stopped()]
    for trial in (release, verify_release):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "qkv").mkdir()
            problems += trial(Path(folder) / "qkv")
    return problems, "release, verify-release, lib, build, abi-check, test-arm, cpython, trial"

"""The report of a run of bench/peers.py: a line per case, the table, the page, the raw JSON."""

import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import textwrap

from .cases import ATTENTION
from .environments import UNLIMITED

STEADY = 0.03
LEVEL = 0.03  # a ratio so near to 1 is neither ahead nor behind: another run moves it as much
BEYOND = 1.05  # of AVX2's peak: computed with wider vectors
PEAKS = {"fma": "fma_f32_gflops", "bf16 dot": "dot_bf16_gflops", "bandwidth": "read_gbs"}  # the peak that a fraction refers to


def _output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu(model):
    """The CPU's name, and the numbers that identify its generation where a virtual machine hides it."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    numbers = [re.search(rf"^{key}\s*: (\d+)", text, re.MULTILINE) for key in ("cpu family", "model", "stepping")]
    if not all(numbers):
        return model
    return "{} (family {}, model {}, stepping {})".format(model, *(number[1] for number in numbers))


def machine(options, cpus):
    """Where, when and with which settings the run was made."""
    info = json.loads(_output(options.qkv, "info", "--json"))
    root = pathlib.Path(__file__).resolve().parent
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(info["cpu"]["model"]),
        "features": info["cpu"]["features"],
        "caches": info["cpu"]["caches"],
        "isa": options.isa or info["isa"]["chosen"],
        "qkv": info["version"],
        "cpus": len(os.sched_getaffinity(0)),
        "pinned_to": cpus,
        "threads": options.threads,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "commit": _output("git", "-C", str(root), "rev-parse", "--short", "HEAD"),
        "rounds": options.rounds,
        "left": 0,
        "note": options.note,
    }


def continued(run, raw):
    """The run that `raw` holds, where it is the same one and has cases left; otherwise `run`."""
    if not raw.exists():
        return run
    old = json.loads(raw.read_text())
    same = ("cpu", "isa", "threads", "rounds", "commit", "qkv", "pinned_to")
    return old if old.get("left") and all(old[key] == run[key] for key in same) else run


def is_limited(run):
    return run["isa"] == "avx2" and "avx512f" in run["features"]


def _counts(name, peer, qkv, run):
    """With qkv held to AVX2, peers that have no such limit are named apart."""
    wider = peer.get("gflops", 0) > BEYOND * (qkv["peak"]["fma_f32_gflops"] or 1)
    return not is_limited(run) or not (wider or UNLIMITED in run["peers"][name]["settings"])


def judged(case, result, run):
    """The result with fractions and ratios. A peer's fraction is of the peak measured beside qkv."""
    qkv, peers = result["qkv"], result["peers"]
    record = {"name": case.name, "kind": case.kind, "dtype": case.dtype, "causal": case.causal}
    record |= {"q_len": case.q_len, "head_dim": case.head_dim, "flops": case.flops()}
    record |= {"qkv": qkv, "peers": peers, "ratio": None, "best_peer": None, "apart": {}}
    if case.flops() and abs(qkv["gflops"] * qkv["ms"] * 1e6 / case.flops() - 1) > 1e-6:
        raise SystemExit(
            f"{case.name}: qkv counts {qkv['gflops'] * qkv['ms'] * 1e6:.0f} flops, bench/peer/cases.py {case.flops():.0f}"
        )
    if qkv["of"] in PEAKS:
        rate = qkv["gbs"] if qkv["of"] == "bandwidth" else qkv["gflops"]
        peak = qkv["peak"][PEAKS[qkv["of"]]]
        for entry in [qkv] + [peer for peer in peers.values() if "ms" in peer]:
            entry["fraction"] = rate * qkv["ms"] / entry["ms"] / peak
    timed = {name: peer for name, peer in peers.items() if "ms" in peer}
    for peer in timed.values():
        peer["gflops"] = case.flops() / peer["ms"] / 1e6
    record["apart"] = {name: peer["ms"] / qkv["ms"] for name, peer in timed.items() if not _counts(name, peer, qkv, run)}
    timed = {name: peer for name, peer in timed.items() if name not in record["apart"]}
    if timed:
        record["best_peer"] = min(timed, key=lambda name: timed[name]["ms"])
        record["ratio"] = timed[record["best_peer"]]["ms"] / qkv["ms"]
    return record


def line(record):
    qkv = record["qkv"]
    peers = "  ".join(f"{name} {peer['ms']:.4g}" if "ms" in peer else f"{name} -" for name, peer in record["peers"].items())
    ratio = f"{record['ratio']:.2f} x" if record["ratio"] else "-"
    return f"{record['name']:<32} qkv {qkv['ms']:.4g} ms  {peers}  ratio {ratio}"


def _percent(value):
    return f"{100 * value:.0f} %" if value is not None else "-"


def _fraction(entry, of):
    return _percent(entry.get("fraction")) if of in PEAKS else "-"


def _own(qkv):
    """qkv's fraction as the table shows it."""
    if qkv["of"] == "plain":
        return f"{1 / qkv['fraction']:.2f} x plain"
    return _percent(qkv["fraction"]) + ("" if qkv["of"] == "fma" else f" of {qkv['of']}")


def _rows(run):
    yield "case,qkv ms,fraction,fastest peer,its ms,its fraction,ratio".split(",")
    for record in run["cases"]:
        qkv = record["qkv"]
        moved = " *" if qkv["peak_moved"] > STEADY else ""
        cells = [record["name"], f"{qkv['ms']:.4g} ±{100 * qkv['spread'] / 2:.0f} %{moved}", _own(qkv)]
        if record["best_peer"]:
            peer = record["peers"][record["best_peer"]]
            cells += [f"{record['best_peer']}: {peer['best']}", f"{peer['ms']:.4g} ±{100 * peer['spread'] / 2:.0f} %"]
            cells += [_fraction(peer, qkv["of"]), f"{record['ratio']:.2f}"]
        else:
            cells += ["none", "", "", "-"]
        yield cells


def table_of(rows):
    """Markdown, the first row its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def counts(ratios):
    """(ahead, level, behind), of ratios as the tables show them."""
    ratios = [round(ratio, 2) for ratio in ratios]
    ahead, behind = (sum(test(ratio) for ratio in ratios) for test in (lambda r: r > 1 + LEVEL, lambda r: r < 1 - LEVEL))
    return ahead, len(ratios) - ahead - behind, behind


def _not_counted(run, records):
    """Sentences about what was run and is in no ratio."""
    for name in run["peers"]:
        apart = {record["name"]: record["apart"][name] for record in records if name in record["apart"]}
        ahead = ", ".join(case for case, ratio in apart.items() if ratio < 1) or "nowhere"
        if apart:
            yield f"{name} is not held to AVX2 in {len(apart)} cases, in which it does not count; ahead there: {ahead}"
        for record in records:
            for variant, error in record["peers"].get(name, {}).get("wrong", {}).items():
                yield f"{name} in {record['name']}: {variant} is {error:.2g} from f64 and does not count"


def summary(run):
    records = run["cases"]
    moved = sum(record["qkv"]["peak_moved"] > STEADY for record in records)
    ratios = [record["ratio"] for record in records if record["ratio"]]
    lost = [record["name"] for record in records if record["ratio"] and record["ratio"] < 1]
    lines = ["Ahead of the fastest peer in {} cases, level (within 3 %) in {}, behind in {}.".format(*counts(ratios))]
    lines += ["Slower than the fastest peer: " + (", ".join(lost) if lost else "none") + "."]
    lines += [f"{sentence}." for sentence in _not_counted(run, records)]
    if moved:
        lines.append(f"* {moved} of {len(records)} cases: the peak moved by more than 3 % while they ran.")
    if run["left"]:
        lines.append(f"{run['left']} cases are left.")
    return lines


def _errors(run):
    """Of each peer the largest difference from f64, of all its variants, in f32 attention forward."""
    yield f"qkv {run['error']:.1e}"
    records = [record for record in run["cases"] if record["kind"] in ATTENTION and record["dtype"] == "f32"]
    for name in run["peers"]:
        found = [variant["error"] for record in records for variant in record["peers"][name].get("variants", {}).values()]
        yield f"{name} {max(found):.1e}" if found else f"{name} -"


def _peaks(run):
    """ "f32 FMA 196.8 GFLOP/s (195.1 to 197.0)": median and range over the cases."""
    words = []
    names = {"fma": "f32 multiply-adds {} GFLOP/s", "bf16 dot": "bf16 products {} GFLOP/s", "bandwidth": "read {} GB/s"}
    for of, name in names.items():
        peaks = [record["qkv"]["peak"].get(PEAKS[of]) for record in run["cases"]]
        values = [peak for peak in peaks if peak]
        if values:
            words.append(name.format(f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"))
    return ", ".join(words)


def markdown(run):
    isa = ", AVX2" if is_limited(run) else ""
    lines = [f"# {run['cpu']}, {run['threads']} thread{'s' if run['threads'] > 1 else ''}{isa}, {run['date']}", ""]
    if run["note"]:
        lines += [run["note"], ""]
    lines += [
        "| | |",
        "|---|---|",
        f"| CPU | {run['cpu']}, {run['cpus']} available, pinned to {run['pinned_to']}; {', '.join(run['features'])} |",
        f"| caches | {', '.join(f'{name} {size // 1024} KiB' for name, size in run['caches'].items())} |",
        f"| memory, system | {run['memory_gib']} GiB; {run['system']} |",
        f"| peaks (median, range over the cases) | {_peaks(run)} |",
        f"| qkv | {run['qkv']}, commit {run['commit']}, {run['isa']} kernels, {run['rounds']} round(s) |",
        *(f"| {name} | {about['version']}; {about['settings']} |" for name, about in run["peers"].items()),
        *(f"| {name} | missing: {reason} |" for name, reason in run["missing"].items()),
        f"| largest difference from f64, f32 forward | {', '.join(_errors(run))} |",
        f"| time of the run | {run['seconds'] / 60:.1f} min |",
        "",
        *(line for sentence in summary(run) for line in (*textwrap.wrap(sentence, 150, break_on_hyphens=False), "")),
        table_of([[cell.replace("|", "/") for cell in row] for row in _rows(run)]),
    ]
    return "\n".join(lines)


def _rounded(value):
    """Rounds to six digits, more than any of the measurements has."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def stem_of(run, name):
    """The stem of a run's files: `name`, or its date, CPU and threads."""
    cpu = re.sub(r"\((r|tm)\)|processor|cpu|@.*|[(),]", "", run["cpu"].lower())  # "intel xeon family 6 model 207 stepping 2"
    isa = ["avx2"] if is_limited(run) else []
    return name or "-".join([run["date"][:10], *cpu.split(), f"{run['threads']}t", *isa])


def write_raw(run, path):
    """Everything that was measured, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(run), indent=1) + "\n")
    return path


def write(run, folder, stem):
    """Writes <folder>/<stem>.md."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{stem}.md"
    page.write_text(markdown(run))
    return page

#!/usr/bin/env python3
"""Writes the tables of README.md and docs/benchmarks/README.md from the pages there that bench/peers.py wrote.

    bench/readme_table.py             the newest page of each CPU, number of threads and limit
    bench/readme_table.py --check     fails when they say something else than the pages

README.md's rows are ROWS below; a case that a page lacks is a dash. The losses of each page follow the table.
"""

import collections
import pathlib
import re
import sys
import textwrap

from peer.report import counts, table_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/benchmarks"
MARKED = r"(<!-- {0}: bench/readme_table.py -->\n)(.*?)<!-- {0} END -->"
TITLE = re.compile(r"# (.*), (\d+) threads?(, AVX2)?, (\d{4}-\d\d-\d\d) ")
PEERS = {
    "pytorch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "jax": "JAX",
    "ggml": "ggml",
    "mlx": "MLX",
    "vllm": "vLLM",
}
PEERS |= {"pytorch-2.15": "PyTorch 2.15", "executorch": "ExecuTorch"}
CPUS = {
    "family 26, model 2,": "Zen 5",
    "family 25, model 17,": "Zen 4",
    "family 25, model 1,": "Zen 3",
    "family 6, model 207,": "Xeon",
}
ROWS = {
    "fwd-f32-d64-s1024": "forward, S 1,024",
    "fwd-f32-d64-s1024-causal": "the same, causal",
    "fwd-f32-d64-s4096-causal": "forward, S 4,096, causal",
    "fwd-f32-d64-s100": "forward, B 16, H 8, S 100",
    "fwd-f32-d64-s100-causal": "the same, causal",
    "fwd-bf16-d128-s4096": "forward, bf16, D 128, S 4,096",
    "bwd-f32-d64-s1024": "backward, S 1,024",
    "bwd-f32-d64-s1024-causal": "the same, causal",
    "bwd-f32-d64-s100": "backward, B 16, H 8, S 100",
    "bwd-bf16-d64-s1024": "backward, bf16, S 1,024",
    "decode-f32-b1-tq1-s32768": "decode one token, 32,768 keys, 32 / 8 heads, D 128",
    "decode-bf16-b1-tq1-s32768": "the same, bf16",
    "dropout-f32-d64-s1024": "dropout 0.1, S 1,024, forward + backward",
    "bias-f32-d64-s1024": "gradient of a bias, S 1,024, forward + backward",
    "window128-f32-d64-s1024": "window 128, S 1,024, forward + backward",
    "weights-f32-d64-s512": "output and all weights, S 512",
    "linear-bf16-1600x512x512": "Linear, bf16, 1,600 rows of 512",
    "mha-fwd-f32-b16-t100-e512-h8": "attention layer, B 16, L 100, E 512, H 8, forward",
    "mha-fwdbwd-f32-b16-t100-e512-h8": "the same with backward",
    "mha-fwdbwd-f32-b1-t8-e64-h4": "attention layer, B 1, L 8, E 64, H 4, with backward",
    "lm-step": "toy language model, one training step",
}


def short(milliseconds):
    """Three digits: 0.00900, 7.40, 66.0, 2,812."""
    value = float(milliseconds)
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


Row = collections.namedtuple("Row", "own share peer peer_ms ratio")  # as the page has them; the ratio is a number
Page = collections.namedtuple("Page", "path cpu threads isa date peers rows")  # rows: {case: Row}, of cases that a peer has


def _lost(page):
    return {case: row for case, row in page.rows.items() if float(row.own) > float(row.peer_ms)}


def _read(path):
    """A page as bench/peers.py writes it, also of older versions; None for others."""
    lines = path.read_text(encoding="utf-8").splitlines()
    title = TITLE.match(lines[0])
    if not title:
        return None
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    heads = next(cells for cells in tables if "qkv ms" in cells)
    columns = [heads.index(head) for head in ("case", "qkv ms", "fraction", "fastest peer", "its ms", "ratio")]
    rows = {}
    for cells in [cells for cells in tables[tables.index(heads) + 2 :] if len(cells) == len(heads)]:
        case, own, fraction, peer, peer_ms, ratio = (cells[n] for n in columns)
        if re.fullmatch(r"[\d.]+", ratio):
            share = re.match(r"\d+ %", fraction)  # times of small cases and "1.1 x plain" are none
            peer = peer.split(":")[0]
            rows[case] = Row(own.split()[0], share[0] if share else "", PEERS.get(peer, peer), peer_ms.split()[0], float(ratio))
    names = [PEERS[cells[0]] for cells in tables if cells[0] in PEERS and not cells[1].startswith("missing")]
    cpu = next((name for numbers, name in CPUS.items() if numbers in title[1]), title[1])
    return Page(path, cpu, int(title[2]), title[3] or "", title[4], names, rows)


def newest():
    """The newest page of each CPU, number of threads and limit."""
    found = {}
    for page in sorted(filter(None, map(_read, FOLDER.glob("20*.md"))), key=lambda page: page.date):
        found[page.cpu, page.threads, page.isa] = page
    return sorted(found.values(), key=lambda page: (page.cpu, page.isa, page.threads))


def benchmark(pages):
    """README.md's table and its sentences: one thread."""
    pages = [page for page in reversed(pages) if page.threads == 1 and not page.isa]
    rows = [["one thread, f32, D 64 unless said"]]
    for page in pages:
        rows[0] += [f"{page.cpu} ({page.date}): qkv, ms", "fastest peer, ms", "ratio"]
    for case, label in ROWS.items():
        rows.append([label])
        for page in pages:
            row = page.rows.get(case)
            share = f" ({row.share})" if row and row.share else ""
            rows[-1] += [short(row.own) + share, f"{short(row.peer_ms)} {row.peer}", f"{row.ratio:.2f}"] if row else ["-"] * 3
    lines = [table_of(rows)]
    for page in pages:
        lost = ", ".join(f"`{case}`" for case in _lost(page)) or "none"
        sentence = f"- [{page.cpu} ({page.date})](docs/benchmarks/{page.path.name}): slower than the fastest peer: {lost}."
        lines.append(textwrap.fill(sentence, 156, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines) + "\n"


def runs(pages):
    """How many cases are ahead, level, behind, and every loss."""
    rows = [["CPU", "threads", "measured", "beside", "cases", "ahead", "level", "behind", "slower than the fastest peer"]]
    for page in pages:
        numbers = map(str, counts([row.ratio for row in page.rows.values()]))
        lost = ", ".join(f"`{case}` {row.ratio:.2f} ({row.peer})" for case, row in _lost(page).items()) or "none"
        where = [page.cpu, f"{page.threads}{page.isa}", f"[{page.date}]({page.path.name})", ", ".join(page.peers)]
        rows.append([*where, str(len(page.rows)), *numbers, lost])
    return table_of(rows)


def main():
    pages, checks = newest(), sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not checks:
        sys.exit(print(__doc__) if sys.argv[1] in ("-h", "--help") else __doc__)
    for path, table in ((ROOT / "README.md", benchmark), (FOLDER / "README.md", runs)):
        text = path.read_text(encoding="utf-8")
        marked = re.search(MARKED.format(table.__name__.upper()), text, re.DOTALL)
        if not marked:
            sys.exit(f"{path}: no markers of the table {table.__name__.upper()}")
        if not checks:
            path.write_text(text[: marked.start(2)] + table(pages) + text[marked.end(2) :], encoding="utf-8")
        elif marked[2] != table(pages):
            sys.exit(f"{path}: its table is not what bench/readme_table.py writes")


if __name__ == "__main__":
    main()

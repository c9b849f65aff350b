#!/usr/bin/env python3
"""Writes README.md's table of benchmarks from pages that bench/peers.py wrote, one page per CPU.

    bench/readme_table.py NAME=PAGE...          between the markers of README.md; NAME heads the page's columns
    bench/readme_table.py --check               fails when README.md says something else than the pages that its marker names

The rows are ROWS below; a case that a page lacks is a dash. The losses of each page follow the table.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- BENCHMARK: bench/readme_table.py (.*?) -->\n)(.*?)(<!-- BENCHMARK END -->)", re.DOTALL)
PEERS = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "jax": "JAX"}
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
    "lm-process": "toy language model, 800 steps as a process",
}


def short(milliseconds):
    """Three digits: 0.00900, 7.40, 66.0, 2,812."""
    value = float(milliseconds)
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def cells_of(page):
    """{case: (qkv, fastest peer, ratio)} from the first table of a page."""
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 7 or cells[0] == "case" or cells[3] == "none" or " ms" in cells[1] or set(cells[0]) == {"-"}:
            continue
        case, qkv, fraction, peer, peer_ms, _, ratio = cells
        share = re.match(r"\d+ %", fraction)  # of the peak; times of small cases and "1.1 x plain" are none
        own = short(qkv.split()[0]) + (f" ({share[0]})" if share else "")
        found[case] = (own, f"{short(peer_ms.split()[0])} {PEERS[peer.split(':')[0]]}", ratio)
    return found


def losses(page):
    """The page's sentences about losses."""
    slower = re.search(r"Slower than the fastest peer: (.*)\.", page)[1]
    return "none" if slower == "none" else ", ".join(f"`{name}`" for name in slower.split(", "))


def table(pages):
    """The table and its sentences, from {name: path}."""
    texts = {name: (ROOT / path).read_text(encoding="utf-8") for name, path in pages.items()}
    read = {name: cells_of(text) for name, text in texts.items()}
    heads = ["one thread, f32, D 64 unless said"]
    for name in pages:
        heads += [f"{name}: qkv, ms", "fastest peer, ms", "ratio"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for case, label in ROWS.items():
        row = [cell for name in pages for cell in read[name].get(case, ("-", "-", "-"))]
        lines.append("| " + " | ".join([label, *row]) + " |")
    lines.append("")
    for name, path in pages.items():
        sentence = f"- [{name}]({path}): slower than the fastest peer: {losses(texts[name])}."
        lines.append(textwrap.fill(sentence, 156, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines) + "\n"


def main():
    text = README.read_text(encoding="utf-8")
    marked = MARKED.search(text)
    if not marked:
        sys.exit(f"{README.name}: no markers of the benchmark table")
    words = marked[2].split() if sys.argv[1:] == ["--check"] else sys.argv[1:]
    if not words or any("=" not in word for word in words):
        sys.exit(__doc__)
    pages = {word.partition("=")[0].replace("_", " "): word.partition("=")[2] for word in words}
    if sys.argv[1:] == ["--check"]:
        if marked[3] != table(pages):
            sys.exit(f"{README.name}: its benchmark table is not what bench/readme_table.py {marked[2]} writes")
        print(f"{README.name}: the benchmark table is that of {', '.join(pages.values())}")
        return
    head = f"<!-- BENCHMARK: bench/readme_table.py {' '.join(words)} -->\n"
    README.write_text(text[: marked.start()] + head + table(pages) + marked[4] + text[marked.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()

"""Fraction of peak over the number of tokens, one line per peer: forward and backward, full and causal, f32, D 64."""

PANELS = (("forward", False), ("forward", True), ("backward", False), ("backward", True))
# Distinguishable in print and with colour blindness (Okabe and Ito 2008).
LOOKS = {
    "qkv": ("#D55E00", "o"),
    "pytorch": ("#0072B2", "s"),
    "onnxruntime": ("#009E73", "^"),
    "openvino": ("#CC79A7", "D"),
    "jax": ("#7F7F7F", "v"),
    "qkv_python": ("#E69F00", "x"),
}
NAMES = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "jax": "JAX"}
NAMES["qkv_python"] = "qkv in Python"


def series(run, kind, causal):
    """{who: [(tokens, fraction)]}, in ascending number of tokens."""
    lines = {}
    for record in run["cases"]:
        wanted = record["kind"] == kind and record["causal"] == causal and record["dtype"] == "f32" and record["head_dim"] == 64
        if not wanted or record["qkv"] is None:
            continue
        for name, entry in [("qkv", record["qkv"]), *record["peers"].items()]:
            if "ms" in entry:
                lines.setdefault(name, []).append((record["q_len"], entry["fraction"]))
    return {name: sorted(points) for name, points in lines.items()}


def write(run, stem):
    """Writes stem.png with few colours, so that it is small; [] without matplotlib or points."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9})
    from matplotlib import pyplot, ticker
    from PIL import Image

    panels = [(kind, causal, series(run, kind, causal)) for kind, causal in PANELS]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        return []
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4.6 * columns, 3.1 * rows + 0.5), squeeze=False, sharey=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (kind, causal, lines) in zip(axes.flat, panels):
        lengths = sorted({length for points in lines.values() for length, _ in points})
        for name, points in lines.items():
            colour, marker = LOOKS[name]
            width = 2.2 if name == "qkv" else 1.3
            axis.plot(*zip(*points), color=colour, marker=marker, markersize=4, linewidth=width, label=NAMES.get(name, name))
        axis.set_xscale("log", base=2)
        axis.set_xticks([length for length in lengths if length != 100], minor=False)
        axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.yaxis.set_major_formatter(ticker.PercentFormatter(1))
        axis.set_ylim(0, 1)
        axis.grid(color="#DDDDDD", linewidth=0.6)
        axis.set_title(f"{kind}, {'causal' if causal else 'full'}", loc="left")
        axis.tick_params(axis="x", labelrotation=30)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("of the f32 multiply-add peak")
    for axis in axes[-1, :]:
        axis.set_xlabel("tokens")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    figure.suptitle(f"Attention, f32, D 64, {run['cpu']}, {threads}: useful flops", x=0.01, ha="left", fontsize=10)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path = stem.with_name(stem.name + ".png")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    with Image.open(path) as drawn:
        small = drawn.convert("RGB").quantize(colors=48, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)  # a quarter of the size
    return [path]

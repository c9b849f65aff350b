"""The cases on which qkv and its peers are timed: each is a case of `qkv bench` by name, with what the peers need to build it.

Flops count useful work: 4 B H Tq Tk D forward, halved when causal, 2.5 times that backward; 4 D per kept pair of a window.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    name: str  # name in `qkv bench`
    row: str  # row of the table of goals
    kind: str  # forward, backward, fwdbwd, weights, decode, linear, linear-backward, mha, mha-train, lm-step, lm-process,
    #            packed, packed-backward, hybrid, hybrid-backward
    ratio_goal: float = 0  # qkv's time against the fastest peer's; 0: none
    dtype: str = "f32"
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0  # 0: as many as heads
    q_len: int = 0
    kv_len: int = 0  # 0: q_len
    head_dim: int = 64  # for a layer: embed_dim / heads; a linear layer has q_len rows
    causal: bool = False  # bottom-right: the last query attends to the last key
    extra: str = ""  # dropout, bias, window, lengths
    window: int = 128
    quick: bool = True
    full: bool = False  # only with --full

    @property
    def hkv(self):
        return self.kv_heads or self.heads

    @property
    def tk(self):
        return self.kv_len or self.q_len

    @property
    def embed_dim(self):
        return self.heads * self.head_dim

    def key_lengths(self):
        return [self.tk * (b + 1) // self.batch for b in range(self.batch)]

    def live_pairs(self):
        """Kept pairs of queries and keys over all sequences and heads; half of all pairs when causal."""
        if self.extra == "window":
            return self.heads * self.batch * sum(min(i + 1, self.window) for i in range(self.q_len))
        if self.extra == "lengths":
            return self.heads * self.q_len * sum(self.key_lengths())
        half = 0.5 if self.causal and self.q_len == self.tk else 1
        return self.batch * self.heads * self.q_len * self.tk * half

    def flops(self):
        attention = 4 * self.live_pairs() * self.head_dim
        linear = 2 * self.batch * self.q_len * self.embed_dim**2
        products = 4 * linear
        return {
            "linear": linear,
            "linear-backward": 2 * linear,
            "forward": attention,
            "decode": attention,
            "weights": attention,
            "backward": 2.5 * attention,
            "fwdbwd": 3.5 * attention,
            "mha": products + attention,
            "mha-train": 3 * products + 3.5 * attention,
        }.get(self.kind, 0)

    def cache_bytes(self):
        """Bytes of keys and values, which a decoding step reads."""
        size = {"f32": 4, "bf16": 2}[self.dtype]
        return 2 * size * self.batch * self.hkv * self.tk * self.head_dim

    def small(self):
        """A case of the same kind, small enough to compare every gradient with f64."""
        lengths = {"q_len": min(self.q_len, 192), "kv_len": min(self.tk, 192) if self.q_len == self.tk else self.tk}
        return dataclasses.replace(self, batch=min(self.batch, 2), heads=min(self.heads, 2), kv_heads=0, **lengths)


def heads_for(length, head_dim):
    """As in `qkv bench`: about 2 GFLOP forward."""
    return max(1, min(64, 8 * 1024 * 1024 // (length * length) * 64 // head_dim))


def _attention(kind, dtype, length, head_dim, causal, row, ratio, quick, full=False):
    short = {"forward": "fwd", "backward": "bwd"}[kind]
    shape = {"batch": 16, "heads": 8} if length == 100 else {"heads": heads_for(length, head_dim)}
    name = f"{short}-{dtype}-d{head_dim}-s{length}" + ("-causal" if causal else "")
    return Case(name, row, kind, ratio, dtype, q_len=length, head_dim=head_dim, causal=causal, quick=quick, full=full, **shape)


def _forward_f32():
    for head_dim, ratio in ((64, 1.15), (128, 1.12)):
        for length in (1024, 2048, 4096, 8192, 16384):
            full = head_dim == 128 and length > 4096
            quick = length in (1024, 4096) and head_dim == 64 or length == 1024
            yield _attention("forward", "f32", length, head_dim, False, "forward, full", ratio, quick, full)
            goal = 2.3 if length == 1024 or length >= 4096 else 0
            yield _attention("forward", "f32", length, head_dim, True, "forward, causal", goal, quick, full)
    for causal in (False, True):
        kind = "causal" if causal else "full"
        yield _attention("forward", "f32", 128, 64, causal, f"forward, S 128, 64 heads, {kind}", 1.9 if causal else 1.15, True)
        yield _attention("forward", "f32", 100, 64, causal, f"forward, B16 H8 S100, {kind}", 2 if causal else 1.25, True)
        yield _attention("forward", "f32", 512, 64, causal, f"forward, {kind} (between the rows)", 0, False)


def _backward_f32():
    for head_dim in (64, 128):
        for length in (1024, 4096):
            full = head_dim == 128 and length > 1024
            for causal in (False, True):
                row = "backward, " + ("causal" if causal else "full")
                yield _attention("backward", "f32", length, head_dim, causal, row, 2.8 if causal else 2.3, length == 1024, full)
    for length in (100, 128):
        for causal in (False, True):
            row = "backward, S 100..128, " + ("causal" if causal else "full")
            yield _attention("backward", "f32", length, 64, causal, row, 3 if causal else 2.2, True)


def _bf16():
    for head_dim in (64, 128):
        for length in (1024, 4096):
            for causal in (False, True):
                row = "bf16 forward, " + ("causal" if causal else "full")
                quick = length == 1024 and head_dim == 64
                yield _attention("forward", "bf16", length, head_dim, causal, row, 2.6 if causal else 1.35, quick)
    for length in (100, 128):
        yield _attention("forward", "bf16", length, 64, False, "bf16 forward, S 100..128", 1.4, length == 128)
    for length, ratio, row in ((1024, 2.2, "S >= 1024"), (128, 6, "S 100..128")):
        for causal in (False, True):
            yield _attention("backward", "bf16", length, 64, causal, f"bf16 backward, {row}", ratio, not causal)


def _decode():
    cache = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    for dtype, ratio in (("f32", 8), ("bf16", 30)):
        for batch, q_len, keys, row, goal in (
            (1, 1, 32768, "decode, 32K keys", ratio),
            (16, 1, 512, "decode, batch 16, 512 keys", 3),
            (1, 4, 32768, "decode, Tq 4", 3),
        ):
            name = f"decode-{dtype}-b{batch}-tq{q_len}-s{keys}"
            quick = q_len == 1 and batch == 1
            shape = {"batch": batch, "q_len": q_len, "kv_len": keys, "causal": q_len > 1, "quick": quick}
            yield Case(name, f"{row}, {dtype}", "decode", goal, dtype, **shape, **cache)


def _options():
    for extra, name, batch, heads, ratio, words in (
        ("dropout", "dropout", 1, 8, 6, "dropout 0.1"),
        ("bias", "bias", 1, 8, 3.5, "gradient of a bias"),
        ("window", "window128", 1, 8, 8, "window 128"),
        ("lengths", "lengths", 8, 2, 0, "key lengths"),
    ):
        row = f"{words}, forward + backward"
        yield Case(f"{name}-f32-d64-s1024", row, "fwdbwd", ratio, batch=batch, heads=heads, q_len=1024, extra=extra)
    for length in (256, 512, 1024, 2048):
        shape = {"heads": 8, "q_len": length, "quick": length == 512}
        yield Case(f"weights-f32-d64-s{length}", "output and all weights", "weights", 3, **shape)


def _linear():
    shape = {"q_len": 1600, "heads": 8}  # the articles' (16, 100, 512)
    yield Case("linear-f32-1600x512x512", "Linear, f32", "linear", **shape)
    yield Case("linear-bf16-1600x512x512", "Linear, bf16", "linear", dtype="bf16", **shape)
    yield Case("linear-bwd-bf16-1600x512x512", "Linear, bf16, backward", "linear-backward", dtype="bf16", **shape)


def _layers():
    for batch, length, embed, heads, ratios in (
        (16, 100, 512, 8, (2.4, 2.4)),
        (8, 128, 768, 12, (2.4, 2.4)),
        (1, 8, 64, 4, (8, 10)),
    ):
        shape = {"batch": batch, "q_len": length, "heads": heads, "head_dim": embed // heads, "quick": embed <= 512}
        name = f"b{batch}-t{length}-e{embed}-h{heads}"
        row = f"MHA layer B{batch} L{length} E{embed} H{heads}"
        yield Case(f"mha-fwd-f32-{name}", f"{row}, forward", "mha", ratios[0], **shape)
        yield Case(f"mha-fwdbwd-f32-{name}", f"{row}, forward + backward", "mha-train", ratios[1], **shape)
        if length > 8:
            yield Case(f"mha-fwd-bf16-{name}", f"{row}, bf16, forward", "mha", dtype="bf16", **shape)
            yield Case(f"mha-fwdbwd-bf16-{name}", f"{row}, bf16, forward + backward", "mha-train", dtype="bf16", **shape)
    yield Case("lm-step", "toy language model, one step", "lm-step", 8)
    yield Case("lm-process", "toy language model, 800 steps as a process", "lm-process", 15)


def _forms():
    """A table's rows (TabPFN); 16 packed sequences of 64 to 1,024 tokens; the gated delta rule of a hybrid model (Qwen3-Next)."""
    table = {"batch": 20, "heads": 6, "q_len": 1000, "kv_len": 5000, "head_dim": 32, "quick": False}
    yield Case("fwd-f32-d32-table", "forward, a table's rows, D 32", "forward", **table)
    packed = {"batch": 16, "heads": 2, "q_len": 1024, "causal": True}
    yield Case("ragged-fwd-f32-d64-b16", "packed sequences, forward", "packed", **packed)
    yield Case("ragged-bwd-f32-d64-b16", "packed sequences, backward", "packed-backward", **packed)
    gated = {"heads": 8, "q_len": 2048, "head_dim": 128, "causal": True}
    yield Case("linattn-hybrid-d128-s2048", "gated delta rule, forward", "hybrid", 8, **gated)
    yield Case("linattn-hybrid-d128-s2048-bwd", "gated delta rule, backward", "hybrid-backward", **gated)


def all_cases():
    return [*_forward_f32(), *_backward_f32(), *_bf16(), *_decode(), *_options(), *_linear(), *_layers(), *_forms()]

"""The cases on which qkv and its peers are timed: each is a case of `qkv bench` by name, with what the peers need to build it.

Flops count useful work: 4 B H Tq Tk D forward, halved when causal, 2.5 times that backward; 4 D per kept pair of a window.
"""

import dataclasses

ATTENTION = ("forward", "decode", "prefill")  # kinds that are nothing but attention


@dataclasses.dataclass(frozen=True)
class Case:
    name: str  # name in `qkv bench`
    kind: str  # forward, backward, fwdbwd, weights, decode, prefill, linear, linear-backward, mha, mha-train,
    #            lm-step, lm-process, packed, packed-backward, hybrid, hybrid-backward
    dtype: str = "f32"  # of a cache also int8, int4
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
            "prefill": attention,
            "weights": attention,
            "backward": 2.5 * attention,
            "fwdbwd": 3.5 * attention,
            "mha": products + attention,
            "mha-train": 3 * products + 3.5 * attention,
        }.get(self.kind, 0)

    def cache_bytes(self):
        """Bytes of keys and values, which a decoding step reads."""
        size = {"f32": 4, "bf16": 2, "f16": 2, "int8": 1, "int4": 0.5625}[self.dtype]
        return 2 * size * self.batch * self.hkv * self.tk * self.head_dim

    def small(self):
        """A case of the same kind, small enough to compare every gradient with f64."""
        lengths = {"q_len": min(self.q_len, 192), "kv_len": min(self.tk, 192) if self.q_len == self.tk else self.tk}
        return dataclasses.replace(self, batch=min(self.batch, 2), heads=min(self.heads, 2), kv_heads=0, **lengths)


def heads_for(length, head_dim):
    """As in `qkv bench`: about 2 GFLOP forward."""
    return max(1, min(64, 8 * 1024 * 1024 // (length * length) * 64 // head_dim))


def _attention(kind, dtype, length, head_dim, causal, quick, full=False):
    short = {"forward": "fwd", "backward": "bwd"}[kind]
    shape = {"batch": 16, "heads": 8} if length == 100 else {"heads": heads_for(length, head_dim)}
    name = f"{short}-{dtype}-d{head_dim}-s{length}" + ("-causal" if causal else "")
    return Case(name, kind, dtype, q_len=length, head_dim=head_dim, causal=causal, quick=quick, full=full, **shape)


def _forward_f32():
    for head_dim in (64, 128):
        for length in (1024, 2048, 4096, 8192, 16384):
            full = head_dim == 128 and length > 4096
            quick = length in (1024, 4096) and head_dim == 64 or length == 1024
            for causal in (False, True):
                yield _attention("forward", "f32", length, head_dim, causal, quick, full)
    for causal in (False, True):
        for length in (128, 100, 512):
            yield _attention("forward", "f32", length, 64, causal, length < 512)


def _backward_f32():
    for causal in (False, True):
        for head_dim in (64, 128):
            for length in (1024, 4096):
                yield _attention("backward", "f32", length, head_dim, causal, length == 1024, head_dim == 128 and length > 1024)
        for length in (100, 128):
            yield _attention("backward", "f32", length, 64, causal, True)


def _bf16():
    for causal in (False, True):
        for head_dim in (64, 128):
            for length in (1024, 4096):
                yield _attention("forward", "bf16", length, head_dim, causal, length == 1024 and head_dim == 64)
        for length in (1024, 128):
            yield _attention("backward", "bf16", length, 64, causal, not causal)
    for length in (100, 128):
        yield _attention("forward", "bf16", length, 64, False, length == 128)


def _decode():
    cache = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    for dtype in ("f32", "bf16"):
        for batch, q_len, keys in ((1, 1, 32768), (16, 1, 512), (1, 4, 32768)):
            shape = {"batch": batch, "q_len": q_len, "kv_len": keys, "causal": q_len > 1, "quick": q_len == 1 and batch == 1}
            yield Case(f"decode-{dtype}-b{batch}-tq{q_len}-s{keys}", "decode", dtype, **shape, **cache)


def _caches():
    """Tokens on caches of 8K and 32K keys, 16 sequences at once; a prompt's chunk."""
    for dtype in ("f32", "bf16", "f16", "int8", "int4"):
        for batch, keys in ((1, 8192), (1, 32768), (16, 2048)):
            name = f"cache-{dtype}{'-b16' if batch > 1 else ''}-s{keys}"
            shape = {"batch": batch, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": keys, "head_dim": 128}
            yield Case(name, "decode", dtype, quick=keys > 8192, **shape)
        for queries, keys in ((512, 8192), (128, 32768)):
            shape = {"heads": 8, "kv_heads": 2, "q_len": queries, "kv_len": keys, "head_dim": 128, "causal": True}
            yield Case(f"cache-prompt-{dtype}-s{keys}", "prefill", dtype, quick=keys == 8192, **shape)


def _options():
    for extra, name, batch, heads in (
        ("dropout", "dropout", 1, 8),
        ("bias", "bias", 1, 8),
        ("window", "window128", 1, 8),
        ("lengths", "lengths", 8, 2),
    ):
        yield Case(f"{name}-f32-d64-s1024", "fwdbwd", batch=batch, heads=heads, q_len=1024, extra=extra)
    for length in (256, 512, 1024, 2048):
        yield Case(f"weights-f32-d64-s{length}", "weights", heads=8, q_len=length, quick=length == 512)


def _linear():
    shape = {"q_len": 1600, "heads": 8}  # the articles' (16, 100, 512)
    yield Case("linear-f32-1600x512x512", "linear", **shape)
    yield Case("linear-bf16-1600x512x512", "linear", "bf16", **shape)
    yield Case("linear-bwd-bf16-1600x512x512", "linear-backward", "bf16", **shape)


def _layers():
    for batch, length, embed, heads in ((16, 100, 512, 8), (8, 128, 768, 12), (1, 8, 64, 4)):
        shape = {"batch": batch, "q_len": length, "heads": heads, "head_dim": embed // heads, "quick": embed <= 512}
        for dtype in ("f32", "bf16") if length > 8 else ("f32",):
            for way, kind in (("fwd", "mha"), ("fwdbwd", "mha-train")):
                yield Case(f"mha-{way}-{dtype}-b{batch}-t{length}-e{embed}-h{heads}", kind, dtype, **shape)
    yield Case("lm-step", "lm-step")
    yield Case("lm-process", "lm-process")


def _forms():
    """A table's rows (TabPFN); 16 packed sequences of 64 to 1,024 tokens; the gated delta rule of a hybrid model (Qwen3-Next)."""
    table = {"batch": 20, "heads": 6, "q_len": 1000, "kv_len": 5000, "head_dim": 32, "quick": False}
    yield Case("fwd-f32-d32-table", "forward", **table)
    packed = {"batch": 16, "heads": 2, "q_len": 1024, "causal": True}
    yield Case("ragged-fwd-f32-d64-b16", "packed", **packed)
    yield Case("ragged-bwd-f32-d64-b16", "packed-backward", **packed)
    gated = {"heads": 8, "q_len": 2048, "head_dim": 128, "causal": True}
    yield Case("linattn-hybrid-d128-s2048", "hybrid", **gated)
    yield Case("linattn-hybrid-d128-s2048-bwd", "hybrid-backward", **gated)


def all_cases():
    return [*_forward_f32(), *_backward_f32(), *_bf16(), *_decode(), *_caches(), *_options(), *_linear(), *_layers(), *_forms()]

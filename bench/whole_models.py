"""What a whole model gains when qkv is switched on: the table of docs/python.md, as Markdown. Not: attention alone (bench/peers.py).

    bench/whole_models.py                             all rows, under five minutes; needs torch and transformers, jax for its rows
    bench/whole_models.py --only decode --rounds 9    rows whose name contains "decode"
    bench/whole_models.py --best                      of the fastest rounds: for a machine that other work shares

Small random models, float32, in one process. A round runs every variant of a row in turn, once or for 50 ms, after a call that warms up;
times are medians over the rounds, and the gain is the median of the rounds' own ratios, so that what slows the machine for a while
slows both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 1000}


class Variant(NamedTuple):
    """What is timed, and what is not: prepare() comes before the calls of a round."""

    call: Callable[[], Any]
    prepare: Callable[[], None] = lambda: None


class Row(NamedTuple):
    """One line: a variant for each column, None where there is none."""

    name: str
    eager: Variant | None
    theirs: Variant
    ours: Variant


def attending(model: Any, call: Callable[[], Any], how: str, linear: bool = False) -> Variant:
    """call() with the model's attention by `how`; linear: with qkv's linear attention too."""
    import qkv.transformers

    def prepare() -> None:
        model.set_attn_implementation(how)
        qkv.transformers.unregister()
        if how == "qkv":
            qkv.transformers.register(linear=linear)

    return Variant(call, prepare)


def variants(name: str, model: Any, call: Callable[[], Any], eager: bool = True, linear: bool = False) -> Row:
    """The row of a model of transformers."""
    first = attending(model, call, "eager") if eager else None
    return Row(name, first, attending(model, call, "sdpa"), attending(model, call, "qkv", linear))


def step_of(model: Any, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Forward and backward."""

    def step() -> None:
        model.zero_grad()
        model(**inputs, use_cache=False).loss.backward()

    return step


def encoders() -> Iterator[Row]:
    """BERT of base's width."""
    import torch
    import transformers as tf

    config = tf.BertConfig(num_hidden_layers=4, vocab_size=1000)
    model = tf.BertModel(config, add_pooling_layer=False).eval()
    for length in (512, 128):
        ids = torch.randint(1000, (8, length))
        yield variants(f"BERT base's width, 4 layers, 8 x {length} tokens, forward", model, lambda ids=ids: model(ids))

    def train() -> None:
        with torch.enable_grad():
            model.zero_grad()
            model(ids)[0].square().mean().backward()

    yield variants("the same, 8 x 128, forward and backward", model, train)


def hybrids() -> Iterator[Row]:
    """Qwen3-Next's layers: three of linear attention, one of attention."""
    import torch
    import transformers as tf

    linear = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024}
    experts = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
    model = tf.Qwen3NextForCausalLM(tf.Qwen3NextConfig(**TOKENS, **linear, **sizes, **experts, num_hidden_layers=4)).eval()
    ids = torch.randint(3, 1000, (1, 1024))

    def forward() -> None:
        model(ids, use_cache=False)

    def train() -> None:
        with torch.enable_grad():
            step_of(model, {"input_ids": ids, "labels": ids})()

    yield variants("Qwen3-Next's layers, 4 of 512, 1,024 tokens, forward", model, forward, eager=False, linear=True)

    yield variants("the same, forward and backward", model, train, eager=False, linear=True)
    caches = {how: tf.DynamicCache(config=model.config) for how in ("sdpa", "qkv")}
    steps = {}
    for how, cache in caches.items():
        fill = attending(model, lambda cache=cache: model(ids[:, :64], past_key_values=cache, use_cache=True), how, True)
        fill.prepare()
        fill.call()
        steps[how] = attending(model, lambda cache=cache: model(ids[:, :1], past_key_values=cache, use_cache=True), how, True)
    yield Row("the same, one token of decode", None, steps["sdpa"], steps["qkv"])


def decodes() -> Iterator[Row]:
    """One token on a long cache: grouped heads, then DeepSeek's latent attention."""
    import torch
    import transformers as tf
    from qkv.transformers import growing_cache

    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
    llama = tf.LlamaForCausalLM(tf.LlamaConfig(**TOKENS, **sizes, num_key_value_heads=2)).eval()
    sizes |= {"num_attention_heads": 16, "num_hidden_layers": 2, "num_key_value_heads": 16, "first_k_dense_replace": 2}
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": None}
    deepseek = tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**TOKENS, **sizes, **latent)).eval()
    for name, model, heads, widths in (
        ("Llama's layers, 4 of 512", llama, 2, (64, 64)),
        ("DeepSeek-V3's attention, 2 layers, 16 heads", deepseek, 1, (512, 64)),
    ):
        made = {}
        for which, make in (("dynamic", lambda c: tf.DynamicCache(config=c)), ("growing", growing_cache)):
            cache = make(model.config)
            for layer in range(model.config.num_hidden_layers):
                cache.update(*(torch.randn(1, heads, 8191, width) for width in widths), layer)
            made[which] = lambda model=model, cache=cache: (
                model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True),
                cache.crop(-1),
            )
        row = variants(f"{name}, one token of decode on 8,192", model, made["dynamic"], eager=heads == 2)
        yield row
        yield row._replace(name="the same, qkv on `growing_cache`", ours=attending(model, made["growing"], "qkv"))


def packed() -> Iterator[Row]:
    """DataCollatorWithFlattening against the padded batch."""
    import torch
    import transformers as tf

    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**TOKENS, **sizes, num_key_value_heads=2))
    lengths = torch.randint(16, 512, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    sequences = [torch.randint(3, 1000, (n,)).tolist() for n in lengths]
    flat = tf.DataCollatorWithFlattening(return_tensors="pt")([{"input_ids": s} for s in sequences])

    def train() -> None:
        with torch.enable_grad():
            step_of(model, flat)()

    name = f"Llama's layers, 4 of 512, 16 packed sequences ({sum(lengths):,} tokens), forward and backward"
    yield variants(name, model, train, eager=False)


def tables() -> Iterator[Row]:
    """A table's rows: few columns, many keys (TabPFN's shape)."""
    import qkv.torch
    import torch

    layer = torch.nn.MultiheadAttention(192, 6, batch_first=True).eval()
    q, k = torch.randn(4, 1000, 192), torch.randn(4, 5000, 192)

    def ours() -> None:
        with qkv.torch.enable():
            layer(q, k, k, need_weights=False)

    name = "nn.MultiheadAttention, 6 heads of 32, 4 tables, 1,000 rows on 5,000, forward"
    calls = (lambda: layer(q, k, k), lambda: layer(q, k, k, need_weights=False), ours)
    yield Row(name, *map(Variant, calls))


def with_jax() -> Iterator[Row]:
    """A block of JAX: projections, attention, an MLP."""
    try:
        import jax
        import qkv.jax
    except ImportError:
        return
    keys = jax.random.split(jax.random.key(0), 7)
    x = jax.random.normal(keys[0], (4, 512, 512))
    weights = [jax.random.normal(k, (n, m)) / 20 for k, n, m in zip(keys[1:], (512, 512, 512), (1536, 2048, 512))]
    weights.append(jax.random.normal(keys[5], (2048, 512)) / 40)

    def block(attend: Callable[..., Any]) -> Callable[..., Any]:
        def run(weights: Any, x: Any) -> Any:
            q, k, v = (part.reshape(4, 512, 8, 64) for part in jax.numpy.split(x @ weights[0], 3, -1))
            y = x + attend(q, k, v, is_causal=True).reshape(x.shape) @ weights[2]
            return (y + jax.nn.gelu(y @ weights[1]) @ weights[3]).sum()

        return run

    made = {}
    for name, attend in (("theirs", jax.nn.dot_product_attention), ("ours", qkv.jax.dot_product_attention)):
        forward, step = jax.jit(block(attend)), jax.jit(jax.grad(block(attend)))
        made[name] = [Variant(lambda f=f: jax.block_until_ready(f(weights, x))) for f in (forward, step)]
    yield Row("JAX, a block of 512, 4 x 512 tokens, under jit, forward", None, made["theirs"][0], made["ours"][0])
    yield Row("the same, forward and backward", None, made["theirs"][1], made["ours"][1])


def measure(row: Row, rounds: int, best: bool) -> str:
    """The row's line of the table."""
    columns = {name: one for name, one in zip(("eager", "theirs", "ours"), row[1:]) if one is not None}
    times: dict[str, list[float]] = {name: [] for name in columns}
    count = 1  # calls of a round: so many that the fastest variant takes 50 ms
    for round_ in range(-1, rounds):  # the first only warms up
        for name, (call, prepare) in list(columns.items())[:: 1 if round_ % 2 else -1]:
            prepare()
            call()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append(1e3 * (time.perf_counter() - begin) / count)
        if round_ < 0:
            count = max(1, round(50 / min(min(of) for of in times.values())))
            times = {name: [] for name in columns}
    middle = min if best else statistics.median
    shown = [digits(middle(times[name])) if name in times else "" for name in ("eager", "theirs", "ours")]
    ratios = [theirs / ours for theirs, ours in zip(times["theirs"], times["ours"])]
    gain = min(times["theirs"]) / min(times["ours"]) if best else statistics.median(ratios)
    return f"| {row.name} | {' | '.join(shown)} | {gain:.{1 if gain >= 10 else 2}f} |"


def digits(ms: float) -> str:
    """Three digits, or all in front of the point."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--best", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    import qkv
    import qkv.transformers
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    qkv.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    qkv.transformers.register()
    which = "the fastest" if options.best else "medians"
    print(f"{options.threads} threads, PyTorch {torch.__version__}, transformers "
          f"{transformers.__version__}; ms, {which} of {options.rounds} rounds in turn; gain: of qkv on PyTorch's (JAX's)\n")  # fmt: skip
    print("| | eager | SDPA, or the library's own | qkv | gain |\n|---|---|---|---|---|")
    for family in (encoders, hybrids, decodes, packed, tables, with_jax):
        for row in family():
            if options.only in f"{family.__name__} {row.name}":
                print(measure(row, options.rounds, options.best), flush=True)


if __name__ == "__main__":
    main()

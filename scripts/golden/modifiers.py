"""Golden files of score modifiers: ALiBi, T5's relative position biases, learned relative biases, soft cap, callback, sinks.

Forward in f64 from torch's FlexAttention, eager, where it has the form (not sinks); gradients from the same formula by
autograd, whose forward must agree with FlexAttention's: FlexAttention has no backward on a CPU. The formulas of slopes, buckets
and sinks are those of Hugging Face's transformers (models bloom, t5, gpt_oss), written here in full.
"""

import math
import warnings

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from sdpa import band
from store import Case


def bloom_slopes(num_heads):
    """build_alibi_tensor of modeling_bloom.py."""
    closest = 2 ** math.floor(math.log2(num_heads))
    base = torch.tensor(2 ** (-(2 ** -(math.log2(closest) - 3))), dtype=torch.float32)
    slopes = torch.pow(base, torch.arange(1, 1 + closest, dtype=torch.int32))
    if closest != num_heads:
        extra_base = torch.tensor(2 ** (-(2 ** -(math.log2(2 * closest) - 3))), dtype=torch.float32)
        remaining = min(closest, num_heads - closest)
        slopes = torch.cat([slopes, torch.pow(extra_base, torch.arange(1, 1 + 2 * remaining, 2, dtype=torch.int32))])
    return slopes.double()


def t5_bucket(relative_position, bidirectional, num_buckets, max_distance):
    """T5Attention._relative_position_bucket of modeling_t5.py; relative_position = key - query."""
    buckets = 0
    if bidirectional:
        num_buckets //= 2
        buckets = buckets + (relative_position > 0).to(torch.long) * num_buckets
        relative_position = torch.abs(relative_position)
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    if_large = max_exact + (
        torch.log(relative_position.float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
    ).to(torch.long)
    if_large = torch.min(if_large, torch.full_like(if_large, num_buckets - 1))
    return buckets + torch.where(is_small, relative_position, if_large)


def modifier_case(name, shape, modify, *, extra=None, keep=None, flex=True, **facts):
    """shape: B, H, Hkv, Tq, Tk, D, Dv. modify(scores, **extra) -> scores, sinks or None. extra: further inputs by name."""
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = shape
    case = Case("modifier_" + name, kind="modifier", torch=torch.__version__, **{"causal": "none", **facts})
    inputs = {}
    for tensor, sizes, exponent in (("q", (batch, heads, q_len, head_dim), 1), ("k", (batch, kv_heads, kv_len, head_dim), 1),
                                    ("v", (batch, kv_heads, kv_len, v_head_dim), 0),
                                    *((key, sizes, 1) for key, sizes in (extra or {}).items())):
        inputs[tensor] = torch.from_numpy(case.input(tensor, sizes, exponent))
    dout = torch.from_numpy(case.input("dout", (batch, heads, q_len, v_head_dim)))
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    more = {key: leaves[key] for key in (extra or {})}
    group = heads // kv_heads
    k, v = leaves["k"].repeat_interleave(group, 1), leaves["v"].repeat_interleave(group, 1)
    scores, sinks = modify(leaves["q"] @ k.mT * head_dim**-0.5, **more)
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    if sinks is not None:  # eager_attention_forward of modeling_gpt_oss.py
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(batch, -1, q_len, -1)], dim=-1)
    weights = scores.softmax(-1)[..., :kv_len]
    out, lse = weights @ v, scores.logsumexp(-1)
    if flex:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flat = {key: value.detach() for key, value in more.items()}
            block_mask = None
            if keep is not None:
                block_mask = create_block_mask(lambda b, h, i, j: keep[i, j], None, None, q_len, kv_len, device="cpu")
            flexed = flex_attention(inputs["q"], inputs["k"], inputs["v"], block_mask=block_mask, enable_gqa=group > 1,
                                    score_mod=lambda s, b, h, i, j: modify(s, at=(b, h, i, j), **flat)[0])
        torch.testing.assert_close(flexed, out.detach(), rtol=1e-12, atol=1e-13)
        out.data.copy_(flexed)
    case.add("out", out.detach().numpy())
    case.add("lse", lse.detach().numpy())
    case.add("weights", weights.detach().numpy())
    for key, gradient in zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout)):
        case.add("d" + key, gradient.numpy())
    return case


def places(at, heads, q_len, kv_len, offset):
    """b, h, i, j of one score (FlexAttention), or of all of them, broadcast."""
    if at is not None:
        b, h, i, j = at
        return h, i + offset, j
    return torch.arange(heads)[:, None, None], torch.arange(q_len)[:, None] + offset, torch.arange(kv_len)


def by_distance(heads, q_len, kv_len, offset, value):
    def modify(scores, at=None, **more):
        h, i, j = places(at, heads, q_len, kv_len, offset)
        return scores + value(h, i, j, **more), None

    return modify


def cases():
    square, rectangle = (2, 4, 2, 9, 9, 5, 5), (2, 4, 2, 5, 13, 4, 3)
    table = lambda rows, heads: {"table": (rows, heads)}
    slopes = bloom_slopes(6)  # not a power of two
    yield modifier_case("alibi_6", (2, 6, 2, 9, 9, 5, 5), causal="square", position="alibi", align="square",
                        keep=band(9, 9, right=0), slopes=",".join(repr(x) for x in slopes.tolist()),
                        modify=by_distance(6, 9, 9, 0, lambda h, i, j: slopes[h] * (j - i)))
    slopes = bloom_slopes(4)
    yield modifier_case("t5", (1, 2, 2, 6, 20, 3, 3), position="t5", align="bottom-right", extra=table(8, 2),
                        bidirectional=False, num_buckets=8, max_distance=16,
                        modify=by_distance(2, 6, 20, 14, lambda h, i, j, table: table[t5_bucket(j - i, False, 8, 16), h]))
    yield modifier_case("relative", square, position="relative", align="square", extra=table(7, 4),
                        modify=by_distance(4, 9, 9, 0, lambda h, i, j, table: table[(j - i).clamp(-3, 3) + 3, h]))

    def softcap_then_bias(scores, at=None):
        h, i, j = places(at, 4, 9, 9, 0)
        return 2 * torch.tanh(scores / 2) - slopes[h] * abs(i - j), None

    yield modifier_case("softcap_alibi", square, softcap_then_bias, causal="square", position="alibi", align="square",
                        keep=band(9, 9, right=0), softcap=2, slopes=",".join(repr(x) for x in slopes.tolist()))

    def bend(scores, at=None):  # the test's callback
        h, i, j = places(at, 4, 5, 13, 0)
        return 10 * scores / torch.sqrt(100 + scores * scores) - abs(i - j).double() / 20 + h.double() / 10, None

    yield modifier_case("callback", rectangle, bend, callback="bend")
    yield modifier_case("sinks_causal", square, lambda scores, sinks: (scores, sinks), extra={"sinks": (4,)},
                        keep=band(9, 9, right=0), causal="square", flex=False)
    buckets = Case("modifier_buckets", kind="buckets", torch=torch.__version__)
    for bidirectional, num_buckets, max_distance in ((True, 32, 128), (False, 32, 128), (True, 64, 256), (False, 8, 20),
                                                     (True, 12, 100)):
        far = torch.arange(-600, 601)
        buckets.add(f"{int(bidirectional)}.{num_buckets}.{max_distance}",
                    t5_bucket(far, bidirectional, num_buckets, max_distance).to(torch.uint8).numpy())
    yield buckets

"""Layers with one mistake each, as people write them: views, loops, no_grad, .data, what a layer keeps from call to call."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Parts(nn.Module):
    """Four layers, the way to heads and back; right."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, y):
        return y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)

    def project(self, x):
        return self.wq(x), self.wk(x), self.wv(x)

    def weigh(self, scores, mask):
        return scores.masked_fill(mask == 0, float("-inf")).softmax(dim=-1)

    def forward(self, x, mask=None):
        q, k, v = map(self.split, self.project(x))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
        return self.wo(self.merge((scores.softmax(-1) if mask is None else self.weigh(scores, mask)) @ v))


class ViewAlone(Parts):
    def split(self, y):
        return y.view(y.size(0), self.n_heads, y.size(1), -1)


class FeaturesOutside(Parts):
    """Cut as (d, heads), merged as (d, heads): a permutation of features that W_o does not know."""

    def split(self, y):
        return y.unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2)

    def merge(self, y):
        return y.permute(0, 2, 3, 1).flatten(2)


class HeadsBackwards(Parts):
    def merge(self, y):
        return torch.cat([y[:, h] for h in reversed(range(self.n_heads))], dim=-1)


class ForgottenResult(Parts):
    """masked_fill without underscore returns what nobody takes."""

    def weigh(self, scores, mask):
        scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(dim=-1)


class MaskOfTheLoopsEnd(Parts):
    def weigh(self, scores, mask):
        for one in mask:
            hidden = one == 0
        return scores.masked_fill(hidden, -1e20).softmax(dim=-1)


class FirstHeadInPlace(Parts):
    def weigh(self, scores, mask):
        scores[:, :1] = scores[:, :1].masked_fill(mask == 0, float("-inf"))
        return scores.softmax(dim=-1)


class TrueMeansHide(Parts):
    def weigh(self, scores, mask):
        return scores.masked_fill(mask.bool(), -1e9).softmax(dim=-1)


class TooLate(Parts):
    def weigh(self, scores, mask):
        return scores.softmax(dim=-1).masked_fill(mask == 0, 0.0)


class RawWeights(Parts):
    """x @ weight, where nn.Linear is x @ weight.T."""

    def project(self, x):
        return tuple(torch.matmul(x, layer.weight) + layer.bias for layer in (self.wq, self.wk, self.wv))


class ExchangedArguments(Parts):
    def project(self, x):
        return self.wk(x), self.wq(x), self.wv(x)


class QueriesOfNoGrad(Parts):
    def project(self, x):
        with torch.no_grad():
            q = self.wq(x)
        return q, self.wk(x), self.wv(x)


class KeysByData(Parts):
    def project(self, x):
        return self.wq(x), self.wk(x).data, self.wv(x)


class ValuesCopied(Parts):
    """A new tensor of old numbers has no history."""

    def project(self, x):
        v = self.wv(x)
        return self.wq(x), self.wk(x), torch.empty_like(v).copy_(v.data)


class KeysAndValuesOfNoGrad(Parts):
    """As one keeps them for a cache."""

    def project(self, x):
        q = self.wq(x)
        with torch.no_grad():
            return q, self.wk(x), self.wv(x)


class InputByData(Parts):
    def project(self, x):
        return super().project(x.data)


class HeadsOfNoGrad(Parts):
    def forward(self, x, mask=None):
        with torch.no_grad():
            q, k, v = map(self.split, self.project(x))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bool())
        return self.wo(self.merge(y))


class WeightsWithoutGrad(Parts):
    """no_grad around the softmax, left from debugging."""

    def weigh(self, scores, mask):
        with torch.no_grad():
            return super().weigh(scores, mask)

    def forward(self, x, mask=None):
        return super().forward(x, torch.ones(1) if mask is None else mask)


class ScoresByData(Parts):
    def forward(self, x, mask=None):
        q, k, v = map(self.split, self.project(x))
        scores = torch.matmul(q.data, k.data.mT) / math.sqrt(q.size(-1))
        return self.wo(self.merge((scores.softmax(-1) if mask is None else self.weigh(scores, mask)) @ v))


class FoldsTheScale(Parts):
    """The scale is folded into the layer, at each call again."""

    def forward(self, x, mask=None):
        for numbers in self.wq.parameters():
            numbers.data /= math.sqrt(x.size(-1) // self.n_heads)
        q, k, v = map(self.split, self.project(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bool(), scale=1.0)
        return self.wo(self.merge(y))


class RemembersOutput(Parts):
    """A bit of the last call's output is added."""

    def forward(self, x, mask=None):
        out, before = super().forward(x, mask), getattr(self, "before", None)
        self.before = out.detach()
        return out if before is None or before.shape != out.shape else out + 0.1 * before


class ReturnsScores(Parts):
    def forward(self, x, mask=None):
        q, k, _ = map(self.split, self.project(x))
        return super().forward(x, mask), q @ k.mT / math.sqrt(q.size(-1))


class MergedWithoutBias(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.c_attn, self.c_proj = n_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = F.linear(x, self.c_attn.weight).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class MaskAcross(nn.Module):
    """V3; its mask [B, L, L] hides rows where columns were meant."""

    def __init__(self, n_embd, dropout=0.0):
        super().__init__()
        self.qkv, self.drop, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Dropout(dropout), nn.Linear(n_embd, n_embd)

    def forward(self, x, attention_mask=None):
        q, k, v = self.qkv(x).tensor_split(3, dim=-1)
        logits = torch.baddbmm(x.new_zeros(1), q, k.mT, beta=0, alpha=q.size(-1) ** -0.5)
        if attention_mask is not None:
            logits.masked_fill_(attention_mask.mT == 0, -1e20)
        return self.proj(self.drop(logits.softmax(dim=-1)).bmm(v))


class OutputTransposed(nn.Module):
    """V4; addmm takes the weight as it is."""

    def __init__(self, n_embd):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(n_embd, n_embd) for _ in range(4))

    def forward(self, x, attention_mask=None):
        mask = None if attention_mask is None else attention_mask.bool()
        y = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), attn_mask=mask)
        return torch.addmm(self.output.bias, y.flatten(0, 1), self.output.weight).view_as(y)


class HiddenToo(nn.Module):
    """One causal head; triu from the diagonal on hides the token from itself."""

    shift = 0

    def __init__(self, n_embd, causal=True):
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(n_embd, n_embd, bias=False) for name in ("q", "k", "v", "o")})
        self.causal = causal

    def forward(self, x):
        q, k, v = (self.layers[name](x) for name in "qkv")
        logits = q @ k.mT * x.size(-1) ** -0.5
        if self.causal:
            logits = logits.masked_fill(torch.ones_like(logits).triu(self.shift).bool(), float("-inf"))
        return self.layers["o"](logits.softmax(-1) @ v)


class OneTooFar(HiddenToo):
    shift = 2


class FillsTheOtherWay(nn.Module):
    """A cache in a dict: stored exchanged, read by name."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def extend(self, cache, k, v):
        """(keys and values to read, new cache)"""
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        return (k, v), {"k": v, "v": k}

    def forward(self, x, cache=None):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        (keys, values), cache = self.extend(cache, k, v)
        keep = torch.ones(q.size(2), keys.size(2)).tril(keys.size(2) - q.size(2)).bool()
        return self.wo(F.scaled_dot_product_attention(q, keys, values, attn_mask=keep).transpose(1, 2).flatten(2)), cache


class ReadsTheOldNames(FillsTheOtherWay):
    """torch.cat gives a new tensor; it is stored, and the old names are read."""

    def extend(self, cache, k, v):
        return (k, v), {n: torch.cat([cache[n], y], dim=2) if cache else y for n, y in (("k", k), ("v", v))}


class WritesOverTheFirst(FillsTheOtherWay):
    """New keys are written over the oldest; the room behind stays zero."""

    def extend(self, cache, k, v):
        grown = []
        for name, new in (("k", k), ("v", v)):
            longer = torch.cat([cache[name], torch.zeros_like(new)], dim=2) if cache else new.clone()
            longer[:, :, : new.size(2)] = new
            grown.append(longer)
        return tuple(grown), dict(zip("kv", grown))


EXPECTED = {
    "ViewAlone": "split-without-transpose",
    "FeaturesOutside": "heads-interleaved",
    "HeadsBackwards": "heads-reversed",
    "ForgottenResult": "no-mask",
    "MaskOfTheLoopsEnd": "mask-last-of-batch",
    "FirstHeadInPlace": "mask-first-head-only",
    "TrueMeansHide": "mask-polarity",
    "TooLate": "mask-after-softmax",
    "RawWeights": "weight-not-transposed",
    "ExchangedArguments": ("order-kqv", "scores-transposed"),
    "QueriesOfNoGrad": "queries-detached",
    "KeysByData": "keys-detached",
    "ValuesCopied": "values-detached",
    "KeysAndValuesOfNoGrad": "keys-values-detached",
    "InputByData": "input-detached",
    "HeadsOfNoGrad": "heads-detached",
    "WeightsWithoutGrad": "weights-detached",
    "ScoresByData": ("scores-detached", "weights-detached"),
    "FoldsTheScale": "state-left-behind",
    "RemembersOutput": "state-left-behind",
    "ReturnsScores": "weights-are-scores",
    "MergedWithoutBias": "no-qkv-bias",
    "MaskAcross": "mask-on-queries",
    "OutputTransposed": "output-transposed-weight",
    "HiddenToo": "causal-off-by-one",
    "OneTooFar": "causal-sees-next",
    "FillsTheOtherWay": "cache-keys-values-exchanged",
    "ReadsTheOldNames": "cache-past-not-prepended",
    "WritesOverTheFirst": "cache-overwritten",
}
TASK = {name: "mha" for name in EXPECTED} | {
    "MaskAcross": "v3",
    "OutputTransposed": "v4",
    "HiddenToo": "single-head",
    "OneTooFar": "single-head",
    "FillsTheOtherWay": "cache",
    "ReadsTheOldNames": "cache",
    "WritesOverTheFirst": "cache",
}

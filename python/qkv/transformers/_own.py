"""Models whose attention does not ask transformers' AttentionInterface: MPNet and DeBERTa (without padding), Bloom, MPT, Falcon.

Each function takes a method of the modelling file and returns its replacement, which computes the same through qkv where the model
chose "qkv" (its mask says so), and is the original otherwise.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.output_capturing import _active_collector

from .._core import UnsupportedError
from ..torch.sdpa import scaled_dot_product_attention
from ._masks import ModelMask
from ._packing import running

Method = Callable[..., Any]


def _replaces(own: Callable[..., Any]) -> Callable[[Method], Method]:
    """What makes a method's replacement of it, which calls own(the method, self, ...)."""

    def made(original: Method) -> Method:
        return functools.wraps(original)(lambda self, *args, **options: own(original, self, *args, **options))

    return made


@_replaces
def _of_longest(original: Method, self: nn.Module, x: Tensor, *args: Any, **options: Any) -> Tensor:
    """MPNetEncoder.compute_position_bias, DebertaV2Encoder.get_rel_pos: of the longest text, and not of all tokens in a row."""
    packing = running.get()
    if packing is not None:
        packing.need_neighbours("distances")
    return original(self, x if packing is None else x.new_empty(1, packing.longest, 0), *args, **options)


@_replaces
def _mpnet(
    original: Method, self: Any, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, *args: Any, **options: Any
) -> Any:
    """MPNetSelfAttention.forward: one text after another."""
    packing = running.get()
    if packing is None:
        return original(self, hidden_states, attention_mask, position_bias, *args, **options)
    rate = self.dropout.p if self.training else 0.0
    q, k, v = (f(hidden_states)[0].unflatten(-1, (self.num_attention_heads, -1)).transpose(0, 1) for f in (self.q, self.k, self.v))
    parts = zip(*(x.split(packing.lengths, 1) for x in (q, k, v)), packing.lengths)
    made = [scaled_dot_product_attention(*one, position_bias[0, :, :n, :n], rate) for *one, n in parts]
    return (self.o(torch.cat(made, 1).transpose(0, 1).flatten(1)[None]),)


@_replaces
def _deberta_mask(original: Method, self: Any, mask: Any) -> Any:
    """DebertaV2Encoder.get_attention_mask: none [B, 1, T, T] where a text attends itself."""
    return original(self, mask) if running.get() is None else mask


@_replaces
def _deberta(original: Method, self: Any, hidden_states: Tensor, *args: Any, **options: Any) -> Any:
    """DisentangledSelfAttention.forward: one text after another, positions a bias of each. He 2021 (arXiv:2006.03654) eq. 4."""
    packing = running.get()
    if packing is None:
        return original(self, hidden_states, *args, **options)

    def heads(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x).unflatten(-1, (self.num_attention_heads, -1)).transpose(0, 1)  # [H, T, D]

    q, k, v = (heads(f, hidden_states[0]) for f in (self.query_proj, self.key_proj, self.value_proj))
    kinds, span = [x for x in ("c2p", "p2c") if x in self.pos_att_type], getattr(self, "pos_ebd_size", 0)
    scale, rate, shared = (q.shape[2] * (1 + len(kinds))) ** -0.5, self.dropout.p if self.training else 0.0, self.share_att_key
    table: dict[str, Tensor] = {}  # keys of "c2p", queries of "p2c": [H, 2 span, D]
    if self.relative_attention:
        rows = self.pos_dropout(options["rel_embeddings"])[: 2 * span]
        for kind, own, position in (("c2p", "key_proj", "pos_key_proj"), ("p2c", "query_proj", "pos_query_proj")):
            table |= {kind: heads(getattr(self, own if shared else position), rows)} if kind in kinds else {}
    made = []
    for one, two, values, n in zip(*(x.split(packing.lengths, 1) for x in (q, k, v)), packing.lengths):
        low, bias = max(span - n + 1, 0), None  # of the table, n tokens are apart by at most n - 1
        for kind, other in table.items():
            apart = options["relative_pos"][0, :n, :n] if kind == "c2p" else -options["relative_pos"][0, :n, :n]
            every = (one if kind == "c2p" else two) @ other[:, low : span + n].transpose(1, 2)
            term = every.gather(2, (apart + span).clamp(0, 2 * span - 1).sub(low).expand(len(every), n, n))
            term = term if kind == "c2p" else term.transpose(1, 2)
            bias = term if bias is None else bias + term
        made.append(scaled_dot_product_attention(one, two, values, None if bias is None else bias * scale, rate, scale=scale))
    return torch.cat(made, 1).transpose(0, 1).flatten(1)[None], None


def _attend(layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: ModelMask, **options: Any) -> tuple[Tensor, Tensor | None]:
    """out [B, T, H D], weights."""
    out, weights = ALL_ATTENTION_FUNCTIONS["qkv"](layer, q, k, v, mask, **options)
    return out.flatten(2), weights


@_replaces
def _bloom(original: Method, self: Any, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Any, **options: Any) -> Any:
    """BloomAttention.forward. alibi [B H, 1, Tk]."""
    if not isinstance(attention_mask, ModelMask):
        return original(self, hidden_states, residual, alibi, attention_mask, **options)
    q, k, v = self._reshape(self.query_key_value(hidden_states))
    if options.get("layer_past") is not None:
        k, v = options["layer_past"].update(k, v, self.layer_idx)
    out, weights = _attend(
        self, q, k, v, attention_mask, scaling=self.inv_norm_factor, position_bias=alibi.unflatten(0, (-1, self.num_heads)),
        dropout=self.attention_dropout.p if self.training else 0.0, output_attentions=options.get("output_attentions"),
    )  # fmt: skip
    return residual + F.dropout(self.dense(out), self.hidden_dropout, self.training), weights


@_replaces
def _mpt(
    original: Method, self: Any, hidden_states: Tensor, position_bias: Tensor, past_key_values: Any = None, attention_mask: Any = None,
    **options: Any,
) -> Any:
    """MptAttention.forward. position_bias [H, 1, longest], of which the last keys count."""
    if not isinstance(attention_mask, ModelMask):
        return original(self, hidden_states, position_bias, past_key_values, attention_mask, **options)
    mixed = self.Wqkv(hidden_states)
    mixed = mixed.clamp(-self.clip_qkv, self.clip_qkv) if self.clip_qkv else mixed
    q, k, v = (x.unflatten(2, (self.n_heads, -1)).transpose(1, 2) for x in mixed.chunk(3, 2))
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    bias = None if position_bias is None else position_bias[None, :, -1:, -k.shape[2] :]
    out, weights = _attend(
        self, q, k, v, attention_mask, scaling=self.softmax_scale, position_bias=bias,
        dropout=self.attn_dropout_p if self.training else 0.0, output_attentions=options.get("output_attentions"),
    )  # fmt: skip
    return self.out_proj(out), weights


@_replaces
def _mpt_model(original: Method, self: Any, *args: Any, **options: Any) -> Any:
    """MptModel.forward, which does not tell its layers that weights are wanted."""
    wanted = options.get("output_attentions", self.config.output_attentions)
    token = _active_collector.set({"attentions": []} if wanted else None)
    try:
        return original(self, *args, **options)
    finally:
        _active_collector.reset(token)


@_replaces
def _falcon(original: Method, self: Any, hidden_states: Tensor, alibi: Any, attention_mask: Any, *args: Any, **options: Any) -> Any:
    """FalconAttention.forward with rotary positions."""
    if not isinstance(attention_mask, ModelMask) or args:
        return original(self, hidden_states, alibi, attention_mask, *args, **options)
    q, k, v = (x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states)))
    turn = vars(sys.modules[type(self).__module__])["apply_rotary_pos_emb"]
    q, k = turn(q, k, *options["position_embeddings"])
    if options.get("layer_past") is not None:
        k, v = options["layer_past"].update(k, v, self.layer_idx)
    out, weights = _attend(self, q, k, v, attention_mask, output_attentions=options.get("output_attentions"))
    return self.dense(out), weights


@_replaces
def _falcon_alibi(original: Method, self: Any, *args: Any, **options: Any) -> Any:
    """FalconModel.forward, which adds ALiBi to the numbers of its mask."""
    if self.use_alibi and self.config._attn_implementation == "qkv":
        raise UnsupportedError(
            '[qkv.transformers] Falcon with alibi=True writes ALiBi into its mask: attn_implementation="qkv" cannot replace its '
            'attention; "sdpa" under qkv.torch.enable() computes it'
        )
    return original(self, *args, **options)


#: (class, method, what makes a replacement of it)
OWN: tuple[tuple[str, str, Callable[[Method], Method]], ...] = (
    ("MPNetEncoder", "compute_position_bias", _of_longest),
    ("MPNetSelfAttention", "forward", _mpnet),
    ("DebertaV2Encoder", "get_rel_pos", _of_longest),
    ("DebertaV2Encoder", "get_attention_mask", _deberta_mask),
    ("DisentangledSelfAttention", "forward", _deberta),
    ("BloomAttention", "forward", _bloom),
    ("MptAttention", "forward", _mpt),
    ("MptModel", "forward", _mpt_model),
    ("FalconAttention", "forward", _falcon),
    ("FalconModel", "forward", _falcon_alibi),
)

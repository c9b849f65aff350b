"""The forms, each with its own names and defaults. Their common part is Layer's."""

from typing import Any

from ._attention import Layer

__all__ = [
    "AveragePooling",
    "FixedWeights",
    "GroupedQueryAttention",
    "MultiHeadAttention",
    "SelfAttention",
    "SelfAttentionV1",
    "SelfAttentionV2",
    "SelfAttentionV3",
    "SelfAttentionV4",
    "SingleHeadAttention",
]


def _given(names: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor, from its locals()."""
    return {name: value for name, value in names.items() if name not in ("self", "__class__")}


class AveragePooling(Layer):
    """y[b, i] = mean over j of x[b, j]: no parameters, any E, no masks."""

    name = "average"

    def __init__(self) -> None:
        super().__init__()


class FixedWeights(Layer):
    """y[b, i] = sum over j of w[j] x[b, j] / sum(w): one learned number per position, no softmax. Parameter w [length]."""

    name = "fixed-weights"

    def __init__(self, length: int, *, seed: int = 0) -> None:
        super().__init__(length=length, seed=seed)


class SelfAttentionV1(Layer):
    """One head: softmax(q k^T / sqrt(E)) v. Parameters query_proj, key_proj, value_proj (weight [E, E], bias [E])."""

    name = "v1"

    def __init__(
        self, embed_dim: int, *, bias: bool = True, dropout: float = 0.0, causal: bool = False, empty_row: str = "mean",
        seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))


class SelfAttentionV2(Layer):
    """V1 with one matrix for q, k, v: parameter proj (weight [3E, E], rows in the order q, k, v); output_proj by option."""

    name = "v2"

    def __init__(
        self, embed_dim: int, *, output_proj: bool = False, bias: bool = True, dropout: float = 0.0, causal: bool = False,
        empty_row: str = "mean", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))


class _OneHead(Layer):
    """One head with an output projection, a mask, and dropout on the weights: V3 and V4 differ in their parameters' names."""

    def __init__(
        self, embed_dim: int, *, bias: bool = True, dropout: float = 0.1, residual_dropout: float = 0.0,
        causal: bool = False, empty_row: str = "mean", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))


class SelfAttentionV3(_OneHead):
    """V2 with an output projection, a mask, and dropout on the weights: parameters proj, output_proj."""

    name = "v3"


class SelfAttentionV4(_OneHead):
    """One head with everything: parameters query_proj, key_proj, value_proj, output_proj; a mask, dropout on the weights."""

    name = "v4"


class SelfAttention(Layer):
    """q, k and v all of width d_k (0: E), scale 1/sqrt(d_k), no output projection: out [B, T, d_k]. Parameters W_Q, W_K, W_V
    [d_k, E]."""

    name = "self-attention"

    def __init__(
        self, embed_dim: int, d_k: int = 0, *, bias: bool = True, dropout: float = 0.0, causal: bool = False,
        empty_row: str = "mean", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))


class SingleHeadAttention(Layer):
    """Causal V4 without biases: parameters W_q, W_k, W_v, W_o."""

    name = "single-head"

    def __init__(
        self, embed_dim: int, *, bias: bool = False, dropout: float = 0.1, residual_dropout: float = 0.1,
        causal: bool = True, empty_row: str = "nan", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))


class MultiHeadAttention(Layer):
    """num_heads heads of width E / num_heads side by side, scale 1/sqrt(E / num_heads).

    Parameters q_proj, k_proj, v_proj, o_proj; from a torch.nn.MultiheadAttention's state_dict in_proj_weight, in_proj_bias,
    out_proj.*. init: "linear", or "torch_mha" (Xavier in_proj, zero biases). Vaswani 2017 (arXiv:1706.03762).
    """

    name = "mha"

    def __init__(
        self, embed_dim: int, num_heads: int, *, bias: bool = True, dropout: float = 0.1, residual_dropout: float = 0.1,
        causal: bool = False, empty_row: str = "mean", init: str = "linear", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))


class GroupedQueryAttention(Layer):
    """Fewer heads of keys and values than of queries (Ainslie 2023, arXiv:2305.13245).

    Parameters, named as in Hugging Face's Llama: q_proj [H D, E], k_proj, v_proj [Hkv D, E], o_proj [E, H D];
    qk_norm "head" (Qwen 3) or "vector" (OLMo 2) adds q_norm, k_norm. head_dim: D, 0 = E / num_heads.
    rotary: True, a dict of :class:`qkv.Rotary`'s options, or a Rotary. It is not causal unless that is asked for.
    """

    name = "grouped-query"

    def __init__(
        self, embed_dim: int, num_heads: int, num_kv_heads: int = 0, *, head_dim: int = 0, bias: bool = False,
        output_bias: bool | None = None, qk_norm: str = "none", norm_eps: float = 1e-6, rotary: Any = None,
        dropout: float = 0.0, residual_dropout: float = 0.0, causal: bool = False, empty_row: str = "zero", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(**_given(locals()))

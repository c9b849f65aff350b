"""Multi-head latent attention: keys and values are linear maps of one small vector a token, all that a cache holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core, _nn
from .._arrays import empty, finish, integers
from ..kv_cache import KVCache
from ._attention import mask_core
from ._module import Module, Saved, operands, require_floats

__all__ = ["MultiHeadLatentAttention"]


class MultiHeadLatentAttention(Module):
    """DeepSeek's attention: x [B, T, E] -> y [B, T, E], float32, with the names of transformers' deepseek_v2 and deepseek_v3.

        q     = q_b_proj(norm(q_a_proj(x))), or q_proj(x)     [B, T, H (Dn + Dr)], the last Dr of each head rotated
        c | r = kv_a_proj_with_mqa(x)                         [B, T, R + Dr], c normed, r rotated: what a cache holds
        k | v = kv_b_proj(c)                                  [B, T, H (Dn + Dv)]; a key is [k | r], r the same for all heads
        y     = o_proj(attention(q, k, v))

    Args:
        embed_dim, num_heads: E, H.  q_lora_rank: None: q_proj.  kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim:
            R, Dn, Dr, Dv.  bias: DeepSeek's attention_bias: of q_a_proj, kv_a_proj_with_mqa and o_proj.
        scale: None: 1/sqrt(Dn + Dr); DeepSeek's YaRN multiplies it by mscale squared.
        rotary: options of :class:`qkv.Rotary`; pairs are interleaved, as DeepSeek has them, unless ``interleaved=False``.
        causal: whether a token sees no later one.  seed: of the first weights, uniform +-1/sqrt(inputs).

    No dropout; other element types than float32 are a TypeError. DeepSeek-V2, 2024 (arXiv:2405.04434).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        q_lora_rank: int | None = None,
        kv_lora_rank: int = 512,
        qk_nope_head_dim: int = 128,
        qk_rope_head_dim: int = 64,
        v_head_dim: int = 128,
        bias: bool = False,
        norm_eps: float = 1e-6,
        scale: float | None = None,
        rotary: Mapping[str, Any] | None = None,
        causal: bool = True,
        seed: int = 0,
    ) -> None:
        self._config = {
            "embed_dim": embed_dim, "num_heads": num_heads, "q_lora_rank": q_lora_rank, "kv_lora_rank": kv_lora_rank,
            "qk_nope_head_dim": qk_nope_head_dim, "qk_rope_head_dim": qk_rope_head_dim, "v_head_dim": v_head_dim, "bias": bias,
            "norm_eps": norm_eps, "scale": scale, "rotary": dict(rotary or {}), "causal": causal, "seed": seed,
        }  # fmt: skip
        turned = _core.RotaryOptions(**{"interleaved": True, **self._config["rotary"]})
        self._core = _nn.MultiHeadLatentAttention(**{**self._config, "rotary": turned})
        self.embed_dim, self.num_heads = embed_dim, num_heads

    def forward(
        self,
        x: Any,
        *,
        mask: Any = None,
        causal: bool | None = None,
        offset: int = 0,
        offsets: Sequence[int] = (),
        position_ids: Any = None,
        saved: Saved | None = None,
    ) -> Any:
        """y of x, both [B, T, E] float32, in the materialised form.

        mask: a :class:`qkv.Mask`, intersected with the causal one (causal: None: as in the constructor). offset, offsets,
        position_ids: token t has position offset + t, offsets[b] + t or position_ids[b, t]. saved: filled for backward.
        """
        self._check(x, "x", "forward")
        y = empty(x, tuple(x.shape), "float32")
        ids = None if position_ids is None else np.ascontiguousarray(position_ids, dtype=np.int64)
        work = _nn.LatentSaved()
        if saved is not None:
            saved._fill(self, tuple(x.shape))
            work = saved._core = saved._core or work
        self._core.forward(work, mask_core(mask), causal, offset, integers(offsets), ids, *operands(x=x, y=y))
        return finish(x, y)

    def backward(self, dy: Any, saved: Saved, *, need_dx: bool = True) -> Any:
        """dx (None unless need_dx) of dy, both [B, T, E]; adds to the gradients of the parameters."""
        (shape,) = saved._of(self)
        self._check(dy, "dy", "backward")
        if tuple(dy.shape) != shape:
            raise ValueError(
                f"[{type(self).__name__}.backward] dy must be shaped as y was, {list(shape)}: got {list(dy.shape)}"
            )
        dx = empty(dy, shape, "float32") if need_dx else None
        self._core.backward(*operands(dy=dy), saved._core, *operands(dx=dx))
        return finish(dy, dx)

    def cache(self, *, sequences: int = 1, **options: Any) -> KVCache:
        """An empty :class:`qkv.KVCache` of [c | r], held once, for :meth:`step`: capacity=, or layout= and the like."""
        c = self._config
        return KVCache(
            num_kv_heads=1,
            head_dim=c["kv_lora_rank"] + c["qk_rope_head_dim"],
            v_head_dim=c["kv_lora_rank"],
            values_in_keys=True,
            sequences=sequences,
            **options,
        )

    def step(self, x: Any, cache: KVCache, *, mask: Any = None, form: str = "auto") -> Any:
        """The next n tokens of every sequence of a cache: x [B, n, E] -> y [B, n, E]; prefill is a step with large n.

        Each token attends to all up to itself that ``mask`` keeps. form: "absorbed" reads the cache as one key head of which c
        is the value; "materialised" computes the keys and values of all heads first; "auto" takes the one with fewer operations.
        """
        self._check(x, "x", "step")
        y = empty(x, tuple(x.shape), "float32")
        self._core.step(*operands(x=x, y=y), cache, mask_core(mask), form)
        return finish(x, y)

    def _check(self, x: Any, name: str, function: str) -> None:
        require_floats(x, name, f"{type(self).__name__}.{function}", "float32")
        if len(x.shape) != 3:
            raise _core.ShapeError(f"[{type(self).__name__}.{function}] {name} must be [B, T, E]: got {list(x.shape)}")

    def _arguments(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self._config

    def __repr__(self) -> str:
        return f"MultiHeadLatentAttention({self.embed_dim}, {self.num_heads}, parameters={self.parameter_count})"

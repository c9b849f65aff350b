"""The linear-attention layers of transformers' models on qkv's kernels: the gated delta rule, Kimi's, Mamba's scans, steps and
convolutions, which are the stand-ins'.

Each function takes the original and returns its replacement, which computes what the original's PyTorch code computes, for
tensors on the CPU, and leaves other devices and torch.export to the original.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from .._arrays import has_tangent
from ..standins.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from ..standins.mamba_ssm import mamba_chunk_scan_combined, selective_scan_fn, selective_state_update
from ..torch import (
    ArgumentError,
    chunk_gated_delta_rule,
    chunk_kimi_delta_attention,
    fused_recurrent_gated_delta_rule,
    recurrent_kimi_delta_attention,
)
from ..torch._calls import offsets_of
from ..torch.linear import check_known
from ..torch.sdpa import direct

Function = Callable[..., Any]


def _ours(x: Tensor) -> bool:
    return x.is_cpu and not torch.compiler.is_exporting()


def _offsets(options: dict[str, Any], batch: int, cu_seqlens: Tensor | None = None) -> Tensor | None:
    """Where packed sequences begin and the last ends, from what the model was passed; None: one sequence a row."""
    cu_seqlens = options.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens
    seq_idx = options.get("seq_idx")
    if batch != 1 and (cu_seqlens is not None or seq_idx is not None):
        name, given = ("seq_idx", seq_idx) if cu_seqlens is None else ("cu_seq_lens_q", cu_seqlens)
        raise ArgumentError(
            f"[qkv.transformers] packed sequences ({name}) lie in one row, B = 1: got {name} {list(given.shape)} with {batch} rows; "
            "pass the rows one by one"
        )
    if cu_seqlens is not None or seq_idx is None:
        return cu_seqlens
    changes = (seq_idx[0, 1:] != seq_idx[0, :-1]).nonzero()[:, 0] + 1
    return F.pad(F.pad(changes, (1, 0)), (0, 1), value=seq_idx.shape[1])


# Arguments of flash-linear-attention that would change a result; models do not pass them.
_NOT_COMPUTED = ("use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "head_first", "transpose_state_layout")


def _delta_rule(rule: Function, original: Function) -> Function:
    names = list(inspect.signature(original).parameters)[5:]  # of four functions, which differ in their order

    @functools.wraps(original)
    def replaced(
        query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *positional: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        options = {**dict(zip(names, positional)), **kwargs}
        if not _ours(query):
            return original(query, key, value, g=g, beta=beta, **options)
        check_known(rule.__name__, {name: options[name] for name in _NOT_COMPUTED if name in options})
        return rule(
            query, key, value, g, beta, scale=options.get("scale"), initial_state=options.get("initial_state"),
            output_final_state=options.get("output_final_state", False),
            use_qk_l2norm_in_kernel=options.get("use_qk_l2norm_in_kernel", False),
            cu_seqlens=_offsets(options, query.shape[0], options.get("cu_seqlens")),
        )  # fmt: skip

    return replaced


def _stand_in(function: Function, original: Function) -> Function:
    """A function of mamba_ssm or causal_conv1d with what transformers passes: packed sequences as cu_seq_lens_q, names that the function
    does not know, other activations. Steps that are differentiated or traced stay PyTorch's."""
    names, pytorchs = inspect.signature(function).parameters, inspect.unwrap(original)

    @functools.wraps(original)
    def replaced(x: Tensor, *args: Any, **options: Any) -> Any:
        if not _ours(x):
            return original(x, *args, **options)
        known = {name: value for name, value in options.items() if name in names}
        if "seq_idx" in names:
            offsets, length = _offsets(options, x.shape[0]), x.shape[2 if x.dim() == 3 else 1]
            if offsets is not None:  # of the convolution columns that a cache puts before the first sequence are of it
                if x.dim() == 4:
                    offsets_of("qkv.transformers", "cu_seq_lens_q", offsets, length, whole=True)
                offsets = torch.bucketize(torch.arange(length), offsets[1:-1] + (length - offsets[-1]), right=True)[None]
            known["seq_idx"] = offsets
        elif "update" in function.__name__ and not _plain(x, *args, *options.values()):
            return pytorchs(x, *args, **options)
        activation = known.get("activation")
        if activation not in (None, "silu", "swish"):
            return ACT2FN[activation](function(x, *args, **known | {"activation": None}))
        return function(x, *args, **known)

    return replaced


def _plain(*given: Any) -> bool:
    """Whether nothing is differentiated or traced."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    return direct(*tensors) and not any(has_tangent(x) or (torch.is_grad_enabled() and x.requires_grad) for x in tensors)


def _none(*_: Any, **__: Any) -> None:
    """mamba_split_conv1d_scan_combined: everything between two projections at once, the second with its weights alone, past what
    was put on its layer. None sends the model to the functions above."""


#: Replaced functions, by their name in the modelling files.
REPLACEMENTS: dict[str, Callable[[Function], Function]] = {
    "torch_chunk_gated_delta_rule": functools.partial(_delta_rule, chunk_gated_delta_rule),
    "torch_recurrent_gated_delta_rule": functools.partial(_delta_rule, fused_recurrent_gated_delta_rule),
    "chunk_kimi_delta_attention": functools.partial(_delta_rule, chunk_kimi_delta_attention),
    "recurrent_kimi_delta_attention": functools.partial(_delta_rule, recurrent_kimi_delta_attention),
    "mamba2_chunk_scan": functools.partial(_stand_in, mamba_chunk_scan_combined),
    "mamba2_selective_state_update": functools.partial(_stand_in, selective_state_update),
    "mamba2_split_conv1d_scan_combined": functools.partial(_stand_in, _none),
    "mamba_selective_scan": functools.partial(_stand_in, selective_scan_fn),
    "mamba_selective_state_update": functools.partial(_stand_in, selective_state_update),
}
#: Replaced beside them.
BESIDE: dict[str, Callable[[Function], Function]] = {
    "causal_conv1d_fn": functools.partial(_stand_in, causal_conv1d_fn),
    "causal_conv1d_update": functools.partial(_stand_in, causal_conv1d_update),
}
